"""What a task still has to do when no other needs it any more, and before its process ends at once."""

from collections.abc import Callable

_ACTS: list[Callable[[], object]] = []


def at_departure(act: Callable[[], object]) -> None:
    """Have this done then. A process is one task of one training."""
    _ACTS.append(act)


def depart() -> None:
    """Do it all, the last first."""
    while _ACTS:
        _ACTS.pop()()
