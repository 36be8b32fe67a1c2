"""What hosts and links were under: who else was at work there, heat, too little memory, limits; what they can do less of.

Read from what is said of each run in words (`launch/disturbance.py`) and from what was probed (`probes.py`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.evidence import Evidence
from pytest_dtfperf.explain.probes import ALL, Limited, Slower, differences, limited

_LOWER_CLOCK = 0.05  # of the clock then: what boosting differs by from one minute to the next
_HAD_THE_CORE = 0.9  # of the time of a probe: with less, it was not the core that was slow


@dataclass(frozen=True)
class Strain:
    """Of one host, or of the link between two."""

    hosts: Sequence[str]
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


def strains(then: Evidence, now: Evidence) -> Sequence[Strain]:
    found = list(_disturbed(now.disturbances))
    if then.probes and now.probes:
        found += _clocks(then, now)
        found += [_limited(each) for each in limited(then.probes, now.probes)]
        found += [_slower(each) for each in differences(then.probes, now.probes)]
    return found


def _disturbed(disturbances: Sequence[str]) -> Iterator[Strain]:
    """`host node03: other processes used ...`, `gpu 0 of node03: clocks lowered by heat ...`."""
    for words in dict.fromkeys(disturbances):
        where, _, what = words.partition(": ")
        kind = next((kind for phrase, kind in PHRASES.items() if phrase in words), None)
        if kind:
            yield Strain([where.rpartition(" ")[2]], kind, what if where.startswith("host ") else words)


def _clocks(then: Evidence, now: Evidence) -> Iterator[Strain]:
    assert then.probes
    assert now.probes
    for host, probe in now.probes.hosts.items():
        before = then.probes.hosts[host].clock_hz if host in then.probes.hosts else None
        if before and probe.clock_hz and probe.clock_hz < (1 - _LOWER_CLOCK) * before:
            yield Strain([host], "clock", f"clock {probe.clock_hz / 1e9:.1f} of {before / 1e9:.1f} GHz")


def _limited(found: Limited) -> Strain:
    before = "unlimited" if found.before is None else found.before
    kind = "memory" if "memory" in found.name else "others"
    return Strain([found.host], kind, f"a limit of {found.host}: {found.name.replace('_', ' ')} {found.now}, {before} before")


def _slower(found: Slower) -> Strain:
    lost = f"{found.words} {100 * found.loss:.0f} % slower than {found.against} was, when probed"
    if found.name == "link":
        return Strain([end for end in found.location.split(">") if end != ALL], "link", f"{found.location}: {lost}")
    starved = found.cpu_share is not None and found.cpu_share < _HAD_THE_CORE
    kinds = {"memory": "memory", "input": "input"}
    return Strain([found.location], "others" if starved else kinds.get(found.name, "compute"), f"{found.location}: {lost}")
