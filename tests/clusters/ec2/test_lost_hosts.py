"""Lost hosts of EC2: their reason comes from Amazon's state of the instance."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from botocore.exceptions import EndpointConnectionError

from pytest_dtfperf.clusters.ec2 import cluster
from pytest_dtfperf.clusters.ec2.cluster import Ec2Allocation, Ec2Channel
from pytest_dtfperf.clusters.ec2.instances import Instance
from pytest_dtfperf.clusters.protocol import Channel, Host, LossReason, Lost
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.errors import AllocationError, AllocationOver, HostLost
from tests.clusters.ec2.test_launched import instance

RUNNING = [instance(0), instance(1)]
RECLAIMED = replace(RUNNING[1], state="shutting-down", reason="Server.SpotInstanceTermination: Spot interruption")
WORDS = "Amazon has taken spot instance i-1 in us-east-1a back: Server.SpotInstanceTermination: Spot interruption"


CUT_OFF = Lost(LossReason.CUT_OFF, "m1 answers no more")


class Line:
    """A channel with one host that sends a line, and one that is lost."""

    def __init__(self, nobody_left: bool = False) -> None:
        self._nobody_left = nobody_left
        self.how = CUT_OFF
        self.closed = False
        self._number = 0

    def send(self, line: bytes) -> None:
        if self._nobody_left:
            raise HostLost("no agent is left")

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        output: list[tuple[int, bytes | Lost]] = [(0, b"hello"), (1, b"last words"), (1, self.how), (0, b"still here")]
        self._number += 1
        return output[self._number - 1] if self._number <= len(output) else None

    def explain_silence(self, host: int) -> Lost | None:
        return None

    def close(self) -> None:
        self.closed = True


class SshAllocation:
    """The allocation of the SSH backend."""

    hosts: Sequence[Host] = [Host("i-0", "10.0.0.0"), Host("i-1", "10.0.0.1")]

    def __init__(self, line: Line | None = None) -> None:
        self._line = line

    def start(self, argv: Sequence[str]) -> Channel:
        if self._line is None:
            raise AllocationError("no way to i-1")
        return self._line


class Amazon:
    """Amazon's answers, one after the other; the last one is repeated."""

    def __init__(self, *answers: Sequence[Instance] | Exception) -> None:
        self._answers = list(answers)

    def __call__(self) -> Mapping[str, Instance]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return {each.id: each for each in answer}


PLACEMENT = {
    "region": "us-east-1", "zone": "us-east-1a", "instance_type": "g5.xlarge", "ami": "ami-1", "spot": False, "placement": None,
    "efa_interfaces": 0, "baseline_gbps": 2.5, "network": "Up to 10 Gigabit",
}  # fmt: skip


def make_allocation(amazon: Amazon, line: Line | None = None) -> Ec2Allocation:
    return Ec2Allocation(SshAllocation(line), RUNNING, amazon, PLACEMENT)


def receive_all(channel: Channel) -> list[tuple[int, bytes | Lost]]:
    found = []
    while line := channel.receive(0.0):
        found.append(line)
    return found


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amazon is looked at twice."""
    monkeypatch.setattr(cluster, "LATE_S", 0.01)


def test_hosts_are_those_of_the_ssh_backend() -> None:
    """Hosts are those of the SSH backend, and their fingerprints also have type, zone, network and image."""
    allocation = make_allocation(Amazon(RUNNING), Line())
    assert [host.address for host in allocation.hosts] == ["10.0.0.0", "10.0.0.1"]
    cloud = {"instance_type": "g5.xlarge", "zone": "us-east-1a", "placement": None, "efa_interfaces": 0, "baseline_gbps": 2.5}
    assert [host.fingerprint for host in allocation.hosts] == [
        Fingerprint(hardware=Hardware(cloud=cloud), software={"ami": "ami-1"})
    ] * 2


def test_lost_host_of_a_running_instance() -> None:
    """The message of a lost host is unchanged if its instance runs."""
    line = Line()
    channel = make_allocation(Amazon(RUNNING), line).start([])
    assert receive_all(channel) == [(0, b"hello"), (1, b"last words"), (1, CUT_OFF), (0, b"still here")]
    channel.close()
    assert line.closed


def test_reclaimed_spot_instance() -> None:
    """A reclaimed instance is lost for Amazon's reason, and the SSH backend's reason is its last line."""
    amazon = Amazon(RUNNING, RUNNING, [RUNNING[0], RECLAIMED])  # it tells a moment later than the line ends
    channel = make_allocation(amazon, Line()).start([])
    assert receive_all(channel) == [
        (0, b"hello"),
        (1, b"last words"),
        (1, b"(m1 answers no more)"),
        (1, Lost(LossReason.TAKEN_BACK, WORDS)),
        (0, b"still here"),
    ]


def test_order_to_lost_agents_has_amazons_reason() -> None:
    """An order without a living agent raises Amazon's reason."""
    channel = make_allocation(Amazon(RUNNING, [RUNNING[0], RECLAIMED]), Line(nobody_left=True)).start([])
    with pytest.raises(HostLost, match=f"no agent is left: {WORDS}"):
        channel.send(b"order")


def test_order_to_lost_agents_has_the_ssh_reason() -> None:
    """An order without a living agent raises the SSH backend's reason if all instances run."""
    channel = make_allocation(Amazon(RUNNING), Line(nobody_left=True)).start([])
    with pytest.raises(HostLost, match=r"^no agent is left$"):
        channel.send(b"order")


def test_silent_host_of_a_reclaimed_instance() -> None:
    """A silent host is lost for Amazon's reason if its instance was reclaimed."""
    channel = make_allocation(Amazon(RUNNING, [RUNNING[0], RECLAIMED]), Line()).start([])
    assert channel.explain_silence(0) is None
    assert channel.explain_silence(1) == Lost(LossReason.TAKEN_BACK, WORDS)


def test_start_on_ended_instances() -> None:
    """A start on ended instances raises AllocationOver with Amazon's reason."""
    with pytest.raises(AllocationOver, match=WORDS):
        make_allocation(Amazon([RUNNING[0], RECLAIMED]), Line()).start([])


def test_instances_that_end_together_have_their_own_reasons() -> None:
    """If several instances have ended, one error has all of them, each with its own reason."""
    ended = [replace(each, state="terminated", reason=f"reason of {each.id}") for each in RUNNING]
    with pytest.raises(AllocationOver, match=r"reason of i-0; .*reason of i-1") as caught:
        make_allocation(Amazon(ended), Line()).start([])
    assert caught.value.hosts == ["i-0", "i-1"]
    for each in ended:
        assert caught.value.describe_host(each.id) == f"instance {each.id} in us-east-1a is terminated: reason of {each.id}"


def test_order_has_no_reason_of_instances_that_were_left_out() -> None:
    """The reason of an instance that was left out before is not that of an order without a living agent."""
    left_out, kept = (replace(each, state="terminated", reason=f"reason of {each.id}") for each in RUNNING)
    channel = Ec2Channel(Line(nobody_left=True), ["i-1"], Amazon([left_out, kept]))
    with pytest.raises(HostLost, match=r"^no agent is left: instance i-1 in us-east-1a is terminated: reason of i-1$"):
        channel.send(b"order")


def test_instances_that_end_during_a_start() -> None:
    """A failure of ssh raises AllocationOver if an instance has ended."""
    with pytest.raises(AllocationOver, match=WORDS):
        make_allocation(Amazon(RUNNING, [RUNNING[0], RECLAIMED])).start([])


def test_failure_of_ssh_on_running_instances() -> None:
    """A failure of ssh keeps its own message if all instances run."""
    with pytest.raises(AllocationError, match="no way to i-1") as caught:
        make_allocation(Amazon(RUNNING)).start([])
    assert not isinstance(caught.value, AllocationOver)


def test_lost_host_without_an_answer_of_amazon() -> None:
    """A lost host is reported even if Amazon cannot be reached."""
    away = EndpointConnectionError(endpoint_url="https://ec2")
    channel = make_allocation(Amazon(RUNNING, away), Line()).start([])
    assert (1, CUT_OFF) in receive_all(channel)


def test_agent_that_ended_by_itself() -> None:
    """An agent that reports its end costs one query of Amazon, without a wait."""
    asked: list[int] = []

    def amazon() -> Mapping[str, Instance]:
        asked.append(1)
        return {each.id: each for each in RUNNING}

    line = Line()
    line.how = Lost(LossReason.ENDED, "the agent was killed by SIGKILL")
    channel = Ec2Allocation(SshAllocation(line), RUNNING, amazon, PLACEMENT).start([])
    assert receive_all(channel)[2] == (1, line.how)
    assert len(asked) == 2  # once before it was started


@pytest.mark.parametrize(
    "state, reason, words",
    [
        ("running", "", None),
        ("pending", "", None),
        (
            "terminated",
            "Client.UserInitiatedShutdown: User",
            "instance i-1 in us-east-1a is terminated: Client.UserInitiatedShutdown",
        ),
        ("stopped", "", "instance i-1 in us-east-1a is stopped: no reason is given"),
    ],
)
def test_ends_of_instances_are_explained(state: str, reason: str, words: str | None) -> None:
    """The message of an ended instance has Amazon's reason; a running one has none."""
    output = cluster.explain_end(replace(RUNNING[1], state=state, reason=reason))
    assert (output is None) is (words is None)
    assert (words or "") in (output or "")
