"""The capacities of hosts and links, as probed: `launch/probing.py` measures them, and docs/explaining.md describes how."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_dtfperf.codec import JsonData, describe


@dataclass(frozen=True, kw_only=True)
class Reading(JsonData):
    """One capacity, measured a few times in a row."""

    per_s: float = field(metadata=describe("Median of the repeats: FLOP/s, bytes/s or images/s", above=0, at_most=1e24))
    spread: float = field(metadata=describe("Half of (largest - smallest) / median", at_least=0, at_most=1e6))
    repeats: int = field(metadata=describe("Number of repeats", at_least=1))
    how: Mapping[str, float | str] = field(
        default_factory=dict, metadata=describe("Threads, bytes, ...: readings that differ in it are not compared")
    )
    cpu_share: float | None = field(
        default=None,
        metadata=describe(
            "Fraction of its cores' time that it had; below 1, other processes used the cores, or it reached a limit",
            at_least=0,
            at_most=2,
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Link(Reading):
    """Bytes per second over one link, or between a host and all others at the same time."""

    streams: Mapping[str, float] = field(
        default_factory=dict,
        metadata=describe("For several streams: host at the other end to its part of per_s", unit="bytes/s", at_least=0),
    )


ALL = "*"  # in the name of a link: all other hosts at the same time, as in "*>node07"


def make_link_name(source: str, target: str) -> str:
    """Return the name of a link in `Probes`, as in node1>node2. Either end may be `ALL`."""
    return f"{source}>{target}"


def split_link_name(name: str) -> tuple[str, str]:
    """Return the source and the target of a link."""
    source, _, target = name.partition(">")
    return source, target


@dataclass(frozen=True, kw_only=True)
class HostProbe(JsonData):
    """The capacities of one host."""

    readings: Mapping[str, Reading] = field(
        default_factory=dict, metadata=describe("Name of a capacity to its reading, as in core.matmul or gpu.0.matmul")
    )
    clock_hz: float | None = field(
        default=None, metadata=describe("Mean of its cores' clocks while all of them computed", unit="Hz", above=0)
    )
    most_clock_hz: float | None = field(default=None, metadata=describe("Their highest possible clock", unit="Hz", above=0))
    limits: Mapping[str, float | str] = field(
        default_factory=dict, metadata=describe("Limits such as cpu_quota_cores, open_files; absent: unlimited")
    )
    others_cores: float | None = field(
        default=None, metadata=describe("Work of other processes on its cores during the probe", unit="cores", at_least=0)
    )
    unknown: Mapping[str, str] = field(default_factory=dict, metadata=describe("Capacity without a measurement to the reason"))


@dataclass(frozen=True, kw_only=True)
class Probes(JsonData):
    """The probes of the hosts and links of one measurement."""

    hosts: Mapping[str, HostProbe] = field(default_factory=dict, metadata=describe("Host to its probe"))
    links: Mapping[str, Link] = field(
        default_factory=dict,
        metadata=describe(
            "node01>node07: one pair alone; *>node07: all others to it (fan-in); node07>*: it to all others (fan-out)"
        ),
    )
    unknown: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("A host, a link, or * for all of them to the reason for a missing probe")
    )
    seconds: float = field(default=0.0, metadata=describe("Duration of all probes", unit="s", at_least=0, at_most=1e9))
