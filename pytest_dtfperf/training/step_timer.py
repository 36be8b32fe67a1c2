"""Time the measured steps in a loop without branches, so that all of its work is in the measured time."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter

from pytest_dtfperf.errors import InvalidMeasurement


@dataclass(frozen=True)
class Window:
    """Consecutive steps that were timed without a gap."""

    started: float  # perf_counter seconds
    step_s: tuple[float, ...]  # adds up to the whole window: a step lasts until the next begins
    loss: tuple[float, ...]


def time_steps(step: Callable[[], float], steps: int, after_each: Callable[[], None]) -> Window:
    """Run `step`, which returns its loss, `steps` times. `after_each` is called within the next step's time.

    Raises `InvalidMeasurement` if the count is wrong.
    """
    timestamps = [perf_counter()]
    losses = []
    for _ in range(steps):
        losses.append(step())
        timestamps.append(perf_counter())
        after_each()
    step_s = tuple(end - begin for begin, end in pairwise(timestamps))
    if not len(step_s) == len(losses) == steps:
        raise InvalidMeasurement(f"{len(step_s)} times and {len(losses)} losses were taken, {steps} steps were asked for")
    return Window(timestamps[0], step_s, tuple(losses))
