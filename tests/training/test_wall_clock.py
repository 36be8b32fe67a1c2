"""A host's clock that is set while steps are traced is distinguished from long steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.traces import InvalidTrace, WallClock
from tests.training.programs import run_program

S = 1_000_000_000
YEARS = 1_767_000_000 * S


def clock_of(*readings: tuple[int, int, int]) -> WallClock:
    """`readings`: of the monotonic clock, of the host's, and of the monotonic one again; twice."""
    monotonic: Iterator[int] = iter([each for before, _, after in readings for each in (before, after)])
    wall: Iterator[int] = iter([YEARS + reading for _, reading, _ in readings])
    return WallClock(lambda: next(wall), lambda: next(monotonic))


@pytest.mark.parametrize(
    "then",
    [(5 * S, 5 * S, 5 * S), (50 * S, 50 * S + 900_000, 50 * S), (5 * S, 5 * S + 1, 7 * S), (5 * S, 7 * S, 7 * S)],
    ids=["at once", "long steps", "off its core after it was read", "off its core before it was read"],
)
def test_time_that_passes_sets_no_clock(then: tuple[int, int, int]) -> None:
    """Long steps, and readings interrupted by the scheduler, are no change of the clock."""
    clock_of((S, S, S + 10), then).check()


@pytest.mark.parametrize("by_s, shown", [(3, "+3 s"), (-3, "-3 s"), (0.25, "+0.25 s")], ids=["forward", "back", "a little"])
def test_set_clock_is_reported(by_s: float, shown: str) -> None:
    """A clock that was set forward or back is reported with the seconds."""
    now = 5 * S
    with pytest.raises(InvalidTrace) as refused:
        clock_of((S, S, S), (now, now + int(by_s * S), now)).check()
    assert str(refused.value) == (
        f"its host's clock was set by {shown} while steps were traced, so that where their time went is not known"
    )


SET = """
import time
from functools import partial
from types import SimpleNamespace
from pytest_dtfperf.training import tracing
from pytest_dtfperf.traces import WallClock
ahead = [0]
tracing.WallClock = partial(WallClock, lambda: time.time_ns() + ahead[0])
def step(**_):
    ahead[0] += 3_000_000_000
session = SimpleNamespace(make_callable=lambda *_, **__: step)
replica = SimpleNamespace(loss=None, updates=[], feeds=[])
order = SimpleNamespace(name="worker:0", is_chief=True, traced_steps=2, sleep_s=0)
made = []
try:
    tracing.trace_steps(session, replica, order, 1.0, lambda: made.append(1))
except ValueError as error:
    print(len(made), error)
tracing.tf.profiler.experimental.start = tracing.tf.profiler.experimental.stop = lambda *_: None
with tracing.profile_steps(order) as done:
    tracing.run_steps(done, 2, step, 0.0, lambda: None)
try:
    tracing.trace_of_steps("worker:0", done)
except ValueError as error:
    print(len(done.steps), error)
"""


def test_steps_with_a_set_clock_are_trained_without_traces(tmp_path: Path) -> None:
    """All steps are made if the clock is set while they are traced or profiled, and none has a trace."""
    words = "its host's clock was set by +6 s while steps were traced, so that where their time went is not known"
    assert run_program(tmp_path / "log", "-c", SET).splitlines() == [f"2 {words}", f"2 {words}"]
