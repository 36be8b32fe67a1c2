"""Hosts over ssh: addresses, environment, connections, and leftovers of earlier sessions."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.clusters.ssh import cluster
from pytest_dtfperf.clusters.ssh import cluster as ssh
from pytest_dtfperf.clusters.ssh.cluster import Ssh
from pytest_dtfperf.clusters.ssh.endpoints import Endpoint
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.messages.programs import HostSurvey
from pytest_dtfperf.node import processes, supervisor, sweep
from pytest_dtfperf.node.owner import Owner
from pytest_dtfperf.testing.backends import start_parrots, wait_until
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.node.handheld import TOY

SEES_FILES = [f"export PYTHONPATH={ROOT}"]
HOST = Endpoint("n1", "n1")
SURVEY = HostSurvey(hostname="n1.local", reached_at="192.0.2.7", addresses=["192.0.2.7", "10.1.2.3", "10.9.9.9"], left={})


def test_backend_ssh_opens_ssh(lab: Lab, tmp_path: Path) -> None:
    """A cluster with `backend = "ssh"` is opened as `Ssh`."""
    (tmp_path / "clusters.toml").write_text(lab.toml())
    config = named.pick(named.load(tmp_path / "clusters.toml"), "lab")
    assert isinstance(named.open_cluster(config), Ssh)


@pytest.mark.parametrize(
    ("backend_keys", "address"),
    [({}, "192.0.2.7"), ({"private_address": "10.0.0.0/8"}, "10.1.2.3"), ({"private_address": "10.9.0.0/16"}, "10.9.9.9")],
    ids=["as it was reached", "its first in a network", "its only one in a network"],
)
def test_address_is_found(backend_keys: Mapping[str, Any], address: str) -> None:
    """Tasks use the address that the controller has reached, or the host's own in the cluster file's network."""
    assert cluster.find_address(HOST, SURVEY, backend_keys) == address


def test_given_address_is_used() -> None:
    """An address in the cluster file is used without a query of the host."""
    assert (
        cluster.find_address(dataclasses.replace(HOST, address="a.b.c"), SURVEY, {"private_address": "10.0.0.0/8"}) == "a.b.c"
    )


def test_host_outside_the_network_is_refused() -> None:
    """A host outside the network is reported with its addresses."""
    with pytest.raises(
        AllocationError, match=r'n1 has no address in private_address = "172.16.0.0/12", only 192.0.2.7, 10.1.2.3'
    ):
        cluster.find_address(HOST, SURVEY, {"private_address": "172.16.0.0/12"})


def test_addresses_of_real_hosts(lab: Lab) -> None:
    """Each host has the address at which its sshd was reached."""
    with Ssh(lab.config()).allocate(Resources(devices=2)) as allocation:
        assert [host.address for host in allocation.hosts] == [machine.address for machine in lab.machines]


def test_addresses_in_a_network(lab: Lab) -> None:
    """Each host finds its own address in the network of the cluster file."""
    if not lab.machines[0].can_be_cut_off:
        pytest.skip("hosts that are this machine have its addresses")
    config = lab.config(private_address=f"{lab.machines[0].address.rsplit('.', 2)[0]}.0.0/16")
    with Ssh(config).allocate(Resources(devices=2)) as allocation:
        assert [host.address for host in allocation.hosts] == [machine.address for machine in lab.machines]


def test_sessions_of_dead_owners_are_abandoned() -> None:
    """Sessions of an ended process on this machine are abandoned; those of other or unknown processes are not."""
    me = Owner.read_own()
    mine, gone, container = me.text, me._replace(started=me.started - 1).text, me._replace(namespace="1", pid=4194304).text
    left = {mine: ["lives"], gone: ["a", "b"], container: ["far"], "": ["odd"], f"{me.host} x y": ["odder"]}
    assert cluster.find_abandoned_sessions(left) == ["a", "b"]


def test_names_in_the_environment_are_the_hosts() -> None:
    """Both sides call the marks of a session by the same names."""
    assert (ssh.SESSION, ssh.OWNER, ssh.CONTROLLER) == (sweep.SESSION, sweep.OWNER, supervisor.CONTROLLER)


def test_environment_of_the_hosts(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts get variables that tune training, not those of this machine or its user."""
    kept = {"TF_X": "1", "NCCL_X": "2", "XLA_X": "3", "GRPC_X": "4", "OMP_X": "5", "KMP_X": "6", "DTFPERF_X": "7"}
    away = {"AWS_SECRET_ACCESS_KEY": "s", "LD_LIBRARY_PATH": "/here", "HOME": "/here", "DTFPERF_OWNER": "me"}
    for name, value in {**kept, **away}.items():
        monkeypatch.setenv(name, value)
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        for name, value in kept.items():
            assert parrots.receive_answers(f"environment {name}") == [value.encode()]
        for name in ("AWS_SECRET_ACCESS_KEY", "LD_LIBRARY_PATH", "DTFPERF_OWNER"):
            assert parrots.receive_answers(f"environment {name}") == [b"(unset)"]
        assert parrots.receive_answers("environment HOME") != [b"/here"]
        assert parrots.receive_answers(f"environment {supervisor.CONTROLLER}") == [cluster.get_controller_id().encode()]


def test_environment_and_setup_are_not_in_argv(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor the set-up lines are in any command line, which all users can read."""
    monkeypatch.setenv("DTFPERF_TOKEN", "verysecret1")
    config = lab.config(setup=[*SEES_FILES, "export OTHER=verysecret2"])
    with Ssh(config).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("environment DTFPERF_TOKEN") == [b"verysecret1"]
        assert parrots.receive_answers("environment OTHER") == [b"verysecret2"]
        seen = [[_command(pid) for pid in pids] for pids in (lab["m1"].sessions(), _children())]
        assert all(map(any, seen)), "on the host, and here"
        assert not [words for commands in seen for words in commands if "verysecret" in words]


def test_one_connection_per_host(lab: Lab) -> None:
    """Each host has one ssh process, the same from allocation to training."""
    with Ssh(lab.config(setup=SEES_FILES)).allocate(Resources(devices=2)) as allocation:
        # A thread that ends hands its children on, and for a moment they have no parent.
        wait_until("each has one", lambda: len(_children()) == 2)
        first = _children()
        with start_parrots(allocation):
            assert _children() == first
    assert _children() == []


def test_unused_hosts_are_disconnected(lab: Lab) -> None:
    """An allocation that is released without a start leaves no connection."""
    with Ssh(lab.config()).allocate(Resources(devices=2)):
        pass
    assert _children() == []
    wait_until("no user is logged in", lambda: not any(machine.sessions() for machine in lab.machines))


def test_agents_survive_slow_setups_of_others(lab: Lab) -> None:
    """Agents start when all hosts are ready, so that no agent misses its heartbeat during another host's set-up."""
    slow = [f'case "$SSH_CONNECTION" in *" {lab["m2"].address} "*) sleep 7 ;; esac']
    config = dataclasses.replace(lab.config(setup=[*SEES_FILES, *slow], entry=TOY), heartbeat_timeout_s=5.0)
    with Ssh(config).allocate(Resources(devices=2)) as allocation:
        agents = Agents(allocation, config)
        try:
            assert len(agents.hosts) == 2
            assert agents.are_well()
        finally:
            agents.close()


def test_status_names_the_connected_hosts(lab: Lab) -> None:
    """The status shows the hosts that are being connected."""
    messages: list[str] = []
    with Ssh(lab.config()).allocate(Resources(devices=2, on_status=messages.append)):
        assert messages[0] == "connecting to m1, m2"


def test_owner_is_this_process() -> None:
    """The hosts' processes are marked with the controller's id."""
    assert cluster.get_controller_id() == Owner.read_own().text


def _children() -> list[int]:
    """This process's ssh processes."""
    mine = [each.pid for each in processes.list_descendants(os.getpid()) if each.parent == os.getpid()]
    return sorted(pid for pid in mine if _command(pid).startswith("ssh "))


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""
