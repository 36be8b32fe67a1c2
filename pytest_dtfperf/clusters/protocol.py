"""The interface of a cluster: allocate hosts, start one command on each of them, and exchange lines with it."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.node import wire

PING_S = 1.0


def _ignore_status(message: str) -> None:
    """Drop a status message."""


@dataclass(frozen=True, kw_only=True)
class PaidInstance(JsonData):
    """An instance of a cloud in a bill."""

    id: str = field(metadata=describe("Amazon's id of the instance"))
    seconds: float = field(metadata=describe("Paid seconds", at_least=0))


@dataclass(frozen=True, kw_only=True)
class Bill(JsonData):
    """The costs of an allocation with a price, as far as its backend knows them."""

    backend: str = field(default="", metadata=describe("Backend of the hosts", omit_empty=True))
    run: str = field(default="", metadata=describe("Name of the allocation in the backend", omit_empty=True))
    placement: Mapping[str, str | float | bool | None] = field(
        default_factory=dict,
        metadata=describe(
            "Properties that two measurements must share for a comparison, as the backend knows them", omit_empty=True
        ),
    )
    usd: float = field(metadata=describe("Dollars until the hosts were released, or are known to have ended", at_least=0))
    seconds: float = field(default=0.0, metadata=describe("Seconds of all instances together", at_least=0, omit_empty=True))
    instances: Sequence[PaidInstance] = field(default=(), metadata=describe("Each instance", omit_empty=True))
    usd_per_hour: float = field(default=0.0, metadata=describe("Price of one instance", at_least=0, omit_empty=True))
    price_source: str = field(metadata=describe("Source of the price"))
    price_date: str = field(metadata=describe("Date of the price"))


def _ignore_bill(bill: Bill) -> None:
    """Drop a bill."""


@dataclass(frozen=True)
class Resources:
    """The requirements of an allocation, and the session that uses it."""

    devices: int  # of the whole cluster
    separate_ps_hosts: int = 0  # hosts for parameter servers only
    session: str = "unnamed"  # its id: in the names of jobs and instances, so that they can be found after an outage
    on_status: Callable[[str], object] = _ignore_status  # called with a short message while waiting for hosts
    spent: Callable[[Bill], object] = _ignore_bill  # called with the cost of the hosts when they are released
    may_lack_hosts: bool = False  # whether hosts that do not boot fail only a start on them: `Backend.share_hosts` omits them


@dataclass(frozen=True)
class Host:
    """An allocated machine."""

    name: str  # for messages and logs
    address: str  # by which the tasks reach each other
    switch: str | None = None  # the network switch it is connected to, if the cluster knows it
    fingerprint: Fingerprint = field(default_factory=Fingerprint)  # properties that only the cluster knows


class LossReason(Enum):
    """Why nothing more is received from a host."""

    ENDED = "its process has left or was killed: the host itself is there"
    UNRESPONSIVE = "its process is there, but takes no orders"
    TAKEN_BACK = "it is no longer allocated: a job or an instance is over"
    CUT_OFF = "the connection to it has ended, or takes no more lines"
    SILENT = "no sign of life has come for too long"
    FLOODED = "it has sent more than a host may send"
    PROTOCOL_ERROR = "it has sent what no process of this package sends"


@dataclass(frozen=True)
class Lost:
    """The loss of a host: nothing more is received from it."""

    reason: LossReason
    description: str  # for messages: "the agent was killed by SIGKILL"


class Channel(Protocol):
    """One process on every host, and the lines that are exchanged with all of them."""

    def send(self, line: bytes) -> None:
        """Send one line (without its end) to every host; an order names the hosts it is for.

        Called from two threads: orders from one, heartbeats from another. `receive` reports a host that takes no more lines.
        Raises `HostLost` when no host is left that does.
        """

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        """Return the next line as (host index, line), or None after `timeout_s`. A lost host is (host index, `Lost`), once.

        Lines that are not JSON may come before it: the end of the lost process's stderr.
        """

    def explain_silence(self, host: int) -> Lost | None:
        """Return why a host is silent, if the cluster knows. Called before a silent host is treated as lost."""

    def close(self) -> None:
        """End every process below the channel. Called once, whatever happened; must not raise, must not hang."""


class AllocationClock:
    """The monotonic clock of an allocation, in seconds: this machine's, unless a subclass has another."""

    is_virtual = False  # whether it does not advance while the controller computes, so that every wait takes the same real time

    def __call__(self) -> float:
        return time.monotonic()


class Allocation(Protocol):
    """Hosts that are allocated for the length of a `with` block. With a clock of their own, `clock` is an `AllocationClock`."""

    @property
    def hosts(self) -> Sequence[Host]:
        """The hosts in placement order."""

    def start(self, argv: Sequence[str]) -> Channel:
        """Start `argv` once on every host. Each sees its index in the environment, as DTFPERF_HOST_INDEX.

        May be called again after a channel is closed. Raises `AllocationOver` when the allocation has ended.
        """


def get_clock(allocation: Allocation) -> AllocationClock:
    """Return the clock of an allocation: this machine's, unless the allocation has its own."""
    clock: AllocationClock = getattr(allocation, "clock", AllocationClock())
    return clock


class Cluster(Protocol):
    """A cluster that can allocate hosts."""

    def allocate(self, resources: Resources) -> AbstractContextManager[Allocation]:
        """Allocate hosts for the length of a `with` block. Raises `AllocationError`.

        Called once per session, or per measurement if the cluster's `allocation` is "test"; again after hosts are reclaimed.
        """


@contextmanager
def send_heartbeats(channel: Channel) -> Iterator[None]:
    """Send heartbeats to all hosts of the channel during the block, every `PING_S` seconds."""
    over = threading.Event()

    def ping() -> None:
        with suppress(HostLost, AllocationError):  # the receiving thread notices it, too
            while not over.wait(PING_S):
                channel.send(wire.encode({"order": "ping"}))

    pulse = threading.Thread(target=ping, name="dtfperf-heartbeat", daemon=True)
    pulse.start()
    try:
        yield
    finally:
        over.set()
        pulse.join()
