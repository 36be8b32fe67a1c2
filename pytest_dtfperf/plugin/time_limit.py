"""pytest-timeout's time limit of a test, without the time that the test waits for its turn, for hosts, or for their agents.

These waits have limits of their own, and end as INFRASTRUCTURE. Only pytest-timeout's two hooks are used: one gives the timer's
settings, and both may be called to stop it and to set it again (pytest-timeout's README, "Extending pytest-timeout").
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest


class _Remaining(float):
    """Seconds that are left of a time limit, which messages show as the whole."""

    whole: float = 0.0

    @classmethod
    def of(cls, whole: float, left_s: float) -> "_Remaining":
        remaining = cls(max(left_s, 0.001))
        remaining.whole = getattr(whole, "whole", whole)
        return remaining

    def __str__(self) -> str:
        return str(self.whole)


@dataclass
class _Timer:
    """The timer of the test that runs in this process."""

    item: pytest.Item
    settings: Any  # pytest-timeout's own, a named tuple
    set_at_s: float


_RUNNING: list[_Timer] = []  # the one, if there is any


class TimeLimit:
    """Hooks of pytest-timeout, which are called where that plugin is."""

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> None:
        _RUNNING[:] = [_Timer(item, settings, monotonic())]

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> None:
        _RUNNING.clear()


@contextmanager
def stopped() -> Iterator[None]:
    """Stop the timer of the test that runs, if it has one, and let it go on with what was left of its time."""
    timer = _RUNNING[0] if _RUNNING else None
    if timer is None:
        yield
        return
    hook = timer.item.config.hook
    left_s = timer.settings.timeout - (monotonic() - timer.set_at_s)
    hook.pytest_timeout_cancel_timer(item=timer.item)
    try:
        yield
    finally:
        limit = _Remaining.of(timer.settings.timeout, left_s)
        hook.pytest_timeout_set_timer(item=timer.item, settings=timer.settings._replace(timeout=limit))
