"""Calls that are repeated after transient failures, with growing pauses."""

import random
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

_MOST_GROWTHS = 100  # of a pause, so that the power stays finite; pauses are at their longest long before


def compute_pause_s(failures: int, first_s: float, most_s: float, *, growth: float = 2.0, spread: float = 0.0) -> float:
    """Return the seconds to wait after 1, 2, 3, ... failed attempts.

    Each pause is `growth` times as long as the one before, at most `most_s`. It is varied at random by up to the fraction
    `spread`, so that processes which failed together do not try again together.
    """
    return min(first_s * growth ** min(failures - 1, _MOST_GROWTHS), most_s) * random.uniform(1 - spread, 1 + spread)


Result = TypeVar("Result")
Error = TypeVar("Error", bound=Exception)


def retry(
    call: Callable[[], Result],
    error: type[Error],
    *,
    within_s: float,
    first_pause_s: float,
    longest_pause_s: float,
    growth: float = 2.0,
    spread: float = 0.0,
    is_transient: Callable[[Error], bool] = lambda exc: True,
    on_failure: Callable[[Error], object] = lambda exc: None,
    sleep: Callable[[float], object] | None = None,
) -> Result:
    """Return what `call` returns, and call it again while it raises an `error` that may pass.

    Args:
        within_s: Seconds after the first call during which another one may begin.
        first_pause_s, longest_pause_s, growth, spread: As in `compute_pause_s`.
        is_transient: Whether another call may help after this error.
        on_failure: Called with each error before the pause after it.
        sleep: Waits so many seconds; by default `time.sleep`.

    Raises:
        The last error, if it is final or if the next pause would end after `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    for attempt in count(1):
        try:
            return call()
        except error as exc:
            pause = compute_pause_s(attempt, first_pause_s, longest_pause_s, growth=growth, spread=spread)
            if not is_transient(exc) or time.monotonic() + pause > deadline:
                raise
            on_failure(exc)
            (sleep or time.sleep)(pause)
    raise AssertionError("count() has no end")
