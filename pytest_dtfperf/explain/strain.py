"""What a host was under: who else was at work there, heat, too little memory; and what it or its links can do less of.

Read from what `launch/disturbance.py` says in words of each run, and from what was probed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.evidence import Evidence


@dataclass(frozen=True)
class Strain:
    """Of one host."""

    host: str
    kind: str  # of the cause that it speaks for
    words: str


# A phrase of each disturbance, and the cause that it speaks for.
PHRASES: Mapping[str, str] = {
    "other processes used": "others",
    "(steal)": "others",
    "in use before the run": "others",
    "lowered": "clock",
    "memory pressure": "memory",
}


def of(side: Evidence) -> Sequence[Strain]:
    return list(_disturbed(side.disturbances))


def _disturbed(disturbances: Sequence[str]) -> Iterator[Strain]:
    """`host node03: other processes used ...`, `gpu 0 of node03: clocks lowered by heat ...`."""
    for words in dict.fromkeys(disturbances):
        where, _, _ = words.partition(": ")
        kind = next((kind for phrase, kind in PHRASES.items() if phrase in words), None)
        if kind:
            yield Strain(where.rpartition(" ")[2], kind, words)
