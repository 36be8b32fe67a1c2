"""The file that Perfetto opens."""

import gzip
import io
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pytest_dtfperf.explain.step_events import MAX_PERFETTO_EVENTS, Clocks, align_clocks, write_perfetto
from pytest_dtfperf.traces import TaskTrace
from tests.explain.made import MODES, Times, parameter_server, profiled, real


def written(traces: list[TaskTrace], clocks: Clocks | None = None, **how: Any) -> tuple[dict[str, Any], int, int]:
    """The document, the file's bytes, and how many events were left out."""
    file = io.BytesIO()
    left_out = write_perfetto(file, traces, clocks or align_clocks(traces), **how)
    return json.loads(gzip.decompress(file.getvalue())), len(file.getvalue()), left_out


@pytest.mark.parametrize("mode", MODES)
def test_every_event_is_in_it(mode: str) -> None:
    """Each task is a process with a name, each event is in a lane of its own task, where nothing else is at that time."""
    traces = real(mode)[:1] if mode == "independent" else real(mode)
    document, _, left_out = written(traces)
    rows = document["traceEvents"]
    complete = [row for row in rows if row["ph"] == "X"]
    assert left_out == 0
    assert len(complete) == sum(len(step.ran) + len(step.received) for trace in traces for step in trace.steps)
    named = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert set(named.values()) >= {trace.task for trace in traces}
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in complete:
        lanes.setdefault((row["pid"], row["tid"]), []).append((row["ts"], row["ts"] + row["dur"]))
    for spans in lanes.values():
        assert all(one[1] <= other[0] for one, other in pairwise(spans))


def test_arrows_begin_and_end() -> None:
    """Each transfer whose sender is known has an arrow from the sender to where it arrived, not back in time."""
    rows = written(parameter_server([Times(), Times()]))[0]["traceEvents"]
    begins, ends = ({row["id"]: row for row in rows if row["ph"] == ph} for ph in "sf")
    assert begins.keys() == ends.keys()
    assert len(begins) == 2 * 2 * 2
    assert all(begins[number]["ts"] <= ends[number]["ts"] for number in begins)


def test_whole_steps_are_kept_as_long_as_they_fit() -> None:
    """What does not fit is left out by whole steps, and the file says how much that was."""
    traces = real("parameter_server")
    whole = sum(len(step.ran) + len(step.received) for trace in traces for step in trace.steps)
    first = sum(len(trace.steps[0].ran) + len(trace.steps[0].received) for trace in traces)
    document, _, left_out = written(traces, most=first + 1)
    assert left_out == whole - first
    assert document["traceEvents"][-1]["args"] == {"steps": 3, "events left out": whole - first}


def test_workers_with_fewer_steps_cost_the_others_none() -> None:
    """Of workers that a coordinator has given several batches, one or none, all are written."""
    chief, other = profiled("parameter_server_v2")
    idle = replace(other, task="worker:2", operations=[], steps=[])
    traces = [chief, replace(other, steps=other.steps[:1]), idle]
    one_clock = {(a, b): 0 for a in ("worker:0", "worker:1") for b in ("worker:0", "worker:1") if a != b}
    document, _, left_out = written(traces, clocks=align_clocks(traces, one_clock))
    assert left_out == 0
    assert sum(row["ph"] == "X" for row in document["traceEvents"]) == sum(len(s.ran) for trace in traces for s in trace.steps)


def test_what_happened_by_a_clock_that_is_not_known_is_counted() -> None:
    """Events of a worker that nothing ties to the chief are in no place of its time: the file says how many there were."""
    traces = real("independent")
    document, _, left_out = written(traces)
    assert left_out == sum(len(step.ran) + len(step.received) for step in traces[1].steps) > 0
    assert document["traceEvents"][-1]["args"]["events left out"] == left_out


def test_of_a_step_that_is_too_large_the_longest_events_are_kept() -> None:
    """Not even a step fits: what is shortest is left out of it."""
    document, _, left_out = written(real("replicated"), most=10)
    durations = [row["dur"] for row in document["traceEvents"] if row["ph"] == "X"]
    assert len(durations) == 10
    assert min(durations) > 500
    assert left_out > 500


def test_file_stays_below_20_mb() -> None:
    """With real names and times an event takes so few bytes that no trace of any number of tasks gets larger."""
    largest = max(
        written(real(mode))[1] / sum(len(step.ran) + len(step.received) for trace in real(mode) for step in trace.steps)
        for mode in MODES
    )
    assert largest * MAX_PERFETTO_EVENTS < 20e6
