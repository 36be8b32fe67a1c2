"""How what runs on a host ends by a signal: by an exception, so that nothing of it remains, and by no other meanwhile."""

from __future__ import annotations

import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LEAVE_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Leave(Exception):
    """There is nothing more to do here."""

    def __init__(self, why: str = "", code: int = 0) -> None:
        super().__init__(why)
        self.code = code  # to exit with


def leave_on_signals() -> None:
    """From now on a signal raises `Leave` in the main thread."""
    for number in LEAVE_ON:
        signal.signal(number, _leave)


def ignore_signals() -> None:
    """While what was started is ended."""
    for number in LEAVE_ON:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, _: object) -> NoReturn:
    raise Leave(f"ended by {signal.Signals(number).name}")
