"""Tests that the controller's work grows no faster than the number of hosts: counted are reads, comparisons, bytes and
messages."""

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.controller_load import CountedBackend
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.placement import PlacedTask
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.launch.link_rounds import plan_fans
from pytest_dtfperf.limits.limit import find_limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.messages import MessageReceiver
from pytest_dtfperf.messages.agent import AGENT
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec

CLUSTER = """
[sim]
backend = "{backend}"
hosts = {hosts}
gpus_per_host = 1
rates = {{ resnet50 = {rate} }}
seed = 1
"""


class CountedTasks(dict[str, int]):
    """Hold the host of each task, and count single reads."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.reads += 1
            yield each

    def values(self) -> Iterator[int]:  # type: ignore[override]  # only iterated
        return (self[each] for each in self)


class CountedName(str):
    """Hold the name of a host, and count its comparisons, also with itself."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedName.comparisons += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def make_config(folder: Path, hosts: int, *, rate: float = 200.0, backend: str = "simulated") -> ClusterConfig:
    (folder / "clusters.toml").write_text(CLUSTER.format(hosts=hosts, rate=rate, backend=backend))
    return named.load(folder / "clusters.toml")["sim"]


def count_reads(hosts: int) -> int:
    """Return the number of tasks that a receiver reads if each host reports its reserved port."""
    tasks = CountedTasks({f"worker:{host}": host for host in range(hosts)})
    receiver = MessageReceiver(AGENT, hosts)
    receiver.expect("r", tasks)
    for host in range(hosts):
        line = wire.encode({"event": "reserved", "host": host, "run": "r", "ports": [2222]})
        assert receiver.receive(host, line)
    return tasks.reads


def test_reserved_ports_read_each_task_once() -> None:
    """The number of ports of each host is counted once in a run, and not for each message."""
    assert count_reads(64) <= 64


def measure_planning(hosts: int) -> int:
    """Return the peak memory in bytes for planning rounds of links."""
    servers = [PlacedTask("ps", i, i, 0, (), 1) for i in range(hosts // 2)]
    workers = [PlacedTask("worker", i, i, 0, (), 1) for i in range(hosts)]
    tracemalloc.start()
    try:
        plan_fans([*servers, *workers])
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_planned_links_are_not_all_pairs() -> None:
    """Four times the hosts need less than eight times the memory for planning; pairs of hosts would need sixteen times."""
    assert measure_planning(512) < 8 * measure_planning(128)


def test_properties_of_hosts_compare_each_name_once(tmp_path: Path) -> None:
    """The properties of a host are found by its name, with at most two comparisons for each host."""
    config, resources = make_config(tmp_path, 32), Resources(devices=32, session="s")
    with (
        named.open_cluster(config).allocate(resources) as allocation,
        Launcher(allocation, config, resources) as launcher,
    ):
        CountedName.comparisons = 0
        placements = [launcher.collect_fingerprint([CountedName(host)]).placement for host in launcher.hosts]
    assert [node.name for placement in placements if placement for node in placement.nodes] == list(launcher.hosts)
    assert CountedName.comparisons <= 2 * 32


def test_limits_of_hosts_compare_each_name_a_few_times() -> None:
    """The limit of each host is computed from its own workers, which are not searched for among all workers."""
    names = [CountedName(f"h{number}") for number in range(64)]
    layout = Layout({f"worker:{number}": name for number, name in enumerate(names)})
    spec = Spec(model="resnet50", gpus=64, batch_size=32, variable_update="collective_all_reduce")
    CountedName.comparisons = 0
    assert "cores" in find_limit(spec, layout, Probes()).unknown
    assert CountedName.comparisons <= 8 * 64


@pytest.fixture
def counted() -> Iterator[CountedBackend]:
    BACKENDS.data["counted"] = found = CountedBackend()
    yield found
    del BACKENDS.data["counted"]


def test_hour_of_simulated_training_has_few_messages(tmp_path: Path, counted: CountedBackend) -> None:
    """An hour of virtual time has fewer than 50 messages for each host."""
    config, resources = make_config(tmp_path, 8, rate=0.4, backend="counted"), Resources(devices=8, session="s")
    spec = Spec(model="resnet50", gpus=8, batch_size=32, steps=50, warmup_steps=0, variable_update="independent")
    with (
        named.open_cluster(config).allocate(resources) as allocation,
        Launcher(allocation, config, resources) as launcher,
    ):
        run = launcher.run(spec, log_dir=tmp_path)
    assert run.elapsed_s > 3600
    assert counted.counts["messages"] < 50 * 8
