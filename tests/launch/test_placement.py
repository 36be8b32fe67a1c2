"""Which task runs where. Read the tables as the specification."""

from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.launch.placement import HostView, PlacedTask, place
from pytest_dtfperf.spec import Spec


def spec(gpus: int, num_ps: int, variable_update: str = "parameter_server") -> Spec:
    return Spec(model="trivial", batch_size=32, gpus=gpus, num_ps=num_ps, variable_update=variable_update)


def cpu_hosts(count: int, cores: int) -> list[HostView]:
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(cores))) for i in range(count)]


def gpu_hosts(count: int, gpus: int, cores: int = 8) -> list[HostView]:
    visible = tuple(map(str, range(gpus)))
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(cores)), gpus=visible) for i in range(count)]


def config(**settings: Any) -> ClusterConfig:
    return ClusterConfig(name="place", **settings)


def show(task: PlacedTask) -> str:
    """`worker:0 h0 cpus=0,1 threads=2 devices=1 gpus=0`, without what is not there."""
    words = [task.name, f"h{task.host}", f"cpus={','.join(map(str, task.cpus))}", f"threads={task.threads}"]
    words += [f"devices={task.num_devices}"] if task.num_devices else []
    words += [f"gpus={','.join(task.gpus)}"] if task.gpus else []
    return " ".join(words)


PLACES: dict[str, tuple[Spec, list[HostView], ClusterConfig, list[str]]] = {
    "a lone process has one share": (
        spec(1, 0), cpu_hosts(1, 4), config(),
        ["worker:0 h0 cpus=0,1 threads=2 devices=1"],
    ),
    "a ps shares the cores of the workers on its host": (
        spec(1, 1), cpu_hosts(1, 4), config(),
        ["ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0,1 threads=2 devices=1"],
    ),
    "each worker keeps to its share": (
        spec(2, 1), cpu_hosts(1, 2), config(),
        ["ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1"],
    ),
    "shares are as large as the file says": (
        spec(2, 1), cpu_hosts(1, 8), config(devices_per_host=4),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1 threads=2 devices=1",
            "worker:1 h0 cpus=2,3 threads=2 devices=1",
        ],
    ),
    "cores that divide badly stay unused": (
        spec(2, 1), cpu_hosts(1, 5), config(devices_per_host=2),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1 threads=2 devices=1",
            "worker:1 h0 cpus=2,3 threads=2 devices=1",
        ],
    ),
    "more devices than cores share them": (
        spec(3, 1), cpu_hosts(1, 2), config(devices_per_host=3),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0 threads=1 devices=1",
            "worker:1 h0 cpus=1 threads=1 devices=1", "worker:2 h0 cpus=0 threads=1 devices=1",
        ],
    ),
    "workers fill hosts in order, ps go round the hosts that have workers": (
        spec(3, 3), cpu_hosts(3, 2), config(),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h1 cpus=0 threads=1", "ps:2 h0 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
            "worker:2 h1 cpus=0 threads=1 devices=1",
        ],
    ),
    "ps on hosts of their own come last": (
        spec(2, 2), cpu_hosts(3, 2), config(devices_per_host=2, ps_on_worker_hosts=False),
        [
            "ps:0 h1 cpus=0,1 threads=2", "ps:1 h2 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
        ],
    ),
    "ps on hosts of their own share what is left": (
        spec(4, 3), cpu_hosts(3, 2), config(devices_per_host=2, ps_on_worker_hosts=False),
        [
            "ps:0 h2 cpus=0,1 threads=2", "ps:1 h2 cpus=0,1 threads=2", "ps:2 h2 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
            "worker:2 h1 cpus=0 threads=1 devices=1", "worker:3 h1 cpus=1 threads=1 devices=1",
        ],
    ),
    "one process has all devices": (
        spec(2, 0, "replicated"), cpu_hosts(1, 4), config(),
        ["worker:0 h0 cpus=0,1,2,3 threads=4 devices=2"],
    ),
    "a worker may drive several devices": (
        spec(4, 1), cpu_hosts(2, 4), config(devices_per_host=2, devices_per_worker=2),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1,2,3 threads=4 devices=2",
            "worker:1 h1 cpus=0,1,2,3 threads=4 devices=2",
        ],
    ),
    "the last worker takes what is left": (
        spec(3, 1), cpu_hosts(2, 2), config(devices_per_host=2, devices_per_worker=2),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0,1 threads=2 devices=2",
            "worker:1 h1 cpus=0 threads=1 devices=1",
        ],
    ),
    "each worker sees its own gpu, a ps sees none": (
        spec(2, 1), gpu_hosts(1, 2), config(),
        [
            "ps:0 h0 cpus=0,1,2,3,4,5,6,7 threads=8", "worker:0 h0 cpus=0,1,2,3,4,5,6,7 threads=4 devices=1 gpus=0",
            "worker:1 h0 cpus=0,1,2,3,4,5,6,7 threads=4 devices=1 gpus=1",
        ],
    ),
    "one worker drives all gpus of a p2.8xlarge": (
        spec(16, 2), gpu_hosts(2, 8, cores=2), config(devices_per_worker=8),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h1 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0,1 threads=2 devices=8 gpus=0,1,2,3,4,5,6,7",
            "worker:1 h1 cpus=0,1 threads=2 devices=8 gpus=0,1,2,3,4,5,6,7",
        ],
    ),
    "the cpu of a host with gpus, where the file says so": (
        spec(1, 0), gpu_hosts(1, 2, cores=2), config(device="cpu"),
        ["worker:0 h0 cpus=0 threads=1 devices=1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACES)
def test_tasks_are_placed(case: str) -> None:
    """Hosts and a spec make exactly these tasks."""
    wanted, hosts, where, tasks = PLACES[case]
    assert [show(task) for task in place(wanted, hosts, where)] == tasks


TOO_LARGE: dict[str, tuple[Spec, list[HostView], ClusterConfig, str]] = {
    "too few devices": (
        spec(3, 1), cpu_hosts(1, 2), config(),
        r"needs 3 device\(s\), but cluster 'place' has 1 host\(s\) for workers with 2 devices \(cpu\). Lower --gpus",
    ),
    "one process does not span hosts": (
        spec(4, 0, "replicated"), cpu_hosts(2, 2), config(),
        r"needs 4 device\(s\), 4 of them in one process, but .* 2 host\(s\) for workers with 2, 2 devices",
    ),
    "the last host is the parameter servers'": (
        spec(4, 1), cpu_hosts(2, 2), config(ps_on_worker_hosts=False),
        r"needs 4 device\(s\), but .* 1 host\(s\) for workers with 2 devices",
    ),
    "no host is left for parameter servers": (
        spec(1, 1), cpu_hosts(1, 2), config(ps_on_worker_hosts=False),
        r"ps_on_worker_hosts = false parameter servers need hosts of their own, but there are 1 hosts in all",
    ),
    "no more gpus than there are, whatever the file says": (
        spec(4, 1), gpu_hosts(1, 2), config(devices_per_host=4),
        r"needs 4 device\(s\), but .* 2 devices \(gpu\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOO_LARGE)
def test_what_does_not_fit_is_refused_with_the_numbers(case: str) -> None:
    """Too few devices or hosts are an error that tells how many are needed and how many there are."""
    wanted, hosts, where, words = TOO_LARGE[case]
    with pytest.raises(SpecError, match=words):
        place(wanted, hosts, where)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("num_ps", [1, 2])
def test_n_devices_use_no_more_than_n_shares(cores: int, gpus: int, num_ps: int) -> None:
    """On a host without GPUs all tasks together keep to as many shares as there are devices in use."""
    share = max(1, cores // 2)
    tasks = place(spec(gpus, num_ps), cpu_hosts(1, cores), config(devices_per_host=2))
    used = {cpu for task in tasks for cpu in task.cpus}
    assert len(used) <= gpus * share
    assert all(task.threads == len(task.cpus) for task in tasks)


def test_fixed_ports_are_those_of_the_old_launchers() -> None:
    """With the fixed scheme a ps listens on 2230 + its index, a worker on 2220 + its index."""
    tasks = place(spec(2, 2), cpu_hosts(1, 2), config(fixed_ports=True))
    assert {task.name: task.fixed_port for task in tasks} == {"ps:0": 2230, "ps:1": 2231, "worker:0": 2220, "worker:1": 2221}
