"""What the doctor has seen: of every host, and of the way from every host to others."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.exposure import NetworkInterface


@dataclass(frozen=True, kw_only=True)
class Disk:
    """Room in one folder that runs write to."""

    what: str
    folder: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a host is, and in which state."""

    hostname: str
    addresses: tuple[str, ...]
    interfaces: tuple[NetworkInterface, ...]
    python: str  # "3.11.9"
    executable: str
    tensorflow: str | None  # the package's version; whether it can be imported is a `Trial`
    cores: int  # that a process started there may use
    machine_cores: int
    load: float  # runnable processes of the whole machine, averaged over the last minute
    memory_bytes: int
    gpus: tuple[str, ...] | None  # their names; None: they cannot be listed, for the reason in `gpus_error`
    gpus_error: str | None
    disks: tuple[Disk, ...]
    unisolated: str | None  # why tasks can have no network for themselves alone; None: they can
    unguarded: str | None  # why there can be no firewall around tasks' ports

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Self:
        values = {each.name: event[each.name] for each in fields(cls)}
        gpus = None if values["gpus"] is None else tuple(gpu["name"] for gpu in values["gpus"])
        disks = tuple(Disk(**disk) for disk in values["disks"])
        interfaces = tuple(map(NetworkInterface.from_event, values["interfaces"]))
        lists = {"addresses": tuple(values["addresses"]), "interfaces": interfaces, "gpus": gpus, "disks": disks}
        return cls(**{**values, **lists})

    def find_interface(self, address: str) -> NetworkInterface | None:
        """Return the interface that has an address; None if none has."""
        return next((each for each in self.interfaces if address in each.addresses), None)


@dataclass(frozen=True)
class TensorFlowTrial:
    """TensorFlow, imported for trial."""

    version: str | None = None
    gpus: int | None = None  # that it sees
    import_s: float | None = None
    error: str | None = None  # why it could not be imported
    last_lines: tuple[str, ...] = ()  # the last lines of the process that tried


@dataclass(frozen=True)
class Offset:
    """How far a host's clock is ahead of this machine's."""

    s: float
    uncertainty_s: float  # half of the shortest round trip: the truth is not further away than this


@dataclass
class HostSeen:
    """One host: one row of the table."""

    name: str
    address: str
    missing: str | None = None  # why there is no more of it: not reached, lost, silent
    last_lines: tuple[str, ...] = ()  # the last lines of one that is missing
    facts: Facts | None = None
    trial: TensorFlowTrial | None = None
    offset: Offset | None = None
    ports: tuple[int, ...] = ()  # on which it was listening for the others
    taken: tuple[int, ...] = ()  # on which it should have, but somebody else does
    has_address: bool = True  # whether an interface of it has the address that tasks use
    sees: frozenset[int] | None = None  # the hosts with files that it sees in the folder
    troubles: tuple[str, ...] = ()  # questions it could not answer, and why


@dataclass(frozen=True)
class Reach:
    """One host's attempt to connect to a port of another."""

    source: int
    target: int
    port: int
    error: str | None = None


@dataclass(frozen=True)
class HostLink:
    """One direction between two hosts, measured while no other link of either was."""

    source: int
    target: int
    round_trip_s: float | None = None  # median
    echoes: int = 0  # of so many
    bytes: int = 0  # that arrived
    counted_s: float = 0.0  # in this time, by the receiver's clock
    error: str | None = None

    @property
    def bits_per_s(self) -> float | None:
        return 8 * self.bytes / self.counted_s if self.counted_s and self.error is None else None


@dataclass(kw_only=True)
class Diagnosis:
    """All of it."""

    cluster: str
    hosts: list[HostSeen]
    backend: str = "ssh"  # what lends its hosts
    network: str | None = None  # the setting of clusters.toml for which hosts may reach tasks there
    interface: str | None = None  # the setting of clusters.toml for the interface that tasks use
    folder: str = "~"  # in which the hosts looked for each other's files
    reached: list[Reach] = field(default_factory=list)
    links: list[HostLink] = field(default_factory=list)  # one per ordered pair, the better where it was measured twice
    rounds: int = 0  # in which they were measured
    ring: bool = False  # every host with the next one; else every ordered pair
    stream_s: float = 0.0

    @property
    def present(self) -> list[int]:
        """The hosts that could be asked everything."""
        return [index for index, host in enumerate(self.hosts) if host.missing is None]


FAR_BELOW = 1 / 3


def far_below(links: Mapping[tuple[int, int], float]) -> tuple[list[tuple[int, int]], float]:
    """Return the links through which far less goes than is usual, and what is: the median of the faster half.

    Not the median of all: one bad cable among three hosts is in four of their six links.
    """
    rates = sorted(links.values())
    usual = statistics.median(rates[len(rates) // 2 :] or [0.0])
    return sorted(pair for pair, rate in links.items() if rate < FAR_BELOW * usual), usual


_NAMED = 6  # more hosts or pairs that are alike are counted


def sentence(text: str) -> str:
    """Return the text with a full stop, if it has no end mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def bits(bits_per_s: float) -> str:
    """`94.1 Mbit/s`, `9.41 Gbit/s`."""
    for unit, least in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= least:
            return f"{bits_per_s / least:.3g} {unit}" if bits_per_s < 1000 * least else f"{bits_per_s / least:.0f} {unit}"
    return f"{bits_per_s / 1e3:.3g} kbit/s"


def size(count: int) -> str:
    """`1.5 GiB`, `120 MiB`."""
    gib = count / (1 << 30)
    return f"{gib:.3g} GiB" if 1 <= gib < 1000 else f"{gib:.0f} GiB" if gib >= 1 else f"{count / (1 << 20):.0f} MiB"


def join_groups(groups: dict[str, list[HostSeen]]) -> str:
    return "; ".join(f"{value} on {names_of(hosts)}" for value, hosts in groups.items())


def names_of(hosts: Sequence[HostSeen]) -> str:
    return ", ".join(host.name for host in hosts) if len(hosts) <= _NAMED else f"{len(hosts)} hosts ({hosts[0].name}, ...)"


def pairs(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def indent_lines(lines: str) -> str:
    return "".join(f"\n    {line.strip()}" for line in lines.splitlines())


def gpus(count: int) -> str:
    return format_count(count, "GPU")


def are(count: int) -> str:
    return {0: "is none", 1: "is 1"}.get(count, f"are {count}")
