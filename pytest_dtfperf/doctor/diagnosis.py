"""The doctor's measurements: of every host, and of the links between hosts."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from pytest_dtfperf.formats import format_count
from pytest_dtfperf.launch.exposure import NetworkInterface
from pytest_dtfperf.messages.programs import FactsAnswer


@dataclass(frozen=True, kw_only=True)
class Disk:
    """The space in a folder that runs write to."""

    what: str
    folder: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """The hardware, software and state of a host."""

    hostname: str
    addresses: tuple[str, ...]
    interfaces: tuple[NetworkInterface, ...]
    python: str  # "3.11.9"
    executable: str
    tensorflow: str | None  # the package's version; a `TensorFlowTrial` shows whether it can be imported
    cores: int  # that a process there may use
    machine_cores: int
    load: float  # runnable processes of the whole machine, averaged over the last minute
    memory_bytes: int
    gpus: tuple[str, ...] | None  # their names; None: they cannot be listed, for the reason in `gpus_error`
    gpus_error: str | None
    disks: tuple[Disk, ...]
    unisolated: str | None  # why tasks cannot have a network of their own; None: they can
    unguarded: str | None  # why there cannot be a firewall around tasks' ports

    @classmethod
    def from_message(cls, message: FactsAnswer) -> Self:
        values = {name: value for name, value in vars(message).items() if name != "host"}
        gpus = None if message.gpus is None else tuple(gpu.name for gpu in message.gpus)
        disks = tuple(Disk(**vars(disk)) for disk in message.disks)
        interfaces = tuple(map(NetworkInterface.from_message, message.interfaces))
        lists = {"addresses": tuple(message.addresses), "interfaces": interfaces, "gpus": gpus, "disks": disks}
        return cls(**{**values, **lists})

    def find_interface(self, address: str) -> NetworkInterface | None:
        """Return the interface that has an address; None if none has."""
        return next((each for each in self.interfaces if address in each.addresses), None)


@dataclass(frozen=True)
class TensorFlowTrial:
    """The result of importing TensorFlow."""

    version: str | None = None
    gpus: int | None = None  # that it sees
    import_s: float | None = None
    error: str | None = None  # why it could not be imported
    last_lines: tuple[str, ...] = ()  # of the process that imported it


@dataclass(frozen=True)
class ClockOffset:
    """The difference between a host's clock and this machine's; positive if the host's is ahead."""

    s: float
    uncertainty_s: float  # half of the shortest round trip, the largest possible error


@dataclass
class HostDiagnosis:
    """The results of one host: a row of the table."""

    name: str
    address: str
    missing: str | None = None  # why later results are missing: not reached, lost, silent
    last_lines: tuple[str, ...] = ()  # of a missing host
    facts: HostFacts | None = None
    trial: TensorFlowTrial | None = None
    offset: ClockOffset | None = None
    ports: tuple[int, ...] = ()  # on which it listened for the others
    taken: tuple[int, ...] = ()  # on which another program listens
    has_address: bool = True  # whether one of its interfaces has the address that tasks use
    sees: frozenset[int] | None = None  # the hosts with files that it sees in the folder
    troubles: tuple[str, ...] = ()  # checks that failed, with the reasons


@dataclass(frozen=True)
class PortAttempt:
    """A host's attempt to connect to a port of another host."""

    source: int
    target: int
    port: int
    error: str | None = None


@dataclass(frozen=True)
class HostLink:
    """The link from one host to another, measured while no other link of either was in use."""

    source: int
    target: int
    round_trip_s: float | None = None  # median
    echoes: int = 0  # number of round trips
    bytes: int = 0  # that arrived
    counted_s: float = 0.0  # duration of the count, by the receiver's clock
    error: str | None = None

    @property
    def bits_per_s(self) -> float | None:
        return 8 * self.bytes / self.counted_s if self.counted_s and self.error is None else None


@dataclass(kw_only=True)
class Diagnosis:
    """The results of all hosts."""

    cluster: str
    hosts: list[HostDiagnosis]
    backend: str = "ssh"  # that allocates its hosts
    network: str | None = None  # the setting of clusters.toml for which hosts may reach tasks there
    interface: str | None = None  # the setting of clusters.toml for the interface that tasks use
    folder: str = "~"  # in which the hosts searched each other's files
    reached: list[PortAttempt] = field(default_factory=list)
    links: list[HostLink] = field(default_factory=list)  # one per ordered pair, the better of two measurements
    rounds: int = 0  # in which they were measured
    ring: bool = False  # every host with the next one; else every ordered pair

    @property
    def present(self) -> list[int]:
        """The hosts that have answered everything."""
        return [index for index, host in enumerate(self.hosts) if host.missing is None]


FAR_BELOW = 1 / 3


def find_slow_links(links: Mapping[tuple[int, int], float]) -> tuple[list[tuple[int, int]], float]:
    """Return the links that are far slower than usual, and the usual rate: the median of the faster half.

    The median of all would be wrong: with three hosts, one bad cable affects four of the six links.
    """
    rates = sorted(links.values())
    usual = statistics.median(rates[len(rates) // 2 :] or [0.0])
    return sorted(pair for pair, rate in links.items() if rate < FAR_BELOW * usual), usual


NAMED = 6  # hosts or pairs that are named; more are only counted


def end_sentence(text: str) -> str:
    """Return the text with a full stop, if it has no end mark."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def format_bits_per_s(bits_per_s: float) -> str:
    """Format a rate: `94.1 Mbit/s`, `9.41 Gbit/s`."""
    for unit, least in (("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bits_per_s >= least:
            return f"{bits_per_s / least:.3g} {unit}" if bits_per_s < 1000 * least else f"{bits_per_s / least:.0f} {unit}"
    return f"{bits_per_s / 1e3:.3g} kbit/s"


def format_bytes(count: int) -> str:
    """Format a size: `1.5 GiB`, `120 MiB`."""
    gib = count / (1 << 30)
    return f"{gib:.3g} GiB" if 1 <= gib < 1000 else f"{gib:.0f} GiB" if gib >= 1 else f"{count / (1 << 20):.0f} MiB"


def join_groups(groups: dict[str, list[HostDiagnosis]]) -> str:
    return "; ".join(f"{value} on {format_hosts(hosts)}" for value, hosts in groups.items())


def format_hosts(hosts: Sequence[HostDiagnosis]) -> str:
    return ", ".join(host.name for host in hosts) if len(hosts) <= NAMED else f"{len(hosts)} hosts ({hosts[0].name}, ...)"


def indent_lines(lines: str) -> str:
    return "".join(f"\n    {line.strip()}" for line in lines.splitlines())


def format_gpus(count: int) -> str:
    return format_count(count, "GPU")


def format_are(count: int) -> str:
    return {0: "is none", 1: "is 1"}.get(count, f"are {count}")
