"""Tests of the trace file for Perfetto."""

import gzip
import io
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pytest_dtfperf.explain.step_events import Clocks, align_clocks
from pytest_dtfperf.launch.tracing import MAX_PERFETTO_EVENTS, write_perfetto
from pytest_dtfperf.traces import TaskTrace
from tests.explain.made import MODES, Times, load_profiled_traces, load_real_traces, make_training


def write_document(traces: list[TaskTrace], clocks: Clocks | None = None, **how: Any) -> tuple[dict[str, Any], int, int]:
    """Write a document; return it, the size of the file in bytes, and the number of events left out."""
    file = io.BytesIO()
    left_out = write_perfetto(file, traces, clocks or align_clocks(traces), **how)
    return json.loads(gzip.decompress(file.getvalue())), len(file.getvalue()), left_out


@pytest.mark.parametrize("mode", MODES)
def test_document_has_every_event(mode: str) -> None:
    """Each task is a named process, and each event is in a lane in which no other event overlaps it."""
    traces = load_real_traces(mode)[:1] if mode == "independent" else load_real_traces(mode)
    document, _, left_out = write_document(traces)
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


def test_arrows_lead_from_sender_to_arrival() -> None:
    """Each transfer has an arrow with a begin and an end, and none goes back in time."""
    rows = write_document(make_training([Times(), Times()]))[0]["traceEvents"]
    begins, ends = ({row["id"]: row for row in rows if row["ph"] == ph} for ph in "sf")
    assert begins.keys() == ends.keys()
    assert len(begins) == 2 * 2 * 2
    assert all(begins[number]["ts"] <= ends[number]["ts"] for number in begins)


def test_events_are_left_out_by_whole_steps() -> None:
    """Events that do not fit are left out by whole steps, and the file has their number."""
    traces = load_real_traces("parameter_server")
    whole = sum(len(step.ran) + len(step.received) for trace in traces for step in trace.steps)
    first = sum(len(trace.steps[0].ran) + len(trace.steps[0].received) for trace in traces)
    document, _, left_out = write_document(traces, most=first + 1)
    assert left_out == whole - first
    assert document["traceEvents"][-1]["args"] == {"steps": 3, "events left out": whole - first}


def test_workers_with_fewer_steps_are_complete() -> None:
    """All events of workers with several steps, one step or none are written."""
    chief, other = load_profiled_traces("parameter_server_v2")
    idle = replace(other, task="worker:2", operations=[], steps=[])
    traces = [chief, replace(other, steps=other.steps[:1]), idle]
    one_clock = {(a, b): 0 for a in ("worker:0", "worker:1") for b in ("worker:0", "worker:1") if a != b}
    document, _, left_out = write_document(traces, clocks=align_clocks(traces, one_clock))
    assert left_out == 0
    assert sum(row["ph"] == "X" for row in document["traceEvents"]) == sum(len(s.ran) for trace in traces for s in trace.steps)


def test_events_with_unknown_clock_are_counted() -> None:
    """Events of a worker with an unknown clock are left out, and the file has their number."""
    traces = load_real_traces("independent")
    document, _, left_out = write_document(traces)
    assert left_out == sum(len(step.ran) + len(step.received) for step in traces[1].steps) > 0
    assert document["traceEvents"][-1]["args"]["events left out"] == left_out


def test_longest_events_of_a_too_large_step_are_kept() -> None:
    """The longest events of a step that does not fit are kept."""
    document, _, left_out = write_document(load_real_traces("replicated"), most=10)
    durations = [row["dur"] for row in document["traceEvents"] if row["ph"] == "X"]
    assert len(durations) == 10
    assert min(durations) > 500
    assert left_out > 500


def test_file_stays_below_20_mb() -> None:
    """The largest number of events, at the bytes that an event of a real trace takes, is below 20 MB."""
    largest = max(
        write_document(load_real_traces(mode))[1]
        / sum(len(step.ran) + len(step.received) for trace in load_real_traces(mode) for step in trace.steps)
        for mode in MODES
    )
    assert largest * MAX_PERFETTO_EVENTS < 20e6
