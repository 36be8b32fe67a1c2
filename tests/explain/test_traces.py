"""Tests of traces in JSON, and of the refusal of invalid ones."""

import dataclasses
import json
from typing import Any

import pytest

from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.traces import InvalidTrace, TaskTrace
from tests.explain.made import MODES, Session, Times, load_real_traces, make_training


@pytest.mark.parametrize("mode", MODES)
def test_traces_survive_json(mode: str) -> None:
    """A trace that was written as JSON and read is the same."""
    for trace in load_real_traces(mode):
        assert TaskTrace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def make_invalid_trace(**other: Any) -> Any:
    return {**json.loads(json.dumps(make_training([Times()])[0].to_json())), **other}


STEP = {"begin_us": 0, "called_us": 0, "end_us": 1, "cpu_us": 0, "ran": [], "received": []}


@pytest.mark.parametrize(
    "data, why",
    [
        ([], "keys other than task"),
        ({}, "keys other than task"),
        (make_invalid_trace(more=1), "keys other than task"),
        (make_invalid_trace(task=3), "task with names that are no text"),
        (make_invalid_trace(operations=[["a", "b", 99, []]]), "a device of something that it does not name"),
        (make_invalid_trace(operations=[["a", "b"]]), "operations that are no rows of 4"),
        (make_invalid_trace(tensors=[["a", 0, 0, 1.5]]), "tensors with numbers that are not whole"),
        (make_invalid_trace(tensors=[["a", 0, True, 1]]), "a device of something that it does not name"),
        (make_invalid_trace(queues=[]), "queues that are no object"),
        (make_invalid_trace(steps=[{}]), "steps other than begin_us"),
        (make_invalid_trace(steps={}), "steps that are no list"),
        (make_invalid_trace(steps=[{**STEP, "begin_us": 2**62}]), "begin_us"),
        (make_invalid_trace(steps=[{**STEP, "ran": [[-1, 0, 0, 0]]}]), "ran of something that it does not name"),
        (make_invalid_trace(steps=[{**STEP, "ran": [[0, 0, 0]]}]), "ran that are no rows of 4"),
        (make_invalid_trace(steps=[{**STEP, "ran": [[0, 0, True, 0]]}]), "ran with numbers that are not whole"),
        (make_invalid_trace(steps=[{**STEP, "ran": [[0, 0, 0, 2**53]]}]), "ran with numbers that are not whole"),
        (make_invalid_trace(steps=[{**STEP, "received": [[0, 0, None]]}]), "received with numbers that are not whole"),
        (make_invalid_trace(steps=[{**STEP, "received": [[0, 0, 0], [99, 0, 0]]}]), "received of something that it does not"),
    ],
)  # fmt: skip
def test_invalid_trace_is_refused(data: Any, why: str) -> None:
    """A trace with invalid keys, names, rows, devices or numbers is refused with the reason."""
    with pytest.raises(InvalidTrace, match=why):
        TaskTrace.from_json(data)


@pytest.mark.parametrize("more", [1_000, 100_000])
def test_large_trace_is_broken_down(more: int) -> None:
    """A trace with as many waits, puts and exchanges as a host can send has a breakdown that adds up."""
    session = Session("worker:0", begin=0, called=1, end=9)
    session.queue("q", "weights/gradient of worker 0")
    session.run("put", 2, 3, "q", on="ps:0", kind="QueueEnqueueV2")
    session.run("take", 2, 4, "q", on="ps:0", kind="QueueDequeueV2")
    session.run("reduce", 2, 8, kind="CollectiveReduceV2")
    trace = session.trace()
    steps = [dataclasses.replace(step, ran=[*step.ran] * (more // 3)) for step in trace.steps]
    breakdown = compute_step_breakdown([dataclasses.replace(trace, steps=steps)])
    assert sum(part.seconds for part in breakdown.path) == pytest.approx(breakdown.wall_s)
