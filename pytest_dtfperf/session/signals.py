"""SIGTERM and SIGHUP, which batch systems, CI and closed terminals send, end a session as Ctrl-C does: hosts are given back."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def leaving() -> Iterator[None]:
    """Within, these signals raise `SystemExit`, unless the program does something else with them. Only in the main thread."""
    ours = [number for number in NUMBERS if signal.getsignal(number) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []
    for number in ours:
        signal.signal(number, _leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # as shells say it
