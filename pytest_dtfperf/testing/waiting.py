"""Waiting for what must happen, and for how long before it has not."""

import time
from collections.abc import Callable

PATIENCE_S = 30.0  # decides only whether something happens at all, also on a machine that is busy with other things
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
_PAUSES_PER_POLL = 4  # to ask Slurm, or all processes there are, takes the core that is waited for


def wait_until(what: str, true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Look until it is true: the more seldom, the longer a look takes. Raises `AssertionError` when it does not come."""
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if true():
            return
        polled_s = time.monotonic() - began
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(min(max(_FIRST_PAUSE_S, _PAUSES_PER_POLL * polled_s), _LONGEST_PAUSE_S))
