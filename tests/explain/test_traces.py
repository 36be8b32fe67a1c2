"""Traces on their way: what comes back is what was sent, and what no trace can be is refused."""

import dataclasses
import json
from typing import Any

import pytest

from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.traces import InvalidTrace, TaskTrace
from tests.explain.made import MODES, Session, Times, parameter_server, real


@pytest.mark.parametrize("mode", MODES)
def test_traces_survive_json(mode: str) -> None:
    """A trace that went through JSON is the same."""
    for trace in real(mode):
        assert TaskTrace.from_json(json.loads(json.dumps(trace.to_json()))) == trace


def broken(**other: Any) -> Any:
    return {**json.loads(json.dumps(parameter_server([Times()])[0].to_json())), **other}


STEP = {"begin_us": 0, "called_us": 0, "end_us": 1, "cpu_us": 0, "ran": [], "received": []}


@pytest.mark.parametrize(
    "data, why",
    [
        ([], "keys other than task"),
        ({}, "keys other than task"),
        (broken(more=1), "keys other than task"),
        (broken(task=3), "task with names that are no text"),
        (broken(operations=[["a", "b", 99, []]]), "a device of something that it does not name"),
        (broken(operations=[["a", "b"]]), "operations that are no rows of 4"),
        (broken(tensors=[["a", 0, 0, 1.5]]), "tensors with numbers that are not whole"),
        (broken(tensors=[["a", 0, True, 1]]), "a device of something that it does not name"),
        (broken(queues=[]), "queues that are no object"),
        (broken(steps=[{}]), "steps other than begin_us"),
        (broken(steps={}), "steps that are no list"),
        (broken(steps=[{**STEP, "begin_us": 2**62}]), "begin_us"),
        (broken(steps=[{**STEP, "ran": [[-1, 0, 0, 0]]}]), "ran"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(data: Any, why: str) -> None:
    """Whatever is not as it must be is told in words, and never makes a trace."""
    with pytest.raises(InvalidTrace, match=why):
        TaskTrace.from_json(data)


@pytest.mark.parametrize("more", [1_000, 100_000])
def test_work_grows_with_the_trace_and_not_with_its_square(more: int) -> None:
    """A host that sends as many waits, puts and exchanges as a trace can hold costs seconds, not the session."""
    session = Session("worker:0", begin=0, called=1, end=9)
    session.queue("q", "weights/gradient of worker 0")
    session.run("put", 2, 3, "q", on="ps:0", kind="QueueEnqueueV2")
    session.run("take", 2, 4, "q", on="ps:0", kind="QueueDequeueV2")
    session.run("reduce", 2, 8, kind="CollectiveReduceV2")
    trace = session.trace()
    steps = [dataclasses.replace(step, ran=[*step.ran] * (more // 3)) for step in trace.steps]
    breakdown = compute_step_breakdown([dataclasses.replace(trace, steps=steps)])
    assert sum(part.seconds for part in breakdown.path) == pytest.approx(breakdown.wall_s)
