"""The measured loop."""

import math
from time import perf_counter

from pytest_dtfperf.training.measured_steps import time_steps


def test_every_step_is_timed_and_its_loss_kept() -> None:
    """Five steps give five times, five losses in order, and five calls between them."""
    losses = iter([5.0, 4.0, 3.0, 2.0, 1.0])
    calls: list[int] = []
    window = time_steps(lambda: next(losses), 5, lambda: calls.append(len(calls)))
    assert window.loss == (5.0, 4.0, 3.0, 2.0, 1.0)
    assert len(window.step_s) == 5
    assert all(seconds > 0 for seconds in window.step_s)
    assert calls == [0, 1, 2, 3, 4]


def test_the_steps_add_up_to_the_window() -> None:
    """No time falls between two steps: what comes after one is in the next one's time."""
    timestamps: list[float] = []

    def step() -> float:
        timestamps.append(perf_counter())
        return 0.0

    window = time_steps(step, 100, lambda: None)
    assert window.started <= timestamps[0]
    assert window.started + math.fsum(window.step_s) >= timestamps[-1]
    assert math.fsum(window.step_s) <= perf_counter() - window.started


def test_no_steps_take_no_time() -> None:
    """A warm-up of no steps is an empty window, and runs nothing."""
    window = time_steps(lambda: 1 / 0, 0, lambda: None)
    assert window.step_s == window.loss == ()
