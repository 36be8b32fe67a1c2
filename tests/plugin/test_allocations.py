"""Tests of allocations: when they are made and released, and how many are held at the same time."""

import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_dtfperf.clusters import local
from pytest_dtfperf.clusters.locks import LockHolder, lock_hosts
from pytest_dtfperf.testing.backends import wait_until
from tests.plugin.conftest import ENDS_S, INI, PerfTests
from tests.plugin.test_verdicts import records

CLOUD = """
[cloud]
backend = "pretend"
hosts = 6
devices_per_host = 1
device = "cpu"
dedicated = false
entry = "tests.plugin.toy_training:run"
training = { repeats = 2, batch_size = 10, warmup_steps = 1, steps = 4 }
"""

MANY = """
import pytest

@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5, 6])
def test_throughput(train, baseline, batch_size):
    baseline.check(train(model="trivial", gpus=1, batch_size=batch_size))
"""


@pytest.fixture
def cloud(perf: PerfTests) -> PerfTests:
    """Perf tests on a cluster of six hosts, of which two allocations may be held at once."""
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + CLOUD)
    (perf.folder / "perf" / "conftest.py").write_text("from tests.plugin import pretend\npretend.register()\n")
    perf.environment |= {"PRETEND_LOG": str(perf.folder / "pretend.log")}
    (perf.folder / "pytest.ini").write_text(f"{INI}dtfperf_cluster = cloud\n")
    return perf


def add_keys(cloud: PerfTests, *lines: str) -> None:
    """Add lines to the cluster's table."""
    clusters = cloud.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + "\n".join(lines) + "\n")


def read_notes(cloud: PerfTests) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cloud.folder / "pretend.log").read_text().splitlines()]


def list_allocations(cloud: PerfTests) -> list[tuple[int, int]]:
    """Return (devices, hosts for parameter servers) of each allocation."""
    return [(note["devices"], note["ps_hosts"]) for note in read_notes(cloud) if note["event"] == "allocated"]


def list_events(cloud: PerfTests) -> list[str]:
    return [note["event"] for note in read_notes(cloud)]


def count_at_once(notes: Sequence[dict[str, Any]]) -> int:
    """Return the largest number of allocations that were held at the same time."""
    held = most = 0
    for note in sorted(notes, key=lambda note: note["at_s"]):
        held += {"allocated": 1, "released": -1}.get(note["event"], 0)
        most = max(most, held)
    return most


def test_session_has_one_allocation_for_its_largest_test(cloud: PerfTests) -> None:
    """All tests share one allocation, sized for the largest test that is left after -k."""
    ended = cloud.run("--gpus=1,2,4", "-k", "not gpus4")
    assert ended.code == 0, ended.out
    assert list_allocations(cloud) == [(2, 0)]
    assert list_events(cloud) == ["requested", "allocated", "released"]


@pytest.mark.parametrize("ps_per_host, hosts", [([], 3), (["ps_per_host = 2"], 2)], ids=["one each", "two each"])
def test_separate_parameter_servers_are_counted_exactly(cloud: PerfTests, ps_per_host: list[str], hosts: int) -> None:
    """With parameter servers on separate hosts the allocation has as many as the largest number of them fills."""
    add_keys(cloud, "ps_on_worker_hosts = false", *ps_per_host)
    ended = cloud.run("--gpus=2", "--num-ps=1,3")
    assert ended.code == 0, ended.out
    assert list_allocations(cloud) == [(2, hosts)]


def test_too_many_separate_parameter_servers_are_deselected(cloud: PerfTests) -> None:
    """A test that needs more hosts than exist is deselected with the numbers, and the allocation has the size of the others."""
    add_keys(cloud, "ps_on_worker_hosts = false")
    ended = cloud.run("--gpus=4", "--num-ps=1,3")
    ended.line("cloud has 6 hosts, gpus=4 and num_ps=3 on hosts of their own need 7")
    assert list_allocations(cloud) == [(4, 1)]


def test_each_measurement_has_its_own_allocation(cloud: PerfTests) -> None:
    """With allocation = "test" each measurement has an allocation of its size, and one is held at a time."""
    add_keys(cloud, 'allocation = "test"')
    ended = cloud.run("--gpus=1,2,4")
    assert ended.code == 0, ended.out
    assert list_allocations(cloud) == [(1, 0), (2, 0), (4, 0)]
    assert count_at_once(read_notes(cloud)) == 1


def test_hosts_without_a_measurement_are_refused(cloud: PerfTests) -> None:
    """With allocation = "test" access to the hosts outside of a measurement is an error with the remedy, and nothing is
    allocated."""
    add_keys(cloud, 'allocation = "test"')
    cloud.write("def test_hosts(cluster): assert cluster.hosts\n")
    ended = cloud.run()
    ended.line('its allocation = "test" allocates them again for each', 'set allocation = "session"')
    assert not (cloud.folder / "pretend.log").exists()


def test_test_with_more_devices_gets_a_larger_allocation(cloud: PerfTests) -> None:
    """A test that trains on more devices than are held gets a larger allocation, and one is held at a time."""
    cloud.write("def test_x(train):\n    train(model='trivial', gpus=1)\n    train(model='trivial', gpus=3)\n")
    ended = cloud.run()
    assert ended.code == 0, ended.out
    assert list_allocations(cloud) == [(1, 0), (3, 0)]
    assert count_at_once(read_notes(cloud)) == 1


def test_ended_allocation_is_replaced(cloud: PerfTests) -> None:
    """A test with a lost agent has an error, and the next one passes on a new allocation."""
    cloud.write(
        """
def test_a(train, monkeypatch):
    monkeypatch.setenv("TOY_DO", "lose agent")
    train(model="trivial", gpus=2)

def test_b(train):
    train(model="trivial", gpus=2, batch_size=3)
"""
    )
    ended = cloud.run("-v", PRETEND_DO="revoke")
    ended.line("test_a", "ERROR (INFRASTRUCTURE)")
    ended.line("1 passed, 1 error")
    ended.line("job 17 ended: node n3 failed: requesting other hosts")
    assert list_allocations(cloud) == [(2, 0), (2, 0)]
    assert count_at_once(read_notes(cloud)) == 1


def test_refused_allocation_is_not_requested_again(cloud: PerfTests) -> None:
    """A refused allocation is requested once, and each test has the cluster's message."""
    cloud.write(MANY)
    ended = cloud.run(PRETEND_DO="refuse")
    assert list_events(cloud) == ["requested"]
    ended.line("6 errors")
    assert ended.out.count("\ncloud: the limit of hosts is exceeded\n") == 6


def test_status_of_the_cluster_is_shown(cloud: PerfTests) -> None:
    """The status of a pending allocation is in the output."""
    cloud.run("--gpus=1").line("cloud: job 17 pending (Priority)")


@pytest.mark.parametrize("allocation", ["session", "test"])
def test_xdist_workers_have_their_own_allocations(cloud: PerfTests, allocation: str) -> None:
    """With -n 3 and max_jobs = 2 two allocations are held at a time, waiting workers show it, and all measure in one
    session."""
    add_keys(cloud, f'allocation = "{allocation}"')
    cloud.write(MANY)
    ended = cloud.run("-n3", "--update-baselines", TOY_WALL_S="0.3")
    assert ended.code == 0, ended.out
    assert count_at_once(read_notes(cloud)) == 2
    assert len({note["session"] for note in read_notes(cloud)}) == 1
    ended.line("gw", ": waiting for cloud: held by process")
    ended.line("gw", ": cloud: job 17 pending (Priority)")
    assert len(list((cloud.folder / "perf_results").iterdir())) == 1
    assert len(records(cloud)) == 6
    (file,) = (cloud.folder / "baselines").glob("*.json")
    assert len(json.loads(file.read_text())["entries"]) == 6
    assert ended.out.count("Baselines written") == 1


def test_two_names_of_one_machine_take_turns(perf: PerfTests) -> None:
    """A cluster with another name for this machine waits for its lock, shows the holder, and leaves no file."""
    clusters = perf.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text() + clusters.read_text().replace("[local", "[twin"))
    perf.write("def test_x(train): train(model='trivial')\n")
    tickets = perf.folder / "runtime" / "dtfperf"
    tickets.mkdir(mode=0o700)
    output = perf.folder / "output"
    with output.open("w") as out:
        with lock_hosts(local.get_machine(), 1, LockHolder.make_own("other", "test_of_another_session"), print, folder=tickets):
            process = perf.start("--cluster=twin", out=out.fileno())
            words = f"waiting for twin: held by process {os.getpid()} (test_of_another_session since "
            wait_until("it waits", lambda: words in output.read_text(), ENDS_S)
        assert process.wait(ENDS_S) == 0, output.read_text()
    assert "1 passed" in output.read_text()
    assert list(tickets.iterdir()) == []
