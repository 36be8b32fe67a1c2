"""Tests of the step breakdown of a profiler's trace, which has times without edges."""

import json
import math

import jsonschema
import pytest

from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.explain.causes import compute_changes
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.report import explanations as report
from pytest_dtfperf.traces import InvalidTrace, TaskTrace, TracedStep, pack_trace, unpack_trace
from tests.explain.made import PROFILED, load_profiled_traces
from tests.explain.test_step_breakdown import SCHEMA

WHAT = {  # kinds of work that each worker has
    "mirrored": {"forward", "backward", "apply", "reduce", "host"},
    "multi_worker_mirrored": {"forward", "backward", "apply", "reduce", "host"},
    "parameter_server_v2": {"forward", "backward", "input", "receive", "send", "wait", "host"},
}


@pytest.mark.parametrize("mode", PROFILED)
def test_breakdown_of_a_profile_adds_up_without_a_path(mode: str) -> None:
    """The parts of each worker add up to its step, and path, links and clocks are stored as unknown."""
    breakdown = compute_step_breakdown(load_profiled_traces(mode), lockstep=mode != "parameter_server_v2")
    for of_task in breakdown.tasks.values():
        assert math.isclose(sum(of_task.parts.values()), of_task.wall_s, abs_tol=2e-6)
        assert WHAT[mode] <= of_task.parts.keys()
        assert of_task.cpu_s is None
    stored = breakdown.to_json()
    assert (stored["path"], stored["links"], stored["clock_error_s"]) == ([], [], {})
    jsonschema.validate(stored, SCHEMA)
    assert StepBreakdown.from_json(json.loads(json.dumps(stored))) == breakdown


@pytest.mark.parametrize("mode", PROFILED)
def test_profile_survives_packing(mode: str) -> None:
    """A profile's trace that was packed and unpacked is the same, and has no edges."""
    for trace in load_profiled_traces(mode):
        again = unpack_trace(pack_trace(trace))
        assert again.to_json() == trace.to_json()
        assert not again.edges


def test_text_gives_the_reason_for_no_path() -> None:
    """The text has no table of links, and one line gives the reason that there is no path."""
    shown = report.describe_breakdown(
        compute_step_breakdown(load_profiled_traces("multi_worker_mirrored")), width=160, colour=False
    )
    assert report.NO_PATH in shown
    assert "reduce" in shown
    assert "link" not in shown


def test_changes_are_those_of_the_slowest_worker() -> None:
    """Without paths the changes add up to that of the slowest worker's step, and the text names this worker."""
    before, after = (
        compute_step_breakdown(load_profiled_traces("multi_worker_mirrored")),
        compute_step_breakdown(load_profiled_traces("mirrored")),
    )
    changes = compute_changes(before, after)
    assert math.isclose(sum(change.seconds for change in changes), after.wall_s - before.wall_s, abs_tol=2e-6)
    assert "slowest worker" in report.compare_breakdowns(changes, "abc", path=False, width=160, colour=False)


def test_worker_with_one_step_is_left_out() -> None:
    """A worker with a single step is left out of the breakdown, and a trace of such workers alone is refused."""
    chief, other = load_profiled_traces("parameter_server_v2")
    idle = TaskTrace("worker:1", other.operations, [], other.steps[:1], edges=False)
    assert list(compute_step_breakdown([chief, idle], lockstep=False).tasks) == ["worker:0"]
    with pytest.raises(InvalidTrace, match="has 1 steps"):
        compute_step_breakdown([idle], lockstep=False)


def test_slowest_worker_has_the_longest_steps_not_the_most() -> None:
    """The slowest worker is the one with the longest step, not the one with the longest total of its steps."""

    def make_worker(name: str, step_us: int, steps: int) -> TaskTrace:
        begins = range(0, step_us * steps, step_us)
        made = [TracedStep(at, at, at + step_us, None, [], []) for at in begins]
        return TaskTrace(name, [], [], made, edges=False)

    breakdown = compute_step_breakdown([make_worker("worker:0", 50_000, 9), make_worker("worker:1", 90_000, 4)], lockstep=False)
    assert breakdown.wall_s == 0.09
    assert sum(part.seconds for part in breakdown.parts) == pytest.approx(breakdown.wall_s)


def test_edges_other_than_a_boolean_are_refused() -> None:
    """A trace with edges that are neither true nor false is refused."""
    trace = TaskTrace("worker:0", [], [], [TracedStep(0, 0, 1, None, [], [])], edges=False)
    with pytest.raises(InvalidTrace, match="edges that are neither"):
        TaskTrace.from_json({**trace.to_json(), "edges": "no"})
