"""Instances in use, over the SSH backend. When the connection to an instance ends, Amazon is asked for its state.

A spot instance that is taken back, or one that is terminated, looks like a lost host at first. Amazon's reason makes it a
failure of the cluster, and never a slow training.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from pytest_dtfperf.clusters.ec2 import refusals
from pytest_dtfperf.clusters.ec2.account import iterate_attempts
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Channel, LossReason, Lost
from pytest_dtfperf.clusters.ssh.cluster import SshBackend
from pytest_dtfperf.errors import AllocationError, AllocationOver, HostLost

LATE_S = 6.0  # how much later than the end of the connection Amazon may report that it has ended an instance

Poll = Callable[[], Mapping[str, Instance]]


class Ec2Allocation:
    """The instances of one run. `placement` holds the properties with an effect on speed that only Amazon knows."""

    def __init__(self, allocation: Allocation, instances: Sequence[Instance], poll: Poll, placement: Mapping[str, Any]) -> None:
        self._allocation = allocation
        self._instances = instances
        self._placement = placement
        self.hosts = [replace(host, fingerprint=make_fingerprint(placement)) for host in allocation.hosts]
        self._ids = [each.id for each in instances]
        self._poll = poll

    def copy_with(self, config: ClusterConfig, without: Collection[str] = ()) -> "Ec2Allocation":
        """Return the same instances, but some, with another stack."""
        allocation = SshBackend().share_hosts(self._allocation, config, without)
        left = [each for each, host in zip(self._instances, self.hosts, strict=True) if host.name not in without]
        return Ec2Allocation(allocation, left, self._poll, self._placement)

    def start(self, argv: Sequence[str]) -> Channel:
        self._refuse_if_over(0.0)
        try:
            return Ec2Channel(self._allocation.start(argv), self._ids, self._poll)
        except AllocationError:
            self._refuse_if_over(LATE_S / 3)  # most failed starts have another cause
            raise

    def _refuse_if_over(self, patience_s: float) -> None:
        for _ in iterate_attempts(patience_s, first_s=0.5):
            if found := list(filter(None, (explain_end(each) for each in _poll_if_reachable(self._poll).values()))):
                raise AllocationOver("; ".join(found))


class Ec2Channel:
    """The SSH backend's channel, with Amazon's reasons for lost hosts."""

    def __init__(self, channel: Channel, ids: Sequence[str], poll: Poll) -> None:
        self._channel = channel
        self._ids = ids
        self._poll = poll
        self._next: deque[tuple[int, bytes | Lost]] = deque()

    def send(self, line: bytes) -> None:
        try:
            self._channel.send(line)
        except HostLost as lost:
            if why := "; ".join(filter(None, map(explain_end, _poll_if_reachable(self._poll).values()))):
                raise HostLost(f"{lost}: {why}") from lost
            raise

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        if self._next:
            return self._next.popleft()
        heard = self._channel.receive(timeout_s)
        if heard is None:
            return None
        host, what = heard
        if isinstance(what, Lost) and (why := self._explain_loss(host, what.reason)):
            self._next.append((host, Lost(LossReason.TAKEN_BACK, why)))
            return host, f"({what.description})".encode()  # the SSH error is kept among the host's last lines
        return heard

    def why_silent(self, host: int) -> Lost | None:
        why = self._explain_loss(host, LossReason.SILENT)
        return Lost(LossReason.TAKEN_BACK, why) if why else self._channel.why_silent(host)

    def close(self) -> None:
        self._channel.close()

    def _explain_loss(self, host: int, reason: LossReason) -> str | None:
        """Return why Amazon ended a host, after a short wait; None if the host reported its agent's end."""
        patience_s = 0.0 if reason in (LossReason.ENDED, LossReason.UNRESPONSIVE) else LATE_S
        for _ in iterate_attempts(patience_s, first_s=0.5, most_s=2.0):
            found = _poll_if_reachable(self._poll).get(self._ids[host])
            if found and (why := explain_end(found)):
                return why
        return None


def make_fingerprint(placement: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the properties that comparable measurements share, and the image, which may be what is tested."""
    cloud = ("instance_type", "zone", "placement", "efa_interfaces", "baseline_gbps")
    return {"hardware": {"cloud": {name: placement[name] for name in cloud}}, "software": {"ami": placement["ami"]}}


def explain_end(instance: Instance) -> str | None:
    """Return why an instance has ended, for messages; None if Amazon reports no end."""
    if not instance.runs_no_more:
        return None
    if refusals.was_reclaimed(instance.reason):
        return f"Amazon has taken spot instance {instance.id} in {instance.zone} back: {instance.reason}"
    return f"instance {instance.id} in {instance.zone} is {instance.state}: {instance.reason or 'no reason is given'}"


def _poll_if_reachable(poll: Poll) -> Mapping[str, Instance]:
    """Return the instances' states; empty if Amazon does not answer, so that the lost host is reported in any case."""
    with suppress(ClientError, BotoCoreError):
        return poll()
    return {}
