"""SIGTERM and SIGHUP, which batch systems, CI and closed terminals send, end a session as Ctrl-C does: all teardown is run."""

import signal
from collections.abc import Callable
from types import FrameType

import pytest

from pytest_dtfperf.session import signals


def install() -> Callable[[], None]:
    """Called when the first perf test is seen; gives what undoes it."""
    return signals.install(_leave)


def _leave(number: int, frame: FrameType | None) -> None:
    pytest.exit(f"{signal.Signals(number).name} received: everything that was started is ended", returncode=128 + number)
