"""Which task runs on which host, with which devices and cores. Pure: hosts and a spec go in, tasks come out.

A device is a GPU, or on hosts without any a fixed share of the cores: cores // devices per host, at least one. A task keeps to
its shares, in threads and in affinity, and a parameter server to those in use on its host, so that n devices never compute
on more than n shares, and scaling over them means something.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec

DEFAULT_SHARES = 2  # devices of a host without GPUs, where the cluster file does not say
FIRST_FIXED_PORT = {"ps": 2230, "worker": 2220}  # of the launchers of 2017, whose users have them open in their firewalls


@dataclass(frozen=True)
class HostView:
    """What a host has, as its agent tells."""

    name: str
    address: str
    cpus: tuple[int, ...]  # those its processes may use
    gpus: tuple[str, ...] = ()  # as CUDA_VISIBLE_DEVICES names them


@dataclass(frozen=True)
class PlacedTask:
    """A task, and where it belongs."""

    job: str
    index: int
    host: int  # index of its host
    cpus: tuple[int, ...]  # its affinity
    threads: int
    device: str = "cpu"
    num_devices: int = 0
    gpus: tuple[str, ...] = ()  # what it may see; nothing on hosts without GPUs, and nothing ever for a parameter server

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def fixed_port(self) -> int:
        return FIRST_FIXED_PORT[self.job] + self.index


def place(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> tuple[PlacedTask, ...]:
    """Workers fill the hosts in order, parameter servers go round them. Raises `SpecError` where they do not fit."""
    for_workers, for_ps = _split(spec, hosts, config)
    workers = tuple(_workers(spec, for_workers, config))
    used = sorted({worker.host for worker in workers})
    ps_hosts = used if config.ps_on_worker_hosts else for_ps
    servers = tuple(_server(j, ps_hosts[j % len(ps_hosts)], hosts, workers) for j in range(spec.num_ps))
    return servers + workers


def device_of(hosts: Sequence[HostView], config: ClusterConfig) -> str:
    """What does the arithmetic: GPUs where every host has some, unless the cluster file says otherwise."""
    return config.device or ("gpu" if all(host.gpus for host in hosts) else "cpu")


def devices_on(host: HostView, device: str, config: ClusterConfig) -> int:
    """How many devices a host has."""
    if device == "gpu":
        return min(config.devices_per_host or len(host.gpus), len(host.gpus))
    return config.devices_per_host or min(DEFAULT_SHARES, len(host.cpus))


def _split(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> tuple[list[HostView], list[int]]:
    """The hosts for workers, and the indices of those for parameter servers alone, at the end."""
    if config.ps_on_worker_hosts or spec.num_ps == 0:
        return list(hosts), []
    if len(hosts) < 2:
        raise SpecError(
            f"{spec.label}: with ps_on_worker_hosts = false parameter servers need hosts of their own, "
            f"but there are {len(hosts)} hosts in all"
        )
    apart = _hosts_apart(spec, hosts, config)
    return list(hosts[: len(hosts) - apart]), list(range(len(hosts) - apart, len(hosts)))


def _hosts_apart(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> int:
    """As many as there are parameter servers, if the workers leave so many."""
    device = device_of(hosts, config)
    needed = devices = 0
    while needed < len(hosts) - 1 and devices < spec.gpus:
        devices += devices_on(hosts[needed], device, config)
        needed += 1
    return min(spec.num_ps, len(hosts) - needed)


def _workers(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> Iterator[PlacedTask]:
    device = device_of(hosts, config)
    per_worker = spec.gpus if spec.mode.one_process else min(config.devices_per_worker, spec.gpus)
    to_place = spec.gpus
    index = 0
    for at, host in enumerate(hosts):
        on_host = devices_on(host, device, config)
        first = 0
        while to_place and on_host - first >= min(per_worker, to_place):
            count = min(per_worker, to_place)
            yield _worker(index, at, host, device, range(first, first + count), on_host)
            index, first, to_place = index + 1, first + count, to_place - count
    if to_place:
        raise SpecError(_too_few(spec, hosts, device, per_worker, config))


def _worker(index: int, at: int, host: HostView, device: str, devices: range, of: int) -> PlacedTask:
    task = PlacedTask("worker", index, at, cpus=host.cpus, threads=1, device=device, num_devices=len(devices))
    if device == "gpu":
        # Feeding a GPU is any core's work: all of them, but no more threads than this task's part.
        return replace(task, gpus=host.gpus[devices.start : devices.stop], threads=max(1, len(host.cpus) * len(devices) // of))
    cpus = tuple(dict.fromkeys(chain.from_iterable(_share(host.cpus, each, of) for each in devices)))
    return replace(task, cpus=cpus, threads=len(cpus))


def _share(cpus: Sequence[int], device: int, of: int) -> tuple[int, ...]:
    """A device's cores. With more devices than cores, some share one."""
    size = max(1, len(cpus) // of)
    return tuple(cpus[(device * size + k) % len(cpus)] for k in range(size))


def _server(index: int, at: int, hosts: Sequence[HostView], workers: Sequence[PlacedTask]) -> PlacedTask:
    """A parameter server shares the cores of the workers of its host, or has a host without any to itself."""
    used = {cpu for worker in workers if worker.host == at for cpu in worker.cpus}
    cpus = tuple(cpu for cpu in hosts[at].cpus if cpu in used or not used)
    return PlacedTask("ps", index, at, cpus=cpus, threads=len(cpus))


def _too_few(spec: Spec, hosts: Sequence[HostView], device: str, per_worker: int, config: ClusterConfig) -> str:
    counts = [devices_on(host, device, config) for host in hosts]
    have = f"{len(hosts)} host(s) for workers with {', '.join(map(str, counts))} devices ({device})"
    need = f"{spec.gpus} device(s)" + (f", {per_worker} of them in one process" if per_worker > 1 else "")
    return f"{spec.label} needs {need}, but cluster {config.name!r} has {have}. Lower --gpus, or raise devices_per_host."
