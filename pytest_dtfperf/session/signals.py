"""End a session on SIGTERM and SIGHUP, which batch systems, CI and closed terminals send, as on Ctrl-C: hosts are released."""

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

NUMBERS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raise_exit() -> Iterator[None]:
    """Raise `SystemExit` for these signals within the block, unless the program handles them. Only in the main thread."""
    restore = install(_leave, [number for number in NUMBERS if signal.getsignal(number) is signal.SIG_DFL])
    try:
        yield
    finally:
        restore()


@contextmanager
def hold_signals() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C and these signals back within the block, except in calls of the yielded function. Only in the main thread.

    A signal's exception can come between two steps of a lock. Then a wait for threads ends with another exception, or never: a
    second signal that came at once made `Condition.wait` release a lock that it did not have.
    """
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    numbers = (signal.SIGINT, *NUMBERS)
    restore = install(note, numbers)

    def deliver() -> None:
        if arrived:
            restore()
            try:
                signal.raise_signal(arrived.pop(0))
            finally:
                install(note, numbers)

    try:
        yield deliver
    finally:
        restore()
    if arrived:
        signal.raise_signal(arrived.pop(0))


def install(leave: Callable[[int, FrameType | None], None], numbers: Iterable[signal.Signals] = NUMBERS) -> Callable[[], None]:
    """Make these signals call `leave`, and return a function that undoes it. Only the main thread can set handlers.

    A signal that is ignored stays so: with nohup, the terminal may be closed.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in handled}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)  # as in shells
