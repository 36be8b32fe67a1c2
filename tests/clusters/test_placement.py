"""Tests of the placement of tasks. The tables are its specification."""

import math
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.placement import HostView, PlacedTask, place
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec


def make_spec(gpus: int, num_ps: int, variable_update: str = "parameter_server") -> Spec:
    return Spec(model="trivial", batch_size=32, gpus=gpus, num_ps=num_ps, variable_update=variable_update)


def make_cpu_hosts(count: int, cores: int) -> list[HostView]:
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(cores))) for i in range(count)]


def make_gpu_hosts(count: int, gpus: int, cores: int = 8) -> list[HostView]:
    visible = tuple(map(str, range(gpus)))
    return [HostView(f"h{i}", f"10.0.0.{i}", cpus=tuple(range(cores)), gpus=visible) for i in range(count)]


def make_config(**settings: Any) -> ClusterConfig:
    return ClusterConfig(name="place", **settings)


def format_task(task: PlacedTask) -> str:
    """Format a task: `worker:0 h0 cpus=0,1 threads=2 devices=1 gpus=0`, without empty parts."""
    words = [task.name, f"h{task.host}", f"cpus={','.join(map(str, task.cpus))}", f"threads={task.threads}"]
    words += [f"devices={task.num_devices}"] if task.num_devices else []
    words += [f"gpus={','.join(task.gpus)}"] if task.gpus else []
    return " ".join(words)


PLACEMENTS: dict[str, tuple[Spec, list[HostView], ClusterConfig, list[str]]] = {
    "a lone process has one share": (
        make_spec(1, 0), make_cpu_hosts(1, 4), make_config(),
        ["worker:0 h0 cpus=0,1 threads=2 devices=1"],
    ),
    "a ps shares the cores of the workers on its host": (
        make_spec(1, 1), make_cpu_hosts(1, 4), make_config(),
        ["ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0,1 threads=2 devices=1"],
    ),
    "each worker keeps to its share": (
        make_spec(2, 1), make_cpu_hosts(1, 2), make_config(),
        ["ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1"],
    ),
    "shares are as large as the file says": (
        make_spec(2, 1), make_cpu_hosts(1, 8), make_config(devices_per_host=4),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1 threads=2 devices=1",
            "worker:1 h0 cpus=2,3 threads=2 devices=1",
        ],
    ),
    "cores that divide badly stay unused": (
        make_spec(2, 1), make_cpu_hosts(1, 5), make_config(devices_per_host=2),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1 threads=2 devices=1",
            "worker:1 h0 cpus=2,3 threads=2 devices=1",
        ],
    ),
    "more devices than cores share them": (
        make_spec(3, 1), make_cpu_hosts(1, 2), make_config(devices_per_host=3),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0 threads=1 devices=1",
            "worker:1 h0 cpus=1 threads=1 devices=1", "worker:2 h0 cpus=0 threads=1 devices=1",
        ],
    ),
    "workers fill hosts in order, ps go round the hosts that have workers": (
        make_spec(3, 3), make_cpu_hosts(3, 2), make_config(),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h1 cpus=0 threads=1", "ps:2 h0 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
            "worker:2 h1 cpus=0 threads=1 devices=1",
        ],
    ),
    "ps fill the first hosts with so many each": (
        make_spec(6, 3), make_cpu_hosts(3, 2), make_config(ps_per_host=2),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h0 cpus=0,1 threads=2", "ps:2 h1 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
            "worker:2 h1 cpus=0 threads=1 devices=1", "worker:3 h1 cpus=1 threads=1 devices=1",
            "worker:4 h2 cpus=0 threads=1 devices=1", "worker:5 h2 cpus=1 threads=1 devices=1",
        ],
    ),
    "ps on hosts of their own have the first, one each": (
        make_spec(2, 2), make_cpu_hosts(4, 2), make_config(devices_per_host=2, ps_on_worker_hosts=False),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h1 cpus=0,1 threads=2",
            "worker:0 h2 cpus=0 threads=1 devices=1", "worker:1 h2 cpus=1 threads=1 devices=1",
        ],
    ),
    "ps on hosts of their own need no more of them than they fill": (
        make_spec(2, 3), make_cpu_hosts(3, 2), make_config(devices_per_host=2, ps_on_worker_hosts=False, ps_per_host=2),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h0 cpus=0,1 threads=2", "ps:2 h1 cpus=0,1 threads=2",
            "worker:0 h2 cpus=0 threads=1 devices=1", "worker:1 h2 cpus=1 threads=1 devices=1",
        ],
    ),
    "ps on hosts of their own need no gpus there": (
        make_spec(1, 1), make_cpu_hosts(1, 2) + make_gpu_hosts(1, 1, cores=2), make_config(ps_on_worker_hosts=False),
        ["ps:0 h0 cpus=0,1 threads=2", "worker:0 h1 cpus=0,1 threads=2 devices=1 gpus=0"],
    ),
    "without ps no host is kept for them": (
        make_spec(1, 0), make_cpu_hosts(2, 2), make_config(ps_on_worker_hosts=False),
        ["worker:0 h0 cpus=0 threads=1 devices=1"],
    ),
    "workers are spread evenly over as many hosts as the file says": (
        make_spec(3, 1), make_cpu_hosts(3, 4),
        make_config(backend="slurm", backend_keys={"nodes_per_gpu_count": {"3": 2}}, devices_per_host=4),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1",
            "worker:2 h1 cpus=0 threads=1 devices=1",
        ],
    ),
    "one process is on one host, whatever the file says": (
        make_spec(2, 0, "replicated"), make_cpu_hosts(2, 2),
        make_config(backend="slurm", backend_keys={"nodes_per_gpu_count": {"2": 2}}),
        ["worker:0 h0 cpus=0,1 threads=2 devices=2"],
    ),
    "so many workers on a host share its devices": (
        make_spec(8, 1), make_gpu_hosts(2, 4, cores=2), make_config(devices_per_host=4, workers_per_host=2),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0,1 threads=1 devices=2 gpus=0,1",
            "worker:1 h0 cpus=0,1 threads=1 devices=2 gpus=2,3", "worker:2 h1 cpus=0,1 threads=1 devices=2 gpus=0,1",
            "worker:3 h1 cpus=0,1 threads=1 devices=2 gpus=2,3",
        ],
    ),
    "a process of MultiWorkerMirroredStrategy has one cpu, whatever the file says": (
        make_spec(2, 0, "multi_worker_mirrored"), make_cpu_hosts(1, 2), make_config(devices_per_worker=2),
        ["worker:0 h0 cpus=0 threads=1 devices=1", "worker:1 h0 cpus=1 threads=1 devices=1"],
    ),
    "a process of MultiWorkerMirroredStrategy has many gpus": (
        make_spec(2, 0, "multi_worker_mirrored"), make_gpu_hosts(1, 2, cores=2), make_config(devices_per_worker=2),
        ["worker:0 h0 cpus=0,1 threads=2 devices=2 gpus=0,1"],
    ),
    "without parameter servers one process has the variables, and all devices": (
        make_spec(2, 0, "parameter_server"), make_cpu_hosts(1, 4), make_config(),
        ["worker:0 h0 cpus=0,1,2,3 threads=4 devices=2"],
    ),
    "one process has all devices": (
        make_spec(2, 0, "replicated"), make_cpu_hosts(1, 4), make_config(),
        ["worker:0 h0 cpus=0,1,2,3 threads=4 devices=2"],
    ),
    "a worker may drive several devices": (
        make_spec(4, 1), make_cpu_hosts(2, 4), make_config(devices_per_host=2, devices_per_worker=2),
        [
            "ps:0 h0 cpus=0,1,2,3 threads=4", "worker:0 h0 cpus=0,1,2,3 threads=4 devices=2",
            "worker:1 h1 cpus=0,1,2,3 threads=4 devices=2",
        ],
    ),
    "the last worker takes what is left": (
        make_spec(3, 1), make_cpu_hosts(2, 2), make_config(devices_per_host=2, devices_per_worker=2),
        [
            "ps:0 h0 cpus=0,1 threads=2", "worker:0 h0 cpus=0,1 threads=2 devices=2",
            "worker:1 h1 cpus=0 threads=1 devices=1",
        ],
    ),
    "each worker sees its own gpu, a ps sees none": (
        make_spec(2, 1), make_gpu_hosts(1, 2), make_config(),
        [
            "ps:0 h0 cpus=0,1,2,3,4,5,6,7 threads=8", "worker:0 h0 cpus=0,1,2,3,4,5,6,7 threads=4 devices=1 gpus=0",
            "worker:1 h0 cpus=0,1,2,3,4,5,6,7 threads=4 devices=1 gpus=1",
        ],
    ),
    "one worker drives all gpus of a p2.8xlarge": (
        make_spec(16, 2), make_gpu_hosts(2, 8, cores=2), make_config(devices_per_worker=8),
        [
            "ps:0 h0 cpus=0,1 threads=2", "ps:1 h1 cpus=0,1 threads=2",
            "worker:0 h0 cpus=0,1 threads=2 devices=8 gpus=0,1,2,3,4,5,6,7",
            "worker:1 h1 cpus=0,1 threads=2 devices=8 gpus=0,1,2,3,4,5,6,7",
        ],
    ),
    "the cpu of a host with gpus, where the file says so": (
        make_spec(1, 0), make_gpu_hosts(1, 2, cores=2), make_config(device="cpu"),
        ["worker:0 h0 cpus=0 threads=1 devices=1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLACEMENTS)
def test_tasks_are_placed(case: str) -> None:
    """Hosts and a spec give exactly these tasks."""
    wanted, hosts, where, tasks = PLACEMENTS[case]
    assert [format_task(task) for task in place(wanted, hosts, where)] == tasks


TOO_LARGE: dict[str, tuple[Spec, list[HostView], ClusterConfig, str]] = {
    "too few devices": (
        make_spec(3, 1), make_cpu_hosts(1, 2), make_config(),
        r"needs 3 devices, but cluster 'place' has 1 host for workers with 2 devices \(cpu\). Ask for fewer devices",
    ),
    "one process does not span hosts": (
        make_spec(4, 0, "replicated"), make_cpu_hosts(2, 2), make_config(),
        r"needs 4 devices, 4 of them in one process, but .* 2 hosts for workers with 2, 2 devices",
    ),
    "too few hosts for workers beside those of the ps": (
        make_spec(4, 3), make_cpu_hosts(3, 2), make_config(ps_on_worker_hosts=False, ps_per_host=2),
        r"needs 2 hosts for 4 devices, and 2 for 3 parameter servers alone, 2 on each, but .* has 3 hosts",
    ),
    "no host is left for parameter servers": (
        make_spec(1, 1), make_cpu_hosts(1, 2), make_config(ps_on_worker_hosts=False),
        r"needs 1 host for 1 device, and 1 for 1 parameter server alone, .* has 1 host in all",
    ),
    "more ps than the workers' hosts may have": (
        make_spec(2, 5), make_cpu_hosts(3, 2), make_config(ps_per_host=4),
        r"1 host of 4 parameter servers each: that is room for 4, not for 5. Lower --num-ps, or raise ps_per_host",
    ),
    "spread over more hosts than there are": (
        make_spec(4, 1), make_cpu_hosts(2, 2), make_config(backend="slurm", backend_keys={"nodes_per_gpu_count": {"4": 3}}),
        r"nodes_per_gpu_count spreads 4 devices over 3 hosts, but there are 4 workers and 2 hosts for them",
    ),
    "spread over too few hosts": (
        make_spec(4, 1), make_cpu_hosts(3, 2), make_config(backend="slurm", backend_keys={"nodes_per_gpu_count": {"4": 1}}),
        r"needs 4 devices, but .* 3 hosts for workers with 2, 2, 2 devices",
    ),
    "the eleventh worker's port is the first ps's": (
        make_spec(11, 1), make_gpu_hosts(1, 11), make_config(fixed_ports=True),
        r"ps:0 and worker:10 would both have port 2230 on h0. .* no more than 10 workers",
    ),
    "several parts of a gpu in one process": (
        make_spec(2, 1), [HostView("h0", "10.0.0.0", cpus=(0,), gpus=("MIG-a", "MIG-b"))], make_config(devices_per_worker=2),
        r"worker:0 would have 2 parts of GPUs \(MIG\) on h0, and CUDA shows a process only one. .* devices_per_worker = 1",
    ),
    "no more gpus than there are, whatever the file says": (
        make_spec(4, 1), make_gpu_hosts(1, 2), make_config(devices_per_host=4),
        r"needs 4 devices, but .* 2 devices \(gpu\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TOO_LARGE)
def test_too_large_training_is_refused(case: str) -> None:
    """Too few devices or hosts are refused, with the required and the existing numbers."""
    wanted, hosts, where, words = TOO_LARGE[case]
    with pytest.raises(SpecError, match=words):
        place(wanted, hosts, where)


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 7, 8, 64])
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("num_ps", [1, 2])
def test_n_devices_use_no_more_than_n_shares(cores: int, gpus: int, num_ps: int) -> None:
    """On a host without GPUs all tasks use no more shares of cores than there are devices."""
    share = max(1, cores // 2)
    tasks = place(make_spec(gpus, num_ps), make_cpu_hosts(1, cores), make_config(devices_per_host=2))
    used = {cpu for task in tasks for cpu in task.cpus}
    assert len(used) <= gpus * share
    assert all(task.threads == len(task.cpus) for task in tasks)


def test_fixed_ports_count_up_on_each_host() -> None:
    """A server has the fixed port 2230, a worker 2220, and the next one on the same host one higher."""
    tasks = place(make_spec(3, 3), make_cpu_hosts(2, 2), make_config(fixed_ports=True))
    assert {f"{task.name} h{task.host}": task.fixed_port for task in tasks} == {
        "ps:0 h0": 2230, "ps:1 h1": 2230, "ps:2 h0": 2231,
        "worker:0 h0": 2220, "worker:1 h0": 2221, "worker:2 h1": 2220,
    }  # fmt: skip


def test_eleven_workers_may_be_apart_from_servers() -> None:
    """An eleventh worker has its fixed port if no server is on its host."""
    tasks = place(make_spec(11, 1), make_gpu_hosts(2, 11), make_config(fixed_ports=True, ps_on_worker_hosts=False))
    assert [task.fixed_port for task in tasks] == [2230, *range(2220, 2231)]


@pytest.mark.parametrize("num_ps", [1, 3, 4, 7])
@pytest.mark.parametrize("ps_per_host", [None, 1, 2, 4])
def test_separate_servers_have_the_hosts_that_they_fill(num_ps: int, ps_per_host: int | None) -> None:
    """Separate servers have ceil(num_ps / ps_per_host) hosts, and with one host fewer the run is refused."""
    where = make_config(ps_on_worker_hosts=False, ps_per_host=ps_per_host)
    apart = math.ceil(num_ps / (ps_per_host or 1))
    tasks = place(make_spec(2, num_ps), make_cpu_hosts(apart + 1, 2), where)
    assert {task.host for task in tasks if task.job == "ps"} == set(range(apart))
    assert {task.host for task in tasks if task.job == "worker"} == {apart}
    with pytest.raises(SpecError, match=f"has {apart} host"):
        place(make_spec(2, num_ps), make_cpu_hosts(apart, 2), where)
