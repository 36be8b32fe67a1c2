"""Where a step's time goes of what a profiler has recorded: times without edges, as TensorFlow 2's own strategies have."""

import json
import math

import jsonschema
import pytest

from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.explain.causes import compute_changes
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.report import explanations as report
from pytest_dtfperf.traces import InvalidTrace, TaskTrace, TracedStep, pack_trace, unpack_trace
from tests.explain.made import PROFILED, profiled
from tests.explain.test_step_breakdown import SCHEMA

WHAT = {  # kinds of work that each worker has
    "mirrored": {"forward", "backward", "apply", "reduce", "host"},
    "multi_worker_mirrored": {"forward", "backward", "apply", "reduce", "host"},
    "parameter_server_v2": {"forward", "backward", "input", "receive", "send", "wait", "host"},
}


@pytest.mark.parametrize("mode", PROFILED)
def test_each_workers_time_adds_up_and_no_path_is_claimed(mode: str) -> None:
    """The partition adds up to each worker's step; path, links and clocks are not known, and stored so."""
    breakdown = compute_step_breakdown(profiled(mode), lockstep=mode != "parameter_server_v2")
    for of_task in breakdown.tasks.values():
        assert math.isclose(sum(of_task.parts.values()), of_task.wall_s, abs_tol=2e-6)
        assert WHAT[mode] <= of_task.parts.keys()
        assert of_task.cpu_s is None
    stored = breakdown.to_json()
    assert (stored["path"], stored["links"], stored["clock_error_s"]) == ([], [], {})
    jsonschema.validate(stored, SCHEMA)
    assert StepBreakdown.from_json(json.loads(json.dumps(stored))) == breakdown


@pytest.mark.parametrize("mode", PROFILED)
def test_it_travels_as_other_traces_do(mode: str) -> None:
    """Packed and unpacked, a profile's trace is what it was, and says that it has no edges."""
    for trace in profiled(mode):
        again = unpack_trace(pack_trace(trace))
        assert again.to_json() == trace.to_json()
        assert not again.edges


def test_what_is_shown_says_what_is_not_known() -> None:
    """No table of a path or of links: one line says why there is none."""
    shown = report.describe_breakdown(compute_step_breakdown(profiled("multi_worker_mirrored")), width=160, colour=False)
    assert report.NO_PATH in shown
    assert "reduce" in shown
    assert "link" not in shown


def test_changes_are_those_of_the_slowest_worker() -> None:
    """Where no path is known, what has become longer is told of the slowest worker's time, and adds up to its step's change."""
    before, after = compute_step_breakdown(profiled("multi_worker_mirrored")), compute_step_breakdown(profiled("mirrored"))
    changes = compute_changes(before, after)
    assert math.isclose(sum(change.seconds for change in changes), after.wall_s - before.wall_s, abs_tol=2e-6)
    assert "slowest worker" in report.compare_breakdowns(changes, "abc", path=False, width=160, colour=False)


def test_worker_that_had_too_little_to_do_is_left_out() -> None:
    """Of one that trained no second batch nothing is known; where that is all of them, there is no step breakdown."""
    chief, other = profiled("parameter_server_v2")
    idle = TaskTrace("worker:1", other.operations, [], other.steps[:1], edges=False)
    assert list(compute_step_breakdown([chief, idle], lockstep=False).tasks) == ["worker:0"]
    with pytest.raises(InvalidTrace, match="has 1 steps"):
        compute_step_breakdown([idle], lockstep=False)


def test_the_slowest_is_whose_steps_are_longest_and_not_whose_are_most() -> None:
    """A worker that was given more batches, since each took it less, is not the slowest for taking longer over all of them."""

    def worker(name: str, step_us: int, steps: int) -> TaskTrace:
        begins = range(0, step_us * steps, step_us)
        made = [TracedStep(at, at, at + step_us, None, [], []) for at in begins]
        return TaskTrace(name, [], [], made, edges=False)

    breakdown = compute_step_breakdown([worker("worker:0", 50_000, 9), worker("worker:1", 90_000, 4)], lockstep=False)
    assert breakdown.wall_s == 0.09
    assert sum(part.seconds for part in breakdown.parts) == pytest.approx(breakdown.wall_s)


def test_edges_that_are_neither_are_refused() -> None:
    """A host's word for it is true or false."""
    trace = TaskTrace("worker:0", [], [], [TracedStep(0, 0, 1, None, [], [])], edges=False)
    with pytest.raises(InvalidTrace, match="edges that are neither"):
        TaskTrace.from_json({**trace.to_json(), "edges": "no"})
