"""Tests that the controller's work grows no faster than the number of hosts: counted are reads, comparisons, bytes and
messages."""

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from benchmarks.controller_load import CountedBackend
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.placement import PlacedTask
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.probes import HostProbe, Probes, Reading
from pytest_dtfperf.datamodel.step_times import StepBreakdown, TaskTime, WorkKind
from pytest_dtfperf.explain.candidate_causes import find_slow_transfers
from pytest_dtfperf.explain.measurement_profile import CandidateCause, CandidateKind, Times, make_peer_times
from pytest_dtfperf.explain.probes import find_slower
from pytest_dtfperf.explain.step_events import align_clocks
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.launch.link_rounds import plan_fans
from pytest_dtfperf.limits.limit import find_limit
from pytest_dtfperf.limits.needs import Layout
from pytest_dtfperf.messages import MessageReceiver
from pytest_dtfperf.messages.agent import AGENT
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import Operation, OperationRun, TaskTrace, TracedStep

CLUSTER = """
[sim]
backend = "{backend}"
hosts = {hosts}
gpus_per_host = 1
rates = {{ resnet50 = {rate} }}
seed = 1
"""


class CountedReads(dict[Any, Any]):
    """Hold a mapping, and count single reads of its items."""

    reads = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.reads += 1
            yield each

    def values(self) -> Iterator[Any]:  # type: ignore[override]  # only iterated
        return (self[each] for each in self)

    def items(self) -> Iterator[tuple[Any, Any]]:  # type: ignore[override]  # likewise
        return ((each, self[each]) for each in self)


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
    tasks = CountedReads({f"worker:{host}": host for host in range(hosts)})
    receiver = MessageReceiver(AGENT, hosts)
    receiver.expect("r", tasks)
    for host in range(hosts):
        line = wire.encode({"event": "reserved", "host": host, "run": "r", "ports": [2222]})
        assert receiver.receive(host, line)
    return tasks.reads


def test_reserved_ports_read_each_task_once() -> None:
    """The number of ports of each host is counted once in a run, and not for each message."""
    assert count_reads(64) <= 64


def measure_memory(work: Callable[..., object], *arguments: object) -> int:
    """Return the peak memory in bytes of a call."""
    tracemalloc.start()
    try:
        work(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure_planning(hosts: int) -> int:
    """Return the peak memory in bytes for planning rounds of links."""
    servers = [PlacedTask("ps", i, i, 0, (), 1) for i in range(hosts // 2)]
    workers = [PlacedTask("worker", i, i, 0, (), 1) for i in range(hosts)]
    return measure_memory(plan_fans, [*servers, *workers])


def test_planned_links_are_not_all_pairs() -> None:
    """Four times the hosts need less than eight times the memory for planning; pairs of hosts would need sixteen times."""
    assert measure_planning(512) < 8 * measure_planning(128)


def measure_alignment(workers: int) -> int:
    """Return the peak memory in bytes to align the clocks of workers in an all-reduce, eight on each host."""
    names = [f"worker:{number}" for number in range(workers)]
    steps = [TracedStep(at, at, at + 90, 5, [OperationRun(0, at + 10, at + 10, at + 80)], []) for at in (0, 100)]
    traces = [
        TaskTrace(name, [Operation("all_reduce", "CollectiveReduceV2", f"{name}/GPU:0", ())], [], steps) for name in names
    ]
    known = {pair: 0 for host in range(0, workers, 8) for pair in permutations(names[host : host + 8], 2)}
    return measure_memory(align_clocks, traces, known)


def test_clocks_in_an_exchange_are_not_bounded_by_pairs_of_tasks() -> None:
    """Four times the workers need less than eight times the memory to align clocks; pairs of them would need sixteen times."""
    assert measure_alignment(512) < 8 * measure_alignment(128)


def test_candidate_causes_read_each_change_a_few_times() -> None:
    """The largest change of a candidate's workers is found without a search in all changes for each worker."""
    cells = CountedReads({(f"worker:{number}", kind): 0.1 for number in range(64) for kind in ("forward", "backward")})
    candidate = CandidateCause(CandidateKind.COMPUTE, cells)
    assert candidate.largest_s == pytest.approx(0.2)
    assert candidate.largest_of(("forward",)) == pytest.approx(0.1)
    assert cells.reads <= 4 * len(cells)


def test_times_of_peers_read_each_worker_a_few_times() -> None:
    """The median of the other workers is found without a search in all of them for each worker."""
    own = CountedReads({f"worker:{number}": {"forward": 0.1, "backward": 0.2} for number in range(64)})
    own["worker:3"] = {"forward": 0.3, "backward": 0.1, "input": 0.1}
    found = make_peer_times(Times(own, 0.4, {}))
    assert found.own["worker:3"] == {"forward": 0.1, "backward": 0.1}
    assert found.own["worker:0"] == {"forward": 0.1, "backward": 0.2, "input": 0.0}
    assert own.reads <= 8 * len(own)


def test_slow_transfers_read_each_task_a_few_times() -> None:
    """The links of each worker are found without a search in all tasks for each worker."""
    workers = [f"worker:{number}" for number in range(64)]
    tasks = CountedReads({worker: TaskTime(1.0, 0.1, {}) for worker in workers})
    breakdown = StepBreakdown(steps=5, wall_s=1.0, path=[], tasks=tasks, links=[], clock_error_s={})
    cells = {(worker, str(WorkKind.RECEIVE)): 0.1 for worker in workers}
    (found,) = find_slow_transfers(cells, workers, breakdown, breakdown, {})
    assert found.workers == sorted(workers)
    assert tasks.reads <= 4 * len(tasks)


def test_probes_of_known_hosts_read_no_other_host() -> None:
    """A host that was probed before is compared with its own probe, without a read of the others'."""
    hosts = {f"h{number}": HostProbe(readings={"memory": Reading(per_s=1e9, spread=0.0, repeats=5)}) for number in range(64)}
    before = CountedReads(hosts)
    assert not find_slower(Probes(hosts=before), Probes(hosts=hosts))
    assert before.reads <= len(hosts)


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
def counted_backend() -> Iterator[CountedBackend]:
    BACKENDS.data["counted"] = found = CountedBackend()
    yield found
    del BACKENDS.data["counted"]


def test_hour_of_simulated_training_has_few_messages(tmp_path: Path, counted_backend: CountedBackend) -> None:
    """An hour of virtual time has fewer than 50 messages for each host."""
    config, resources = make_config(tmp_path, 8, rate=0.4, backend="counted"), Resources(devices=8, session="s")
    spec = Spec(model="resnet50", gpus=8, batch_size=32, steps=50, warmup_steps=0, variable_update="independent")
    with (
        named.open_cluster(config).allocate(resources) as allocation,
        Launcher(allocation, config, resources) as launcher,
    ):
        run = launcher.run(spec, log_dir=tmp_path)
    assert run.elapsed_s > 3600
    assert counted_backend.counts["messages"] < 50 * 8
