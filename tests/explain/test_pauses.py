"""Steps that stand out, and periods of them."""

import numpy as np
import pytest

from pytest_dtfperf.datamodel.step_times import WorkerTimings
from pytest_dtfperf.explain.worker_timings import compute_worker_timings, find_long_steps, find_period
from tests.explain.timestamped import in_lockstep, noise


def scored(worker: int | None, steps: int, indices: slice, seconds: float = 0.3) -> WorkerTimings:
    """Two workers with a long tail; one of them, or both, pause."""
    ready = noise("long tail", 2, steps, np.random.default_rng(3))
    ready[slice(None) if worker is None else worker, indices] += seconds
    scores = compute_worker_timings(in_lockstep(ready), lockstep=True)
    assert scores is not None
    return scores


@pytest.mark.parametrize("steps", [60, 100, 400])
def test_pause_every_ten_steps_is_found(steps: int) -> None:
    """The period is told in steps and seconds, and whose it is."""
    scores = scored(1, steps, slice(4, None, 10))
    (period,) = scores.periods
    assert (period.steps, period.worker, period.pauses) == (10.0, "worker:1", steps // 10)
    assert period.seconds == pytest.approx(10 * (scores.step_s or 0), rel=0.1)
    assert scores.paused >= steps // 10
    assert (scores.pauses[0].step - 5) % 10 == 0
    assert scores.pauses[0].seconds == pytest.approx(0.3, abs=0.15)


def test_pause_of_all_is_nobodys() -> None:
    """Where all workers pause at once, as they do when a file system stalls, the pause is no worker's."""
    (period,) = scored(None, 100, slice(4, None, 10)).periods
    assert period.worker is None


def test_period_of_the_clock_is_found_though_steps_vary() -> None:
    """What comes every so many seconds comes after a varying number of steps."""
    durations = 0.1 * (1 + 0.05 * np.random.default_rng(5).standard_normal(1000))
    begins = np.cumsum(durations)
    indices = np.unique(np.searchsorted(begins, np.arange(4.2, 100, 4.2)))
    durations[indices] += 0.4
    found = find_period(find_long_steps(durations), durations)
    assert found is not None
    assert found[0] == pytest.approx(42, abs=1)


def test_three_pauses_are_no_period() -> None:
    """Three pauses as far apart may be chance."""
    scores = scored(1, 30, slice(4, None, 10))
    assert scores.paused >= 3
    assert scores.periods == []


def test_single_pause_is_told_with_its_worker() -> None:
    """One long step is a pause of the worker whose own time it was, and no period."""
    scores = scored(0, 50, slice(20, 21), 2.0)
    assert [(pause.step, pause.worker) for pause in scores.pauses[:1]] == [(21, "worker:0")]
    assert scores.periods == []


def test_machine_that_gets_slower_does_not_pause() -> None:
    """Steps that take twice as long in the end as in the beginning stand out nowhere."""
    durations = np.linspace(0.1, 0.2, 1000) + 0.002 * np.random.default_rng(1).standard_normal(1000)
    assert list(find_long_steps(durations)) == []


def test_few_or_equal_steps_do_not_stand_out() -> None:
    """Nothing stands out of fewer than twenty steps, or where all are equal."""
    assert list(find_long_steps(np.array([0.1] * 18 + [5.0]))) == []
    assert list(find_long_steps(np.full(200, 0.1))) == []


def test_random_pauses_are_no_period() -> None:
    """Pauses at random indices are called periodic in at most one run in a hundred; clusters of them, too."""
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
