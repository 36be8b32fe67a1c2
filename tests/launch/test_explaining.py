"""From what tasks have sent to a run's step breakdown, or to the words why there is none."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.launch.tracing import FILE, TRACED_STEPS, Tracing
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import Operation, pack_trace
from tests.explain.made import load_real_traces

HOSTS = {"ps:0": 0, "ps:1": 0, "worker:0": 0, "worker:1": 0}
SPEC = Spec(model="mnist", batch_size=16, gpus=2, num_ps=2)


def heard(**packed: str) -> Tracing:
    tracing = Tracing(SPEC, HOSTS, is_requested=True)
    for task, data in packed.items():
        tracing.receive(task.replace("_", ":"), data, None)
    return tracing


def both() -> Tracing:
    one, other = map(pack_trace, load_real_traces("parameter_server"))
    return heard(worker_1=other, worker_0=one)


def test_breakdown_is_as_the_schema_says(tmp_path: Path) -> None:
    """Traces of all workers, whoever was first, become a step breakdown and a file of all events."""
    tracing = both()
    breakdown, why_not = tracing.outcome()
    assert breakdown is not None
    assert why_not == ""
    jsonschema.validate(json.loads(json.dumps(breakdown.to_json())), json_schema(StepBreakdown))
    tracing.write(tmp_path / "logs")
    assert json.loads(gzip.decompress((tmp_path / "logs" / FILE).read_bytes()))["traceEvents"]


def test_tasks_of_one_host_have_one_clock() -> None:
    """Where all tasks were on one host, no clock is off by anything."""
    breakdown, _ = both().outcome()
    assert breakdown is not None
    assert set(breakdown.clock_error_s.values()) == {0.0}


def test_who_did_not_ask_is_told_nothing(tmp_path: Path) -> None:
    """Without being asked, tasks trace no step, and a run has neither a step breakdown nor a reason for having none."""
    tracing = Tracing(SPEC, HOSTS, is_requested=False)
    tracing.write(tmp_path)
    assert (tracing.steps, tracing.outcome(), list(tmp_path.iterdir())) == (0, (None, ""), [])
    assert both().steps == TRACED_STEPS


def test_failure_of_one_task_is_told_once(tmp_path: Path) -> None:
    """The first task that could not be traced says why the run has no step breakdown; nothing is written."""
    tracing = both()
    tracing.receive("worker:1", None, "DeadlineExceededError: too late")
    tracing.receive("worker:0", None, "another")
    tracing.write(tmp_path)
    assert tracing.outcome() == (None, "worker:1 could not be traced: DeadlineExceededError: too late")
    assert not list(tmp_path.iterdir())


def changed(**how: Any) -> str:
    return pack_trace(dataclasses.replace(load_real_traces("parameter_server")[0], **how))


STRANGER = Operation("a", "NoOp", "worker:7/CPU:0", ())


@pytest.mark.parametrize(
    "packed, why",
    [
        ("AAAA", "the trace cannot be unpacked"),
        ("x", "the trace cannot be unpacked"),
        (pack_trace(load_real_traces("parameter_server")[0])[:400], "the trace is cut off, or too large"),
        (pack_trace(load_real_traces("parameter_server")[1]), "the trace of worker:0 is that of worker:1"),
        (changed(operations=[STRANGER] * 200), "the trace of worker:0 names worker:7, which is no task of this run"),
        (
            changed(steps=[*load_real_traces("parameter_server")[0].steps] * 3),
            "the trace of worker:0 has 9 steps, 6 were asked for",
        ),
    ],
    ids=["nonsense", "no base64", "cut off", "another's", "strangers", "too long"],
)
def test_what_is_no_trace_costs_the_breakdown_alone(packed: str, why: str, tmp_path: Path) -> None:
    """Whatever a host sends: there is no step breakdown, and words for why."""
    tracing = heard(worker_0=packed)
    tracing.write(tmp_path)
    assert tracing.outcome() == (None, why)


def test_what_cannot_be_traced_is_named() -> None:
    """Of modes that TensorFlow gives no account of, and of others' programs, the run says so."""
    mirrored = Tracing(SPEC.but(variable_update="mirrored", num_ps=0), {"worker:0": 0}, is_requested=True)
    assert mirrored.outcome() == (None, "variable_update=mirrored cannot be traced")
