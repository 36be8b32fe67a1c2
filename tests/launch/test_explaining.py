"""Tests of the way from received traces to a run's step breakdown, or to the reason for none."""

import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pytest_dtfperf.baselines.json_schema import json_schema
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.launch.tracing import FILE, TRACED_STEPS, TraceCollector
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import Operation, pack_trace
from tests.explain.made import load_real_traces

HOSTS = {"ps:0": 0, "ps:1": 0, "worker:0": 0, "worker:1": 0}
SPEC = Spec(model="mnist", batch_size=16, gpus=2, num_ps=2)


def receive_traces(**packed: str) -> TraceCollector:
    tracing = TraceCollector(SPEC, HOSTS, is_requested=True)
    for task, data in packed.items():
        tracing.receive(task.replace("_", ":"), data, None)
    return tracing


def receive_both_traces() -> TraceCollector:
    one, other = map(pack_trace, load_real_traces("parameter_server"))
    return receive_traces(worker_1=other, worker_0=one)


def test_traces_become_a_breakdown_and_a_file(tmp_path: Path) -> None:
    """Traces of all workers, in any order, become a step breakdown that fits the schema, and a file of events."""
    tracing = receive_both_traces()
    breakdown, why_not = tracing.outcome()
    assert breakdown is not None
    assert why_not == ""
    jsonschema.validate(json.loads(json.dumps(breakdown.to_json())), json_schema(StepBreakdown))
    tracing.write(tmp_path / "logs")
    assert json.loads(gzip.decompress((tmp_path / "logs" / FILE).read_bytes()))["traceEvents"]


def test_tasks_of_one_host_have_no_clock_error() -> None:
    """Tasks on one host have no clock error."""
    breakdown, _ = receive_both_traces().outcome()
    assert breakdown is not None
    assert set(breakdown.clock_error_s.values()) == {0.0}


def test_run_without_tracing_has_no_reason(tmp_path: Path) -> None:
    """A run without requested tracing traces no step, and has neither a breakdown nor a reason nor a file."""
    tracing = TraceCollector(SPEC, HOSTS, is_requested=False)
    tracing.write(tmp_path)
    assert (tracing.steps, tracing.outcome(), list(tmp_path.iterdir())) == (0, (None, ""), [])
    assert receive_both_traces().steps == TRACED_STEPS


def test_first_untraced_task_is_the_reason(tmp_path: Path) -> None:
    """The first task that could not be traced is the reason for no breakdown, and no file is written."""
    tracing = receive_both_traces()
    tracing.receive("worker:1", None, "DeadlineExceededError: too late")
    tracing.receive("worker:0", None, "another")
    tracing.write(tmp_path)
    assert tracing.outcome() == (None, "worker:1 could not be traced: DeadlineExceededError: too late")
    assert not list(tmp_path.iterdir())


def pack_changed_trace(**how: Any) -> str:
    return pack_trace(dataclasses.replace(load_real_traces("parameter_server")[0], **how))


STRANGER = Operation("a", "NoOp", "worker:7/CPU:0", ())


@pytest.mark.parametrize(
    "packed, why",
    [
        ("AAAA", "the trace cannot be unpacked"),
        ("x", "the trace cannot be unpacked"),
        (pack_trace(load_real_traces("parameter_server")[0])[:400], "the trace is cut off, or too large"),
        (pack_trace(load_real_traces("parameter_server")[1]), "the trace of worker:0 is that of worker:1"),
        (pack_changed_trace(operations=[STRANGER] * 200), "the trace of worker:0 names worker:7, which is no task of this run"),
        (
            pack_changed_trace(steps=[*load_real_traces("parameter_server")[0].steps] * 3),
            "the trace of worker:0 has 9 steps, 6 were asked for",
        ),
    ],
    ids=["nonsense", "no base64", "cut off", "another's", "strangers", "too long"],
)
def test_invalid_trace_is_the_reason(packed: str, why: str, tmp_path: Path) -> None:
    """With an invalid trace there is no breakdown, but the reason."""
    tracing = receive_traces(worker_0=packed)
    tracing.write(tmp_path)
    assert tracing.outcome() == (None, why)


def test_mode_without_traces_is_the_reason() -> None:
    """The reason of a mode that cannot be traced is this mode."""
    mirrored = TraceCollector(SPEC.replace(variable_update="mirrored", num_ps=0), {"worker:0": 0}, is_requested=True)
    assert mirrored.outcome() == (None, "variable_update=mirrored cannot be traced")
