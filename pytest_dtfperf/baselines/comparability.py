"""Whether two measurements ran on what is the same for a comparison: what of a fingerprint must match, and what is only said.

Pure. A fingerprint has these parts, of which any may be missing:

    hardware   must match: what computes, how much of it, what joins the hosts. What one side does not know is only said
    software   the major versions of what does the arithmetic must match; all else is what gets tested, and is only said
    program    must match: the code that trained
    state      never looked at: load and clocks belong to a run, and taint it where they must
"""

import re
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.baselines import system

# Another major version is another program under an old name: nobody tests whether it is as fast. Drivers and kernels have
# majors too, but they are what users upgrade and then want to know about.
MAJORS = ("tensorflow", "cuda")
_PROGRAMS = {"training": "training program"}
_UNKNOWN = "unknown"


def must_match(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What forbids a comparison, one phrase each: `cores: 4 then, 2 now`. Empty: comparable."""
    differing = _interconnects(then, now), _majors(then, now), _programs(then, now)
    found = [_phrase(*each) for part in differing for each in part if _UNKNOWN not in each[1:]]
    return system.differences(_part(then, "hardware"), _part(now, "hardware")) + found


def noted(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed, or may have, and forbids nothing: `tensorflow 2.20.0 -> 2.21.0`. To be shown, never to be refused."""
    unsure = [each for part in (_interconnects(then, now), _programs(then, now)) for each in part if _UNKNOWN in each[1:]]
    return (
        system.software_changes(_part(then, "software"), _part(now, "software"))
        + system.memory_changes(_part(then, "hardware"), _part(now, "hardware"))
        + [f"{what} {before} -> {after}" for what, before, after in unsure]
    )


_Difference = tuple[str, str, str]  # what, then, now


def _phrase(what: str, then: str, now: str) -> str:
    return f"{what}: {then} then, {now} now"


def _interconnects(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[_Difference]:
    return _differing("interconnect", *(_part(each, "hardware").get("interconnect") for each in (then, now)))


def _programs(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[_Difference]:
    return [
        difference
        for key, what in _PROGRAMS.items()
        for difference in _differing(what, *(_part(each, "program").get(key) for each in (then, now)))
    ]


def _majors(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[_Difference]:
    return [
        difference
        for name in MAJORS
        for difference in _differing(name, *(_major(_part(each, "software").get(name)) for each in (then, now)))
    ]


def _differing(what: str, then: str | None, now: str | None) -> list[_Difference]:
    return [(what, then or _UNKNOWN, now or _UNKNOWN)] if then != now else []


def _major(version: str | None) -> str | None:
    """`2.x`; of mixed hosts, whose versions are joined, each: `1.x | 2.x`."""
    numbers = sorted({int(number) for number in re.findall(r"(?:^|\| )(\d+)", version or "")})
    return " | ".join(f"{number}.x" for number in numbers) or None


def _part(fingerprint: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = fingerprint.get(name) or {}
    return part
