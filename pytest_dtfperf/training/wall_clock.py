"""Check whether this host's clock was set during a trace, which is then invalid."""

import time
from collections.abc import Callable

from pytest_dtfperf.traces import InvalidTrace

SLACK_NS = 1_000_000  # both clocks are slewed alike, and their difference stays; no step of a clock is so small


class WallClock:
    """The difference between the wall clock and the monotonic clock, which is never set, since this object was made."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._before = self._ahead()

    def check(self) -> None:
        """Raise `InvalidTrace` if the wall clock was set since this object was made."""
        (least, most), (now_least, now_most) = self._before, self._ahead()
        if now_least > most + SLACK_NS or now_most < least - SLACK_NS:
            by_s = (now_least + now_most - least - most) / 2e9
            raise InvalidTrace(
                f"its host's clock was set by {by_s:+.3g} s while steps were traced, so that where their time went is not known"
            )

    def _ahead(self) -> tuple[int, int]:
        """Return by how many nanoseconds the wall clock is ahead: a lower and an upper bound, as reading both takes time."""
        before = self._monotonic_ns()
        wall = self._wall_ns()
        return wall - self._monotonic_ns(), wall - before
