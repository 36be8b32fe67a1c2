"""Tests of steps that stand out, and of their periods."""

import numpy as np
import pytest

from pytest_dtfperf.datamodel.step_times import WorkerTimings
from pytest_dtfperf.explain.worker_timings import compute_worker_timings, find_long_steps, find_period
from tests.explain.timestamped import make_lockstep_timestamps, make_noise


def compute_paused_timings(worker: int | None, steps: int, indices: slice, seconds: float = 0.3) -> WorkerTimings:
    """Return the timings of two workers with a long tail, of which one or both pause."""
    ready = make_noise("long tail", 2, steps, np.random.default_rng(3))
    ready[slice(None) if worker is None else worker, indices] += seconds
    scores = compute_worker_timings(make_lockstep_timestamps(ready), lockstep=True)
    assert scores is not None
    return scores


@pytest.mark.parametrize("steps", [60, 100, 400])
def test_pause_every_ten_steps_has_its_period(steps: int) -> None:
    """A pause of one worker in every tenth step is found with its period in steps and seconds, its worker and its count."""
    scores = compute_paused_timings(1, steps, slice(4, None, 10))
    (period,) = scores.periods
    assert (period.steps, period.worker, period.pauses) == (10.0, "worker:1", steps // 10)
    assert period.seconds == pytest.approx(10 * (scores.step_s or 0), rel=0.1)
    assert scores.paused >= steps // 10
    assert (scores.pauses[0].step - 5) % 10 == 0
    assert scores.pauses[0].seconds == pytest.approx(0.3, abs=0.15)


def test_pause_of_all_workers_has_no_worker() -> None:
    """The period of pauses of all workers at once has no worker."""
    (period,) = compute_paused_timings(None, 100, slice(4, None, 10)).periods
    assert period.worker is None


def test_period_in_seconds_is_found_with_varying_steps() -> None:
    """A pause that comes every 4.2 seconds is found as a period of about 42 varying steps."""
    durations = 0.1 * (1 + 0.05 * np.random.default_rng(5).standard_normal(1000))
    begins = np.cumsum(durations)
    indices = np.unique(np.searchsorted(begins, np.arange(4.2, 100, 4.2)))
    durations[indices] += 0.4
    found = find_period(find_long_steps(durations), durations)
    assert found is not None
    assert found[0] == pytest.approx(42, abs=1)


def test_three_pauses_are_no_period() -> None:
    """Three equally distant pauses are no period."""
    scores = compute_paused_timings(1, 30, slice(4, None, 10))
    assert scores.paused >= 3
    assert scores.periods == []


def test_single_pause_has_its_worker() -> None:
    """One long step is a pause of the worker with the long time, and no period."""
    scores = compute_paused_timings(0, 50, slice(20, 21), 2.0)
    assert [(pause.step, pause.worker) for pause in scores.pauses[:1]] == [(21, "worker:0")]
    assert scores.periods == []


def test_slowing_machine_has_no_long_steps() -> None:
    """No step stands out if steps grow steadily to twice their time."""
    durations = np.linspace(0.1, 0.2, 1000) + 0.002 * np.random.default_rng(1).standard_normal(1000)
    assert list(find_long_steps(durations)) == []


def test_few_or_equal_steps_do_not_stand_out() -> None:
    """No step stands out of fewer than twenty steps, or of equal ones."""
    assert list(find_long_steps(np.array([0.1] * 18 + [5.0]))) == []
    assert list(find_long_steps(np.full(200, 0.1))) == []


def test_random_pauses_are_no_period() -> None:
    """Pauses at random steps, single or in clusters, are called periodic in at most two of 200 runs."""
    random = np.random.default_rng(11)
    claims = 0
    for number in range(200):
        durations = np.full(200, 0.1)
        if number % 2:
            indices = random.choice(200, size=random.integers(4, 25), replace=False)
        else:
            indices = np.unique(
                np.concatenate([begin + random.integers(0, 20, size=6) for begin in random.integers(0, 180, 3)])
            )
        durations[indices] += 0.5
        claims += find_period(find_long_steps(durations), durations) is not None
    assert claims <= 2
