"""The results of a qualification: which hosts and links of a cluster are slower than their peers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pytest_dtfperf.codec import JsonData, describe

_rate: dict[str, Any] = {"above": 0, "at_most": 1e24}
_loss: dict[str, Any] = {"at_least": -1e9, "at_most": 1}  # below 0: faster


class HostVerdict(StrEnum):
    """Whether a host is as fast as its peers."""

    FIT = "FIT"
    SLOW = "SLOW"
    NOT_JUDGED = "NOT_JUDGED"


@dataclass(frozen=True, kw_only=True)
class CapacityResult(JsonData):
    """One capacity of a host, beside those of its peers: the hosts of the same hardware."""

    verdict: HostVerdict = field(metadata=describe("FIT, SLOW or NOT_JUDGED"))
    per_s: float | None = field(default=None, metadata=describe("Median of its readings: FLOP/s, bytes/s, images/s", **_rate))
    peers_per_s: float | None = field(default=None, metadata=describe("Median of its peers, in the same unit", **_rate))
    loss: float | None = field(default=None, metadata=describe("1 - per_s / peers_per_s. Below 0: it is faster", **_loss))
    error: float | None = field(
        default=None, metadata=describe("Standard error of the loss, as a fraction", at_least=0, at_most=1e9)
    )
    readings: int = field(default=0, metadata=describe("How many readings it rests on", at_least=0))
    reason: str = field(default="", metadata=describe("Of the verdict", omit_empty=True))


@dataclass(frozen=True, kw_only=True)
class PairResult(JsonData):
    """A link from one host to another that is slow although both are fast with other hosts, or a slow pair in a training."""

    hosts: Sequence[str] = field(metadata=describe("From, to; or the two hosts of a training"))
    name: str = field(metadata=describe("link, or training"))
    per_s: float = field(metadata=describe("bytes/s or images/s", **_rate))
    expected_per_s: float = field(metadata=describe("What both do with other hosts, in the same unit", **_rate))
    verdict: HostVerdict = field(default=HostVerdict.SLOW, metadata=describe("SLOW, or NOT_JUDGED where it was not confirmed"))

    @property
    def loss(self) -> float:
        """The part of the expected rate that is missing."""
        return 1 - self.per_s / self.expected_per_s


@dataclass(frozen=True, kw_only=True)
class HostResult(JsonData):
    """One host with its verdict: SLOW if one capacity is; NOT_JUDGED if one could not be judged and none is slow."""

    verdict: HostVerdict = field(metadata=describe("FIT, SLOW or NOT_JUDGED"))
    kind: str = field(default="", metadata=describe("Its hardware: hosts are compared within their kind"))
    capacities: Mapping[str, CapacityResult] = field(
        default_factory=dict,
        metadata=describe("Name to the result: core.matmul, memory, ..., training, link in, link out, training in pairs"),
    )
    reason: str = field(default="", metadata=describe("Why it is not fit, for a person", omit_empty=True))
    clock_hz: float | None = field(default=None, metadata=describe("Mean of its cores' clocks", unit="Hz", above=0))
    most_clock_hz: float | None = field(default=None, metadata=describe("Their highest possible clock", unit="Hz", above=0))


@dataclass(frozen=True, kw_only=True)
class Qualification(JsonData):
    """The results of one qualification."""

    cluster: str = field(metadata=describe("Its name"))
    hosts: Mapping[str, HostResult] = field(metadata=describe("Host to its result"))
    pairs: Sequence[PairResult] = field(
        default_factory=list, metadata=describe("Slow pairs of hosts that are fast with others")
    )
    unknown_links: Mapping[str, str] = field(
        default_factory=dict,
        metadata=describe("Link `FROM>TO` that has no rate, to the reason. Of more than 16 hosts only those that failed"),
    )
    false_alarms: float = field(metadata=describe("Largest fraction of runs that call any fit host slow", above=0, below=1))
    seconds: float = field(default=0.0, metadata=describe("From the allocation to the last reading", unit="s", at_least=0))
    rounds: int = field(default=0, metadata=describe("Rounds of readings of each host", at_least=0))

    def list_hosts(self, verdict: HostVerdict) -> list[str]:
        return [name for name, host in self.hosts.items() if host.verdict is verdict]
