"""Waiting for what must happen, and for how long before it has not."""

import time
from collections.abc import Callable

PATIENCE_S = 30.0  # decides only whether something happens at all, also on a machine that is busy with other things


def wait_until(what: str, true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(0.02)
