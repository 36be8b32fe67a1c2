"""What can be said where no step of either side was taken apart: what is known to differ, and what each of it would do.

With one such difference the whole change may be its doing, and that is said with low confidence. Of several nobody can tell
which: they are noted, and the change stays unexplained.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.strain import strains
from pytest_dtfperf.explain.words import with_host


@dataclass(frozen=True)
class Guess:
    """Something that differs."""

    kind: str
    location: str | None
    words: str
    most_s: float | None = None  # of a step that it can be at most; None: not known


def guesses(then: Evidence, now: Evidence) -> Sequence[Guess]:
    return list(_guesses(then, now))


def _guesses(then: Evidence, now: Evidence) -> Iterator[Guess]:
    for task, seconds in now.sleeps.items():
        if seconds > then.sleeps.get(task, 0.0):
            words = f"{with_host(task, now.hosts)} was told to sleep {seconds:g} s in every step (DTFPERF_SLOWDOWN)"
            yield Guess("straggler", task, words, seconds - then.sleeps.get(task, 0.0))
    if now.program_changes:
        yield Guess("program", None, f"another program is trained: {'; '.join(now.program_changes)}")
    if now.hardware_changes:
        yield Guess("hardware", None, f"other hardware: {'; '.join(now.hardware_changes)}")
    if now.software_changes:
        yield Guess("software", None, f"versions differ: {', '.join(now.software_changes)}")
    for each in strains(then, now):
        yield Guess(each.kind, each.hosts[0] if len(each.hosts) == 1 else None, f"{' and '.join(each.hosts)}: {each.words}")
