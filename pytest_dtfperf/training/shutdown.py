"""What a task still has to do when no other needs it any more, and before its process ends at once."""

from collections.abc import Callable

_CALLBACKS: list[Callable[[], object]] = []


def at_shutdown(callback: Callable[[], object]) -> None:
    """Have this done then. A process is one task of one training."""
    _CALLBACKS.append(callback)


def run_at_shutdown() -> None:
    """Do it all, the last first."""
    while _CALLBACKS:
        _CALLBACKS.pop()()
