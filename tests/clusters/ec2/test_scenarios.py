"""Failures around launched instances, one scenario each, against the whole backend; nothing is left after any.

Scenarios without logins come first, then those with machines as instances.
"""

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from pytest_dtfperf.clusters.ec2 import contact, reap
from pytest_dtfperf.clusters.ec2.account import Account
from pytest_dtfperf.clusters.ec2.cluster import Ec2, InstanceGroup
from pytest_dtfperf.clusters.protocol import Channel, Lost
from pytest_dtfperf.clusters.ssh import endpoints
from pytest_dtfperf.errors import AllocationError, AllocationOver
from pytest_dtfperf.testing.backends import PARROT_COMMAND, ParrotChannel, start_parrots, wait_until
from tests.clusters.ec2.cloud.cloud import NOTHING, Cloud
from tests.clusters.ec2.cloud.datacenter import DataCenter
from tests.clusters.ec2.cloud.hands import client, describe, launch, state, wait_for
from tests.clusters.ec2.driver import Order
from tests.clusters.ec2.runs import KIND, SETTLE_S, Heard, backend, config
from tests.clusters.ec2.sessions import Session, Sessions, watchdogs
from tests.clusters.ssh.test_conformance import ROOT

A, B = "us-east-1a", "us-east-1b"
UNSEEN_S = 2.0  # how long the pretend Amazon hides new instances where that is the point
BLIND_CALLS = 7  # a first query of all instances, then by tag and by token, in two rounds: five times


@contextmanager
def lot(cloud: Cloud, cluster: Ec2 | None = None) -> Iterator[InstanceGroup]:
    """Two instances that run; nothing is left when the block ends."""
    with (cluster or backend(cloud)).provide_instances(Heard().resources()) as found:
        yield found
    assert cloud.list_resources() == NOTHING


def zones(lot: InstanceGroup) -> set[str]:
    return {describe(each.id)[each.id]["Placement"]["AvailabilityZone"] for each in lot.instances}


def reap_all(cloud: Cloud, settle_s: float = SETTLE_S) -> list[str]:
    """End all abandoned runs as the next session does, check that nothing is left, and return them."""
    ended = [left.run for left in reap.reap_runs(Account.open_region(cloud.region), settle_s=settle_s)]
    assert cloud.list_resources() == NOTHING
    return ended


# Instances without logins.


def test_throttled(cloud: Cloud) -> None:
    """Throttling of the launch, the wait and the end costs time and nothing else."""
    cloud.faults.throttle("RunInstances", times=2)
    cloud.faults.throttle("DescribeInstances", times=1)
    cloud.faults.throttle("TerminateInstances", times=1)
    with lot(cloud) as found:
        assert len(cloud.list_resources().instances) == len(found.instances) == 2
    assert len({call.parameters["ClientToken"] for call in cloud.list_calls("RunInstances")}) == 1


def test_no_room_in_the_first_zone(cloud: Cloud) -> None:
    """All instances are launched in the next zone, after one request in the first."""
    cloud.world.capacity[A, KIND] = 1
    with lot(cloud) as found:
        assert zones(found) == {B}
        assert len(cloud.list_resources().instances) == 2
        assert len(cloud.list_calls("RunInstances")) == 2


def test_no_room_anywhere(cloud: Cloud) -> None:
    """Nothing is launched if no zone has room for all, and everything that was made is deleted."""
    cloud.world.capacity |= {(A, KIND): 1, (B, KIND): 0}
    with pytest.raises(AllocationError, match="no zone of us-east-1 has room for 2"), lot(cloud):
        pass
    assert cloud.list_resources() == NOTHING


def test_accepted_then_terminated(cloud: Cloud) -> None:
    """Instances that end for want of room after they were accepted are launched in the next zone."""
    cloud.world.withdrawn = 1
    with lot(cloud) as found:
        assert zones(found) == {B}
        assert [cloud.states()[each.id] for each in found.instances] == ["running"] * 2
        wait_until("the first zone's are gone", lambda: len(cloud.list_resources().instances) == 2)


def test_interfaces_linger(cloud: Cloud) -> None:
    """A group that is still in use after its instances are terminated is deleted when it no longer is."""
    cloud.world.linger_s = 2.0
    with lot(cloud) as found:
        assert len(found.instances) == 2


def test_lost_answer(cloud: Cloud) -> None:
    """A launch with a lost answer is queried by its token, and makes no further instances."""
    cloud.faults.lose_answer("RunInstances", times=2)
    with lot(cloud) as found:
        assert set(cloud.list_resources().instances) == {each.id for each in found.instances}
        assert len(found.instances) == 2


def test_new_instances_are_not_seen_at_once(cloud: Cloud) -> None:
    """Instances that Amazon does not show yet are waited for, without a word of error."""
    cloud.world.hidden_calls, cloud.world.addressed_after_s = 3, 1.0
    with lot(cloud, backend(cloud, UNSEEN_S)) as found:
        assert all(each.public and each.private for each in found.instances)


def test_session_killed_before_the_answer(cloud: Cloud, sessions: Sessions) -> None:
    """A session that dies before the answer of its launch leaves a ledger by which its instances are ended."""
    hang = cloud.faults.hang_after("RunInstances")
    with sessions.begin(Order(config(cloud), SETTLE_S)) as session:
        hang.wait_until_executed()
        sessions.kill(session)
    hang.release()
    assert len(cloud.list_resources().instances) == 2
    assert len(reap_all(cloud)) == 1


def test_session_killed_between_answer_and_record(cloud: Cloud, sessions: Sessions) -> None:
    """A session that dies before it writes the answer leaves a ledger by which its instances are ended."""
    with _killed_at_launch(cloud, sessions) as session:
        assert session.code == -signal.SIGKILL
    assert len(cloud.list_resources().instances) == 2
    assert len(reap_all(cloud)) == 1


def test_empty_list_after_an_outage_is_not_final(cloud: Cloud, sessions: Sessions) -> None:
    """Instances that Amazon does not show after an outage are waited for, and ended."""
    with _killed_at_launch(cloud, sessions):
        cloud.world.blind_calls = 1
        assert describe() == {}
    assert len(cloud.list_resources().instances) == 2
    cloud.world.blind_calls = BLIND_CALLS
    assert len(reap_all(cloud, settle_s=10.0)) == 1


def test_watchdog_ends_instances_of_a_killed_session(cloud: Cloud, sessions: Sessions) -> None:
    """The watchdog of a killed session ends its instances."""
    with sessions.begin(Order(config(cloud), SETTLE_S, for_ever=True)) as session:
        sessions.wait_until_output(session, "up")
        assert len(cloud.list_resources().instances) == 2
        sessions.kill(session, with_watchdog=False)
        wait_until("the watchdog has ended", lambda: watchdogs() == [])
        assert cloud.list_resources() == NOTHING
    assert reap_all(cloud) == []


def test_living_session_is_not_reaped(cloud: Cloud, sessions: Sessions) -> None:
    """Reaping ends nothing of a session that is at work."""
    with sessions.begin(Order(config(cloud), SETTLE_S, for_ever=True)) as session:
        sessions.wait_until_output(session, "up")
        assert reap.reap_runs(Account.open_region(cloud.region), settle_s=SETTLE_S) == []
        assert len(cloud.list_resources().instances) == 2
        sessions.kill(session)
    assert len(reap_all(cloud)) == 1


def test_estimate_above_the_limit(cloud: Cloud) -> None:
    """An allocation with costs above the limit is refused before anything is made."""
    with pytest.raises(AllocationError, match="max_usd"), lot(cloud, backend(cloud, max_usd=0.5)):
        pass
    assert not [name for name in cloud.names() if not name.startswith(("Describe", "Get"))]


@contextmanager
def _killed_at_launch(cloud: Cloud, sessions: Sessions) -> Iterator[Session]:
    with sessions.begin(Order(config(cloud), SETTLE_S, die_before="note_result")) as session:
        sessions.wait_until_ended(session)
        sessions.kill(session)  # its watchdog
        yield session


# Instances that are machines.


def on_machines(cloud: DataCenter, **backend_keys: Any) -> Ec2:
    return backend(cloud, setup=[f"export PYTHONPATH={ROOT}"], **backend_keys)


def until_lost(channel: Channel, host: int) -> list[tuple[int, bytes | Lost]]:
    """Receive until the host is lost, and return all lines."""
    heard: list[tuple[int, bytes | Lost]] = []

    def is_lost() -> bool:
        heard.extend(filter(None, [channel.receive(0.5)]))
        return any(each[0] == host and isinstance(each[1], Lost) for each in heard)

    wait_until("the host is lost", is_lost, patience_s=90)
    return heard


def test_two_instances_work_together(datacenter: DataCenter) -> None:
    """Instances are launched and logged in to; each reaches the other's private address; then nothing is left."""
    heard = Heard()
    with on_machines(datacenter).allocate(heard.resources()) as allocation:
        shown = describe(*(host.name for host in allocation.hosts))
        assert [host.address for host in allocation.hosts] == [each["PrivateIpAddress"] for each in shown.values()]
        assert [shown[host.name]["AmiLaunchIndex"] for host in allocation.hosts] == [0, 1]
        with start_parrots(allocation) as parrots:
            assert parrots.receive_answers("environment DTFPERF_HOST_INDEX") == [b"0", b"1"]
        one, other = (datacenter.machines[host.name] for host in allocation.hosts)
        reach = f"read -r line </dev/tcp/{one.instance.private_ip}/22 && echo $line"
        assert "SSH-2.0" in other.run("timeout", "5", "bash", "-c", reach)
    assert datacenter.list_resources() == NOTHING
    assert heard.costs[0].backend == "ec2"


def test_injected_host_key_is_replaced(datacenter: DataCenter) -> None:
    """Each instance has a new host key after the first login, different from that of its user data."""
    with on_machines(datacenter).allocate(Heard().resources()) as allocation:
        machines = [datacenter.machines[host.name] for host in allocation.hosts]
        keys = [machine.run("cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1] for machine in machines]
        injected = machines[0].host_key.split()[1]
        assert len({injected, *keys}) == 3


def test_wrong_host_key(datacenter: DataCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with another host key than its instance's is not used."""
    monkeypatch.setattr(contact, "_STRANGER_S", 1.0)  # until it is certain that cloud-init takes no key
    datacenter.stranger = True
    with (
        pytest.raises(AllocationError, match="does not have the host key"),
        on_machines(datacenter).allocate(Heard().resources()),
    ):
        pass
    assert datacenter.list_resources() == NOTHING


def test_strangers_are_kept_out(datacenter: DataCenter) -> None:
    """A machine in the same network outside the allocation does not reach an instance's sshd."""
    (bystander,) = launch(datacenter, 1)
    with on_machines(datacenter).allocate(Heard().resources()) as allocation:
        wait_for("running", bystander)
        for address in describe(allocation.hosts[0].name)[allocation.hosts[0].name].values():
            if isinstance(address, str) and address.count(".") == 3 and address[0].isdigit():
                reach = f"timeout 1 bash -c 'read -r line </dev/tcp/{address}/22 && echo in' || echo out"
                assert datacenter.machines[bystander].run("bash", "-c", reach) == "out\n"
    client().terminate_instances(InstanceIds=[bystander])
    wait_for("terminated", bystander)
    assert datacenter.list_resources() == NOTHING


def test_instances_end_themselves(datacenter: DataCenter, sessions: Sessions) -> None:
    """Instances end themselves if session and watchdog are gone."""
    datacenter.minute_s = 0.05
    cluster = config(datacenter, max_hours=1)
    with sessions.begin(Order(cluster, SETTLE_S, for_ever=True)) as session:
        sessions.wait_until_output(session, "up")
        sessions.kill(session)
    over = {"terminated", "stopped"}
    wait_until("no instance runs any more", lambda: set(datacenter.states().values()) <= over)
    assert set(datacenter.states().values()) == {"terminated"}
    (reason,) = {each["StateReason"]["Code"] for each in describe().values()}
    assert reason == "Client.InstanceInitiatedShutdown"
    assert len(reap_all(datacenter)) == 1


def test_spot_interruption(datacenter: DataCenter) -> None:
    """A reclaimed spot instance is a lost host with Amazon's reason."""
    with on_machines(datacenter, spot=True).allocate(Heard().resources()) as allocation:
        with closing(allocation.start(PARROT_COMMAND)) as channel:
            ParrotChannel(channel, 2)
            datacenter.interrupt_spot(allocation.hosts[1].name)
            heard = until_lost(channel, 1)
            assert "has taken spot instance" in next(line.description for _, line in heard if isinstance(line, Lost))
        with pytest.raises(AllocationOver, match="SpotInstanceTermination"):
            allocation.start(PARROT_COMMAND)
    assert datacenter.list_resources() == NOTHING


def test_silent_instance_is_lost(datacenter: DataCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A silent machine of a running instance is a lost host, and the instance is ended."""
    sooner = tuple(word.replace("ServerAliveInterval=5", "ServerAliveInterval=1") for word in endpoints.SSH_OPTIONS)
    monkeypatch.setattr(endpoints, "SSH_OPTIONS", sooner)
    with on_machines(datacenter).allocate(Heard().resources()) as allocation:
        with closing(allocation.start(PARROT_COMMAND)) as channel:
            ParrotChannel(channel, 2)
            datacenter.crash(allocation.hosts[0].name)
            until_lost(channel, 0)
        assert state(allocation.hosts[0].name) == "running"
    assert datacenter.list_resources() == NOTHING


def test_kept_instances_are_allocated_again(datacenter: DataCenter, sessions: Sessions) -> None:
    """The kept instances of a killed session are allocated to the next one without a launch."""
    cluster = config(datacenter, keep=True)
    with sessions.begin(Order(cluster, SETTLE_S, log_in=True, for_ever=True)) as session:
        sessions.wait_until_output(session, "up")
        first = set(datacenter.list_resources().instances)
        sessions.kill(session)
    with on_machines(datacenter, keep=True).allocate(Heard().resources()) as allocation:
        assert {host.name for host in allocation.hosts} == first
    assert len(datacenter.list_calls("RunInstances")) == 1
    client().terminate_instances(InstanceIds=sorted(first))


def test_instance_without_its_gpus(datacenter: DataCenter, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without a driver is found out before anything is trained."""
    monkeypatch.setattr(contact, "_DRIVER_S", 0.5)  # for which a driver is waited for
    datacenter.gpus = 0
    with pytest.raises(AllocationError, match="shows 0 GPU"), on_machines(datacenter).allocate(Heard().resources()):
        pass
    assert datacenter.list_resources() == NOTHING
