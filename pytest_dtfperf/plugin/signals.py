"""SIGTERM and SIGHUP, which batch systems, CI and closed terminals send, end a session as Ctrl-C does: all teardown is run."""

import signal
import threading
from collections.abc import Callable
from types import FrameType

import pytest

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


def install() -> Callable[[], None]:
    """Called when the first perf test is seen; gives what undoes it. Only the main thread may say what signals do."""
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = {number: signal.signal(number, _leave) for number in NUMBERS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _leave(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"{signal.Signals(number).name} received: everything that was started is ended", returncode=128 + number)
