"""The interface of a cluster: allocate hosts, start one command on each of them, and exchange lines with it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol


def _silent(words: str) -> None:
    """Nobody is watching."""


def _unpaid(bill: Mapping[str, Any]) -> None:
    """Nobody pays."""


@dataclass(frozen=True)
class Resources:
    """What an allocation must be able to hold, and whom it is for."""

    devices: int  # of the whole cluster
    separate_ps_hosts: int = 0  # hosts for parameter servers alone
    session: str = "unnamed"  # its id: in the names of jobs and instances, so that what an outage leaves can be found
    on_status: Callable[[str], object] = _silent  # called with a few words, now and then, while the hosts are waited for
    spent: Callable[[Mapping[str, Any]], object] = _unpaid  # called with what the hosts have cost, when they are given back


@dataclass(frozen=True)
class Host:
    """A machine that was lent."""

    name: str  # for people and logs
    address: str  # by which the tasks reach each other
    switch: str | None = None  # the network switch it hangs on, where the cluster knows
    fingerprint: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # what of it, part by part, only the cluster knows


class LossReason(Enum):
    """Why nothing more is heard of a host."""

    ENDED = "its process has left or was killed: the host itself is there"
    DEAF = "its process is there, but takes no orders"
    TAKEN_BACK = "the cluster lends it no longer: a job or an instance is over"
    CUT_OFF = "what carries its lines has ended, or takes none any more"
    SILENT = "no sign of life has come for too long"
    FLOODED = "it has sent more than anybody listens to"
    LIED = "it has sent what no process of ours sends"


@dataclass(frozen=True)
class Lost:
    """The end of what is heard of a host."""

    reason: LossReason
    words: str  # for people: "the agent was killed by SIGKILL"


class Channel(Protocol):
    """One process on every host, and the lines to and from all of them."""

    def send(self, line: bytes) -> None:
        """Send one line (without its end) to every host; an order names whom it is for.

        Called from two threads: orders from one, signs of life from another. A host that no longer listens is told by
        `receive`; raises `HostLost` when none is left that does.
        """

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        """The next line as (host index, line). A lost host is (host index, `Lost`), once. None: nothing came in time.

        What a lost host's process had said on stderr may come just before, as lines that are no JSON.
        """

    def why_silent(self, host: int) -> Lost | None:
        """Why nothing is heard of a host any more, if the cluster knows: asked before one is given up for its silence."""

    def close(self) -> None:
        """End every process below the channel. Called once, whatever happened; must not raise, must not hang."""


class Allocation(Protocol):
    """Hosts lent for the length of a `with` block."""

    @property
    def hosts(self) -> Sequence[Host]:
        """In placement order."""

    def start(self, argv: Sequence[str]) -> Channel:
        """Start `argv` once on every host. Each sees its index in the environment, as DTFPERF_HOST_INDEX.

        May be called again after a channel is closed. Raises `AllocationOver` when the hosts are no longer lent.
        """


class Cluster(Protocol):
    """Something that can lend hosts."""

    def allocate(self, resources: Resources) -> AbstractContextManager[Allocation]:
        """Lend hosts for the length of a `with` block. Raises `AllocationError`.

        Called once per session, or once per measurement where the cluster's `allocation` says so; again for hosts taken back.
        """
