"""Which system a fingerprint speaks of, and whether two of them are the same.

A system is hardware: a cluster's name says nothing about what was in it last year. How many hosts took part is no part of
the name, because the devices are part of the spec; the software is none either, because its changes are what is tested.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

MEMORY_TOLERANCE = 0.10  # kernels and hypervisors take their part of the same bars before they report the rest ...
MEMORY_SLACK_GIB = 1  # ... and hosts report whole GiB, so that a few pages more can be one more of them
# What must match if both sides know it: virtual machines have no speed of their interface, old baselines no kind of CPU.
_WHERE_KNOWN = {"kind of CPU": "cpu_kind", "interconnect": "interconnect"}

# What makers write around the name of a CPU: trademarks, what it is, its clock (which is state, not identity).
_CPU_NOISE = re.compile(r"\((?:r|tm)\)|\bcpu\b|\bprocessor\b|@.*", re.IGNORECASE)


def system_name(hardware: Mapping[str, Any]) -> str:
    """A name for one host's hardware that can be a file's: `8x-nvidia-tesla-p100`, `cpu-amd-epyc-9b45-2c`."""
    counts = Counter(_slug(gpu["name"]) for gpu in hardware.get("gpus") or ())
    if counts:
        return "-and-".join(f"{count}x-{name}" for name, count in sorted(counts.items()))
    return f"cpu-{_slug(_CPU_NOISE.sub(' ', hardware.get('cpu') or ''))}-{hardware.get('cores') or 0}c"


def differences(expected_hardware: Mapping[str, Any], found_hardware: Mapping[str, Any]) -> list[str]:
    """What differs in the parts that must match, one phrase each: `cores: 4 then, 2 now`. Empty: comparable."""
    then, now = _identity(expected_hardware), _identity(found_hardware)
    found = [(part, then[part], now[part]) for part in then if then[part] != now[part]]
    parts = ["memory"] + (["GPU memory"] if then["gpus"] == now["gpus"] else [])  # of other GPUs, enough is said
    sizes = [(part, _gib(expected_hardware, part), _gib(found_hardware, part)) for part in parts]
    found += [(part, _size(a), _size(b)) for part, a, b in sizes if not _near(a, b)]
    told = _told_apart(expected_hardware, found_hardware)
    found += [(part, a, b) for part, a, b in told if a and b and (part != "kind of CPU" or then["cpu"] == now["cpu"])]
    return [phrase(*each) for each in found]


def phrase(part: str, then: str, now: str) -> str:
    """How a difference that forbids a comparison is said."""
    return f"{part}: {then} then, {now} now"


def unsure(then_hardware: Mapping[str, Any], now_hardware: Mapping[str, Any]) -> list[str]:
    """What only one side knows, of what need not be known, one phrase each: `interconnect Ethernet 10 Gb/s -> unknown`."""
    told = _told_apart(then_hardware, now_hardware)
    return [f"{part} {a or 'unknown'} -> {b or 'unknown'}" for part, a, b in told if not (a and b)]


def memory_changes(then_hardware: Mapping[str, Any], now_hardware: Mapping[str, Any]) -> list[str]:
    """Sizes of memory that differ by no more than is forgiven, one phrase each: `memory 62 GiB -> 61 GiB`."""
    sizes = [(part, _gib(then_hardware, part), _gib(now_hardware, part)) for part in ("memory", "GPU memory")]
    return [f"{part} {_size(a)} -> {_size(b)}" for part, a, b in sizes if a != b and _near(a, b)]


def software_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What changed in the software, one phrase each: `tensorflow 2.20.0 -> 2.21.0`. To be shown, never to be refused."""
    return [
        f"{name} {then.get(name) or 'none'} -> {now.get(name) or 'none'}"
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def _identity(hardware: Mapping[str, Any]) -> dict[str, str]:
    gpus = Counter(gpu["name"] for gpu in hardware.get("gpus") or ())
    cloud = hardware.get("cloud") or {}
    return {
        "cpu": hardware.get("cpu") or "unknown",
        "cores": str(hardware.get("cores") or "unknown"),
        "devices of shared cores": str(hardware.get("cpu_devices") or "none"),
        "gpus": ", ".join(f"{count} x {name}" for name, count in sorted(gpus.items())) or "none",
        "cloud": ", ".join(f"{name}={value}" for name, value in sorted(cloud.items()) if value is not None) or "none",
    }


def _told_apart(then_hardware: Mapping[str, Any], now_hardware: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What differs of that which need not be known, what is not being empty."""
    told = [(what, then_hardware.get(part) or "", now_hardware.get(part) or "") for what, part in _WHERE_KNOWN.items()]
    return [(what, then, now) for what, then, now in told if then != now]


def _gib(hardware: Mapping[str, Any], part: str) -> int:
    """0 where unknown; of several GPUs the smallest, which sets the pace."""
    if part == "memory":
        return hardware.get("memory_gib") or 0
    return min((gpu.get("memory_gib") or 0 for gpu in hardware.get("gpus") or ()), default=0)


def _near(then: int, now: int) -> bool:
    if not then or not now:
        return then == now
    return abs(now - then) <= max(MEMORY_TOLERANCE * then, MEMORY_SLACK_GIB)


def _size(gib: int) -> str:
    return f"{gib} GiB" if gib else "unknown"


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"
