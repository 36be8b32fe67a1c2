"""Timestamps of the measured steps, by real tasks in all modes, and the worker timings computed from them."""

from typing import Any

import pytest

from pytest_dtfperf.explain.worker_timings import compute_worker_timings
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import Column, StepTimestamps, unpack_timestamps
from tests.training.conftest import RunTasks, orders_of, report_of

PAIR: dict[str, Any] = {"gpus": 2}
STEPS = 10
SLEEP_S = 0.2  # forty times what a step takes: on a busy machine, too, the others are there first in most steps

StepsAndTimestamps = list[tuple[list[float], list[StepTimestamps]]]  # of each task that sent timestamps


def run_and_unpack(run_tasks: RunTasks, spec: Spec, workers: int, **order: Any) -> StepsAndTimestamps:
    with orders_of(spec, workers=workers, **order) as orders:
        outcomes = run_tasks(orders)
    assert [outcome["code"] for outcome in outcomes] == [0] * len(outcomes), [o["events"][-1:] for o in outcomes]
    return [
        (list(report_of(outcome).step_s), unpack_timestamps(event["data"]))
        for outcome in outcomes
        for event in outcome["events"]
        if event["kind"] == "timestamps"
    ]


def require_known(column: Column) -> list[int]:
    """Return a column without unknown values."""
    assert None not in column
    return [each for each in column if each is not None]


def check_parts(step_s: list[float], timestamps: StepTimestamps) -> None:
    """All is known of every step, in its order, and adds up to what the step took by the clock that measures."""
    python, variables, gradients, end = map(
        require_known, (timestamps.python_us, timestamps.variables_us, timestamps.gradients_us, timestamps.end_us)
    )
    assert [p + e for p, e in zip(python, end, strict=True)] == pytest.approx([1e6 * whole_s for whole_s in step_s], abs=2)
    assert all(0 <= v <= g <= e for v, g, e in zip(variables, gradients, end, strict=True))


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    "mode, layout",
    [
        ("parameter_server", {"num_ps": 2}),
        ("distributed_replicated", {"num_ps": 1}),
        ("multi_worker_mirrored", {}),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else str(value),
)
def test_sleeping_worker_is_last(run_tasks: RunTasks, tiny: Spec, mode: str, layout: dict[str, Any]) -> None:
    """The worker that sleeps before each common step is last, with its sleep as Python time."""
    spec = tiny.replace(variable_update=mode, warmup_steps=1, steps=STEPS, **PAIR, **layout)
    sent = run_and_unpack(run_tasks, spec, 2, sleep_s={"worker:1": SLEEP_S})
    assert [timestamps.worker for _, (timestamps,) in sent] == ["worker:0", "worker:1"]
    for step_s, (timestamps,) in sent:
        check_parts(step_s, timestamps)
        require_known(timestamps.cpu_us)
    scores = compute_worker_timings([timestamps for _, (timestamps,) in sent], lockstep=spec.in_lockstep)
    assert scores is not None
    sleeper, other = scores.workers["worker:1"], scores.workers["worker:0"]
    assert (sleeper.last or 0) > (other.last or 0)
    assert (sleeper.late_s or 0) > 0
    assert (sleeper.python_s or 0) > (other.python_s or 0)


def test_asynchronous_workers_are_not_compared(run_tasks: RunTasks, tiny: Spec) -> None:
    """Workers without common steps have their own times, and no comparison with others."""
    spec = tiny.replace(num_ps=1, cross_replica_sync=False, warmup_steps=1, steps=STEPS, **PAIR)
    sent = run_and_unpack(run_tasks, spec, 2, sleep_s={"worker:1": SLEEP_S})
    for step_s, (timestamps,) in sent:
        check_parts(step_s, timestamps)
    scores = compute_worker_timings([timestamps for _, (timestamps,) in sent], lockstep=spec.in_lockstep)
    assert scores is not None
    assert all(score.last is None and score.late_s is None for score in scores.workers.values())
    sleeper, other = scores.workers["worker:1"], scores.workers["worker:0"]
    assert sleeper.python_s is not None
    assert other.python_s is not None
    assert sleeper.python_s > other.python_s


def test_one_session_timestamps_all_workers(run_tasks: RunTasks, tiny: Spec) -> None:
    """The chief's session timestamps the other worker's devices on its own clock, without that worker's CPU time."""
    spec = tiny.replace(variable_update="distributed_all_reduce", warmup_steps=1, steps=3, **PAIR)
    ((step_s, both),) = run_and_unpack(run_tasks, spec, 2)
    assert [timestamps.worker for timestamps in both] == ["worker:0", "worker:1"]
    for timestamps in both:
        check_parts(step_s, timestamps)
    require_known(both[0].cpu_us)
    assert set(both[1].cpu_us) == {None}


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("mode", ["replicated", "mirrored"])
def test_lone_process_timestamps_itself(run_tasks: RunTasks, tiny: Spec, mode: str) -> None:
    """A worker with several devices has its gradients when the last of them has."""
    spec = tiny.replace(variable_update=mode, warmup_steps=0, steps=3, **PAIR)
    ((step_s, (timestamps,)),) = run_and_unpack(run_tasks, spec, 1)
    check_parts(step_s, timestamps)


def test_coordinator_timestamps_batches_of_workers(run_tasks: RunTasks, tiny: Spec) -> None:
    """The coordinator has the times of variables and gradients of each worker's batches, and no others."""
    spec = tiny.replace(variable_update="parameter_server_v2", cross_replica_sync=False, num_ps=1, steps=10, **PAIR)
    ((_, of_workers),) = run_and_unpack(run_tasks, spec, 2)
    assert sum(len(timestamps) for timestamps in of_workers) == 2 * spec.steps
    for timestamps in of_workers:
        assert all(
            0 <= v <= g
            for v, g in zip(require_known(timestamps.variables_us), require_known(timestamps.gradients_us), strict=True)
        )
        assert set(timestamps.python_us) | set(timestamps.end_us) | set(timestamps.cpu_us) == {None}


def test_tasks_without_timestamps_send_none(run_tasks: RunTasks, tiny: Spec) -> None:
    """A task with timestamps for no step, or for every second one, sends none."""
    for timestamped in ((False,), (False, True)):
        assert run_and_unpack(run_tasks, tiny.replace(warmup_steps=1), 1, timestamped=timestamped) == []
