"""Steps that stand out among a worker's steps, and whether they come in a period. Pure."""

from dataclasses import dataclass

from pytest_dtfperf.plain import Plain


@dataclass(frozen=True, kw_only=True)
class Pause(Plain):
    """A step that was much longer than those around it."""

    step: int  # among the measured ones; the first is 1
    seconds: float  # by which it was longer than usual
    worker: str | None  # whose own time made it so; None: everybody's, or nobody knows


@dataclass(frozen=True, kw_only=True)
class Period(Plain):
    """Pauses that come again and again."""

    steps: float  # from one to the next
    seconds: float  # likewise
    pauses: int  # that keep to it
    worker: str | None  # whose they are; None: everybody's, or nobody knows
