"""What launching costs as hosts are added: placing tasks, the order they need, agents that start, an order and all answers.

Hosts are this machine, called so often; its cores are shared by all agents, so what is measured is their sum.
"""

import compileall
import os
import resource
import statistics
import time
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pytest_dtfperf
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, PlacedTask, place
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.agents import Agents, group_tasks_by_host, make_task_addresses, start_order
from pytest_dtfperf.messages.agent import StoppedMessage
from pytest_dtfperf.node import wire
from pytest_dtfperf.spec import Spec

HOSTS = (4, 16, 64, 128)
PS_PER_WORKER = 116 / 128  # the 2017 report's best for its largest run
TOY = "tests.node.toy_task:run"


def spec_of(workers: int) -> Spec:
    return Spec(model="inception3", batch_size=64, gpus=workers, num_ps=round(workers * PS_PER_WORKER))


def hosts_of(count: int) -> list[HostView]:
    return [HostView(f"nid{i:05}", f"10.128.0.{i}", cpus=tuple(range(24)), gpus=("0",)) for i in range(count)]


def order_of(spec: Spec, hosts: list[HostView], tasks: tuple[PlacedTask, ...]) -> bytes:
    ports = {host: range(40000, 40000 + len(on_host)) for host, on_host in group_tasks_by_host(tasks).items()}
    cluster = make_task_addresses(tasks, hosts, ports)
    order = start_order(
        tasks,
        hosts,
        run="0" * 12,
        spec=spec,
        cluster=cluster,
        injected_slowdowns={},
        checkpoint=None,
        cold=False,
        isolated=True,
    )
    return wire.encode({"order": "start", "run": "0" * 12, **order})


@pytest.mark.parametrize("workers", HOSTS)
def test_placement(benchmark: BenchmarkFixture, workers: int) -> None:
    """Placing the workers and parameter servers of a run; the report's largest, on 128 hosts, in less than 5 ms."""
    spec, hosts, config = spec_of(workers), hosts_of(workers), ClusterConfig(name="daint", fixed_ports=True)
    benchmark.pedantic(lambda: place(spec, hosts, config), rounds=50, warmup_rounds=2)


@pytest.mark.parametrize("workers", HOSTS)
def test_start_order(benchmark: BenchmarkFixture, workers: int) -> None:
    """Writing the one order that starts all tasks, which every host is sent; its size is noted."""
    spec, hosts = spec_of(workers), hosts_of(workers)
    tasks = place(spec, hosts, ClusterConfig(name="daint"))
    order = benchmark.pedantic(lambda: order_of(spec, hosts, tasks), rounds=20, warmup_rounds=2)
    benchmark.extra_info["bytes"] = len(order)


def children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def wait_for_answers(agents: Agents, count: int) -> None:
    """An order to all, heard out until each has answered."""
    agents.order("stop", run="none")
    while count:
        event = agents.wait_for_event(60.0)
        assert event, "an agent does not answer"
        assert isinstance(event, StoppedMessage)
        count -= 1


@pytest.fixture(scope="module")
def bytecode() -> None:
    """What is installed is compiled. A checkout may not be: where PYTHONDONTWRITEBYTECODE is set, every agent compiles anew."""
    for folder in (pytest_dtfperf.__path__[0], os.path.dirname(wire.__file__), Path(__file__).parents[1] / "tests" / "node"):
        compileall.compile_dir(folder, maxlevels=0, quiet=1)


@pytest.mark.usefixtures("bytecode")
@pytest.mark.parametrize("hosts", HOSTS)
def test_agents(benchmark: BenchmarkFixture, hosts: int) -> None:
    """Starting one agent per host, each with its zygote, until all have said hello; then one order and all answers to it."""
    config = ClusterConfig(name="local", entry=TOY, device="cpu", devices_per_host=1, backend_keys={"hosts": hosts})
    started: list[Agents] = []
    cpu_s: list[float] = []
    answers_s: list[float] = []

    def end() -> None:
        while started:
            began = time.perf_counter()
            wait_for_answers(started[-1], hosts)
            answers_s.append(time.perf_counter() - began)
            started.pop().close()
            cpu_s.append(children_cpu_s() - sum(cpu_s) - before_s)

    with Local(config).allocate(Resources(devices=hosts)) as allocation:
        before_s = children_cpu_s()
        benchmark.pedantic(lambda: started.append(Agents(allocation, config)), setup=end, rounds=3)
        end()
    benchmark.extra_info["an order and all answers, s"] = round(statistics.median(answers_s), 3)
    benchmark.extra_info["CPU per host, ms"] = round(statistics.median(cpu_s) / hosts * 1000, 1)
