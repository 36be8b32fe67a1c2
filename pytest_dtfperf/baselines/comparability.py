"""Whether two measurements ran on what is the same for a comparison: what of a fingerprint must match, and what is only said.

Pure. A fingerprint has these parts, of which any may be missing:

    hardware   must match: what computes, how much of it, what joins the hosts. What one side does not know is only said
    software   the major versions of what does the arithmetic must match; all else is what gets tested, and is only said
    program    must match: the graphs that TensorFlow was given, and the settings it ran them with
    state      never looked at: load and clocks belong to a run, and taint it where they must
"""

import re
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.baselines import system

# Another major version is another program under an old name: nobody tests whether it is as fast. Drivers and kernels have
# majors too, but they are what users upgrade and then want to know about.
MAJORS = ("tensorflow", "cuda")
_UNKNOWN = "unknown"
_MOST_KINDS = 6  # of operations that are named where graphs differ: the largest differences say what was changed


def must_match(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What forbids a comparison of the same training, one phrase each: `cores: 4 then, 2 now`. Empty: comparable."""
    return other_hosts(then, now) + other_program(then, now)


def other_hosts(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What forbids it of the hosts and their software alone: for trainings of which each has a graph of its own."""
    return other_hardware(then, now) + _majors(then, now)


def other_hardware(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what differs in the hardware that must match, one phrase each. Empty: it is the same as far as that is known."""
    return system.differences(_part(then, "hardware"), _part(now, "hardware"))


def replaced(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what ends a series on the same hardware: `tensorflow 2.20.0 -> 3.0.0`, `training graph: 36 Conv2D less`."""
    before, after = _part(then, "software"), _part(now, "software")
    majors = [name for name in MAJORS if _majors_of(name, before, after)]
    return [f"{name} {before[name]} -> {after[name]}" for name in majors] + other_program(then, now)


def noted(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed, or may have, and forbids nothing: `tensorflow 2.20.0 -> 2.21.0`. To be shown, never to be refused."""
    return (
        system.software_changes(_part(then, "software"), _part(now, "software"))
        + system.memory_changes(_part(then, "hardware"), _part(now, "hardware"))
        + system.unsure(_part(then, "hardware"), _part(now, "hardware"))
        + _unsure_program(_part(then, "program"), _part(now, "program"))
    )


def other_program(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs in the graphs and in the settings that they run with, one phrase each."""
    return _other_program(_part(then, "program"), _part(now, "program"))


def _other_program(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Only what both know can differ: early versions kept a hash of their source, and an external command has nothing."""
    found = [_graphs(then, now)] if "graph" in then and "graph" in now and then["graph"] != now["graph"] else []
    for job in sorted(_part(then, "settings").keys() & _part(now, "settings").keys()):
        before, after = then["settings"][job], now["settings"][job]
        found += [
            system.phrase(f"{name} of {job} tasks", before.get(name, "unset"), after.get(name, "unset"))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        ]
    return found


def _graphs(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How two graphs differ: `training graph: 36 Conv2D less, 36 MatMul more`."""
    before, after = _part(then, "operations"), _part(now, "operations")
    changes = {kind: after.get(kind, 0) - before.get(kind, 0) for kind in {*before, *after}}
    largest = sorted((kind for kind in changes if changes[kind]), key=lambda kind: (-abs(changes[kind]), kind))
    words = [f"{abs(changes[kind])} {kind} {'more' if changes[kind] > 0 else 'less'}" for kind in largest[:_MOST_KINDS]]
    if len(largest) > _MOST_KINDS:
        words.append(f"and {len(largest) - _MOST_KINDS} kinds more")
    return f"training graph: {', '.join(words) or 'the same operations, with other attributes or connections'}"


def _unsure_program(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    if then.get("graph") == now.get("graph") and then.get("training") == now.get("training"):
        return []
    if "graph" in then and "graph" in now:
        return []
    return [f"training program {_program(then)} -> {_program(now)}"]


def _program(program: Mapping[str, Any]) -> str:
    """By what is known of it."""
    if "graph" in program:
        return f"graph {program['graph']}"
    return f"source {program['training']}" if "training" in program else _UNKNOWN


def _majors(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    before, after = _part(then, "software"), _part(now, "software")
    found = {name: _majors_of(name, before, after) for name in MAJORS}
    return [system.phrase(name, *majors) for name, majors in found.items() if majors]


def _majors_of(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return both major versions of a part of the software; None where they are the same, or one is not known."""
    before, after = _major(then.get(name)), _major(now.get(name))
    return (before, after) if before and after and before != after else None


def _major(version: str | None) -> str | None:
    """`2.x`; of mixed hosts, whose versions are joined, each: `1.x | 2.x`."""
    numbers = sorted({int(number) for number in re.findall(r"(?:^|\| )(\d+)", version or "")})
    return " | ".join(f"{number}.x" for number in numbers) or None


def _part(fingerprint: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part: Mapping[str, Any] = fingerprint.get(name) or {}
    return part
