"""This machine as a cluster."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Cluster, Lost, Resources
from pytest_dtfperf.errors import AllocationError
from pytest_dtfperf.testing.backends import BackendContract, start_parrots

TWO_HOSTS = ClusterConfig(name="twins", backend_keys={"hosts": 2}, devices_per_host=1)


class TestLocal(BackendContract):
    """The local backend does what every backend must."""

    keeps_secrets = False

    @pytest.fixture
    def cluster(self) -> Cluster:
        return named.open_cluster(TWO_HOSTS)


def test_hosts_on_one_machine_divide_its_cores() -> None:
    """Simulated hosts have no core in common while there are enough, and their start moves no other process."""
    mine = os.sched_getaffinity(0)
    with named.open_cluster(TWO_HOSTS).allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
        first, second = (set(eval_cores(line)) for line in parrots.receive_answers("cores"))
    assert first <= mine
    assert second <= mine
    assert first.isdisjoint(second) or len(mine) == 1
    assert os.sched_getaffinity(0) == mine


def test_one_host_has_all_cores() -> None:
    """The machine is one host with all cores, without the key `hosts`."""
    cluster = named.open_cluster(ClusterConfig(name="local"))
    with cluster.allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert set(eval_cores(parrots.receive_answers("cores")[0])) == os.sched_getaffinity(0)


def test_folders_of_the_cluster_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks have the cache and scratch folders of the cluster file, which are created."""
    monkeypatch.setenv("DTFPERF_SITE", str(tmp_path))
    config = ClusterConfig(name="local", cache_dir="$DTFPERF_SITE/cache", scratch_dir="$DTFPERF_SITE/tmp")
    with named.open_cluster(config).allocate(Resources(devices=1)) as allocation, start_parrots(allocation) as parrots:
        assert parrots.receive_answers("environment XDG_CACHE_HOME") == [f"{tmp_path}/cache".encode()]
        assert parrots.receive_answers("environment CUDA_CACHE_PATH") == [f"{tmp_path}/cache/cuda".encode()]
        assert parrots.receive_answers("environment TMPDIR") == [f"{tmp_path}/tmp".encode()]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cache", "tmp"]


def test_unusable_folder_is_refused_in_one_line() -> None:
    """An unusable folder is refused with the folder, the reason and the keys."""
    cluster = named.open_cluster(ClusterConfig(name="local", cache_dir="/proc/no"))
    with (
        pytest.raises(AllocationError, match=r"^/proc/no cannot be used: No such file.*\. Correct cache_dir or scratch_dir"),
        cluster.allocate(Resources(devices=1)),
    ):
        pass


def eval_cores(line: bytes | Lost) -> list[int]:
    assert isinstance(line, bytes)
    return [int(core) for core in line.split(b",")]


def test_another_stack_on_the_same_hosts_keeps_their_folders(tmp_path: Path) -> None:
    """Agents of a further stack have its variables, and the folders of clusters.toml."""
    config = ClusterConfig(name="local", scratch_dir=str(tmp_path / "scratch"))
    stack = replace(config, environment=["STACK=new"])
    with named.open_cluster(config).allocate(Resources(devices=1)) as allocation:
        shared = named.BACKENDS["local"].share_hosts(allocation, stack)
        source = "import os, sys; print(os.environ['STACK'], os.environ['TMPDIR'], flush=True); sys.stdin.read()"
        channel = shared.start([sys.executable, "-c", source])
        try:
            received = (channel.receive(60) for _ in range(10))  # None: a part of a line has come
            assert next(filter(None, received)) == (0, f"new {tmp_path / 'scratch'}".encode())
        finally:
            channel.close()
