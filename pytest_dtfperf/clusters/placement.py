"""Which task runs on which host, with which devices and cores. Pure: hosts and a spec go in, tasks come out.

A device is a GPU, or on hosts without any a fixed share of the cores: cores // devices per host, at least one. A task keeps to
its shares, in threads and in affinity, and a parameter server to those in use on its host, so that n devices never compute
on more than n shares, and scaling efficiency is meaningful.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pytest_dtfperf.clusters.capacity import (
    choose_device,
    count_devices_of_host,
    count_server_hosts,
    count_worker_hosts,
    get_worker_hosts,
    predict_device,
    predict_devices_per_worker,
)
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.datamodel.fingerprint import AllocatedNode, AllocationCheck
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import Spec

FIRST_FIXED_PORT = {"ps": 2230, "worker": 2220}  # of the launchers of 2017, which their users have opened in firewalls
_WORKERS_PORTS = FIRST_FIXED_PORT["ps"] - FIRST_FIXED_PORT["worker"]


@dataclass(frozen=True)
class HostView:
    """The resources of a host, as its agent reports them."""

    name: str
    address: str
    cpus: tuple[int, ...]  # cores that its processes may use
    gpus: tuple[str, ...] = ()  # in the form of CUDA_VISIBLE_DEVICES
    switch: str | None = None  # the network switch that it is connected to, if the cluster knows it
    addresses: tuple[str, ...] = ()  # of all its interfaces
    unguarded: str | None = None  # why its tasks' ports can have no firewall; None: they can
    interface: str | None = None  # the name of the interface that tasks use, if the cluster file sets it
    environment: tuple[tuple[str, str], ...] = ()  # variables of its tasks
    boot: str = ""  # the boot id of its kernel, another one after each restart; empty if not known


@dataclass(frozen=True)
class PlacedTask:
    """A task, and its place on a host."""

    job: str
    index: int
    host: int  # index of its host
    number: int  # among the tasks of its job on that host
    cpus: tuple[int, ...]  # affinity
    threads: int
    device: str = "cpu"
    num_devices: int = 0
    gpus: tuple[str, ...] = ()  # GPUs that it may use; none on hosts without GPUs, and none for a parameter server

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def fixed_port(self) -> int:
        return FIRST_FIXED_PORT["ps" if self.job == "ps" else "worker"] + self.number


def place(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> tuple[PlacedTask, ...]:
    """Place workers on the hosts in order, parameter servers in turn or on the first. Raises `SpecError` if they do not fit.

    Parameter servers on hosts of their own have the first ones, and the workers those after them, as in 2017.
    """
    ps_only = _find_server_hosts(spec, hosts, config)
    workers = tuple(_assign_workers(spec, hosts, ps_only, config))
    ps_hosts = list(range(ps_only)) or list(dict.fromkeys(worker.host for worker in workers))
    tasks = (*_assign_servers(spec, hosts, ps_hosts, workers, config), *workers)
    if config.fixed_ports:
        _check_ports(spec, hosts, tasks)
    return tasks


def get_device(hosts: Sequence[HostView], config: ClusterConfig) -> str:
    """Return what computes: GPUs if every host has some, unless the cluster file sets another device."""
    return choose_device(config, has_gpus=all(host.gpus for host in hosts))


def count_devices(host: HostView, device: str, config: ClusterConfig) -> int:
    """Return how many devices of a host are used. `describe_allocation` reports fewer GPUs than the cluster file has."""
    return count_devices_of_host(config, device, cores=len(host.cpus), gpus=len(host.gpus))


def _find_server_hosts(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> int:
    """Return how many hosts, the first ones, are only for parameter servers."""
    ps_only = count_server_hosts(config, spec.num_ps)
    if not ps_only:
        return 0
    needed = _find_worker_hosts(spec, hosts, config)
    if ps_only + needed > len(hosts):
        raise SpecError(
            f"{spec.label} needs {format_count(needed, 'host')} for {format_count(spec.gpus, 'device')}, "
            f"and {ps_only} for {format_count(spec.num_ps, 'parameter server')} alone, {config.most_ps_per_host or 1} on each, "
            f"but cluster {config.name!r} has {format_count(len(hosts), 'host')} in all. "
            "Ask for fewer parameter servers or devices, raise ps_per_host, or let them share hosts: ps_on_worker_hosts = true."
        )
    return ps_only


def _find_worker_hosts(spec: Spec, hosts: Sequence[HostView], config: ClusterConfig) -> int:
    """Return how many hosts the workers need, if all are like the last one."""
    if spec.in_one_process:
        return 1
    device = get_device(hosts[-1:], config)
    per_worker = _count_per_worker(spec, device, config)
    workers_on_each = max(1, count_devices(hosts[-1], device, config) // per_worker)
    return count_worker_hosts(config, spec.gpus, per_worker * workers_on_each)


def _count_per_worker(spec: Spec, device: str, config: ClusterConfig) -> int:
    mode = spec.mode
    if spec.in_one_process:
        return spec.gpus
    return 1 if mode.one_device or (mode.one_cpu and device == "cpu") else min(predict_devices_per_worker(config), spec.gpus)


def _spread(spec: Spec, config: ClusterConfig) -> int | None:
    """Return on how many hosts the workers are placed, if clusters.toml sets it. One process is always on one."""
    return None if spec.in_one_process else get_worker_hosts(config, spec.gpus)


def _assign_workers(spec: Spec, hosts: Sequence[HostView], start: int, config: ClusterConfig) -> Iterator[PlacedTask]:
    for_workers = hosts[start:]
    device = get_device(for_workers, config)
    per_worker = _count_per_worker(spec, device, config)
    most = _count_most_workers(spec, for_workers, per_worker, config)
    unplaced = spec.gpus
    index = 0
    for at, host in enumerate(for_workers):
        on_host = count_devices(host, device, config)
        first = number = 0
        while unplaced and number < most[at] and on_host - first >= min(per_worker, unplaced):
            count = min(per_worker, unplaced)
            yield _assign_worker(index, start + at, number, host, device, range(first, first + count), on_host)
            index, number, first, unplaced = index + 1, number + 1, first + count, unplaced - count
    if unplaced:
        raise SpecError(_make_too_few_error(spec, for_workers, device, per_worker, config))


def _count_most_workers(spec: Spec, hosts: Sequence[HostView], per_worker: int, config: ClusterConfig) -> list[int]:
    """Return how many workers each host may have: all that fit, or an even part of them if clusters.toml sets the hosts."""
    workers, spread = -(-spec.gpus // per_worker), _spread(spec, config)
    if spread is None:
        return [workers] * len(hosts)
    if not spread <= min(workers, len(hosts)):
        raise SpecError(
            f"{spec.label}: {BACKENDS[config.backend].spread_key} spreads "
            f"{format_count(spec.gpus, 'device')} over {spread} hosts, "
            f"but there are {format_count(workers, 'worker')} and {format_count(len(hosts), 'host')} for them. "
            "Change it in clusters.toml, or lower devices_per_worker."
        )
    return [workers // spread + (at < workers % spread) if at < spread else 0 for at in range(len(hosts))]


def _assign_worker(index: int, at: int, number: int, host: HostView, device: str, devices: range, total: int) -> PlacedTask:
    if device == "gpu":
        # Any core may feed a GPU: a task may use all of them, but no more threads than its share.
        cpus, threads = host.cpus, max(1, len(host.cpus) * len(devices) // total)
        gpus = host.gpus[devices.start : devices.stop]
        if len(gpus) > 1 and any(name.startswith("MIG-") for name in gpus):
            raise SpecError(
                f"worker:{index} would have {len(gpus)} parts of GPUs (MIG) on {host.name}, and CUDA shows a process only one. "
                "Let each worker have one: devices_per_worker = 1, and a variable_update of several processes."
            )
    else:
        cpus = tuple(dict.fromkeys(chain.from_iterable(_share(host.cpus, each, total) for each in devices)))
        threads, gpus = len(cpus), ()
    return PlacedTask("worker", index, at, number, cpus, threads, device, len(devices), gpus)


def _share(cpus: Sequence[int], device: int, total: int) -> tuple[int, ...]:
    """Return a device's cores. With more devices than cores, some share one."""
    size = max(1, len(cpus) // total)
    return tuple(cpus[(device * size + k) % len(cpus)] for k in range(size))


def _assign_servers(
    spec: Spec, hosts: Sequence[HostView], ps_hosts: Sequence[int], workers: Sequence[PlacedTask], config: ClusterConfig
) -> Iterator[PlacedTask]:
    """Place parameter servers, on the cores of the workers of their host, or on all cores of a host without workers."""
    on_each = config.most_ps_per_host
    if on_each and spec.num_ps > on_each * len(ps_hosts):
        raise SpecError(
            f"{spec.label}: {format_count(len(ps_hosts), 'host')} of "
            f"{format_count(on_each, 'parameter server')} each: that is room for "
            f"{on_each * len(ps_hosts)}, not for {spec.num_ps}. Lower --num-ps, or raise ps_per_host."
        )
    used: dict[int, set[int]] = defaultdict(set)
    for worker in workers:
        used[worker.host].update(worker.cpus)
    cores = {at: tuple(cpu for cpu in hosts[at].cpus if cpu in used[at] or not used[at]) for at in ps_hosts}
    for index in range(spec.num_ps):
        turn, number = divmod(index, on_each) if on_each else (index % len(ps_hosts), index // len(ps_hosts))
        at = ps_hosts[turn]
        yield PlacedTask("ps", index, at, number, cores[at], len(cores[at]))


def _check_ports(spec: Spec, hosts: Sequence[HostView], tasks: Sequence[PlacedTask]) -> None:
    """Refuse a port for two tasks: that of the eleventh worker on a host is also that of its first parameter server."""
    taken: dict[tuple[int, int], PlacedTask] = {}
    for task in tasks:
        other = taken.setdefault((task.host, task.fixed_port), task)
        if other is not task:
            raise SpecError(
                f"{spec.label}: {other.name} and {task.name} would both have port {task.fixed_port} "
                f"on {hosts[task.host].name}. Have no more than {_WORKERS_PORTS} workers on a host with parameter servers, "
                "or let free ports be found: fixed_ports = false."
            )


def _make_too_few_error(spec: Spec, hosts: Sequence[HostView], device: str, per_worker: int, config: ClusterConfig) -> str:
    counts = [count_devices(host, device, config) for host in hosts]
    have = f"{format_count(len(hosts), 'host')} for workers with {', '.join(map(str, counts))} devices ({device})"
    need = format_count(spec.gpus, "device") + (f", {per_worker} of them in one process" if per_worker > 1 else "")
    fewer = "Ask for fewer devices, or raise" if spec.gpus > 1 else "Raise"
    return f"{spec.label} needs {need}, but cluster {config.name!r} has {have}. {fewer} devices_per_host."


_NAMED = 8  # of more equal nodes, only the number is shown


def describe_allocation(config: ClusterConfig, hosts: Sequence[HostView], *, wanted_nodes: int | None) -> AllocationCheck:
    """Return what was requested and what was allocated, all nodes, and whether they match.

    A cluster may allocate a node with a broken GPU, or nodes on more switches than requested. Training works there, but its
    rate is not that of the requested hosts.

    Args:
        wanted_nodes: how many nodes were requested; None: unknown.
    """
    gpus, switches = _describe_wanted_gpus(config, hosts), config.backend_keys.get("switches")
    known = sorted({host.switch for host in hosts if host.switch is not None})
    requested = [format_count(wanted_nodes, "node")] if wanted_nodes else []
    granted = [format_count(len(hosts), "node")]
    if gpus:
        requested.append(f"{_format_gpus(gpus)} each")
        granted += _count_gpus(hosts)
    if switches:
        requested.append(format_count(switches, "switch", "es"))
    if known:
        granted.append(f"{format_count(len(known), 'switch', 'es')}: {', '.join(known)}")
    elif switches:
        granted.append("switches unknown")
    return AllocationCheck(
        requested=requested,
        granted=granted,
        nodes=[AllocatedNode(name=host.name, gpus=len(host.gpus), switch=host.switch) for host in hosts],
        matches=len(hosts) >= (wanted_nodes or 0)
        and all(len(host.gpus) >= gpus for host in hosts)
        and len(known) <= (switches or len(known)),
    )


def _describe_wanted_gpus(config: ClusterConfig, hosts: Sequence[HostView]) -> int:
    """Return how many GPUs each host should have; 0 if none are intended."""
    if config.device == "cpu":
        return 0
    if asked := BACKENDS[config.backend].count_gpus(config.backend_keys):
        return asked
    if config.device == "gpu" or any(host.gpus for host in hosts):
        return config.devices_per_host or int(not all(host.gpus for host in hosts))
    return int(predict_device(config) == "gpu")


def _count_gpus(hosts: Sequence[HostView]) -> list[str]:
    names: dict[int, list[str]] = {}
    for host in hosts:
        names.setdefault(len(host.gpus), []).append(host.name)
    if len(names) == 1:
        return [f"{_format_gpus(count)} each" for count in names]
    return [
        f"{_format_gpus(count)} on {', '.join(alike) if len(alike) <= _NAMED else format_count(len(alike), 'node')}"
        for count, alike in names.items()
    ]


def _format_gpus(count: int) -> str:
    return format_count(count, "GPU") if count else "no GPU"


@dataclass(frozen=True)
class Roles:
    """The tasks of an external command that lead a run, and those that are ended after these have ended well.

    Without a chief, all workers lead. With a chief, they may serve it without end, as ParameterServerStrategy's do. Parameter
    servers and an evaluator do not lead. A chief and an evaluator are placed as workers, with a worker's devices each, and
    named as in TF_CONFIG: https://www.tensorflow.org/guide/distributed_training.
    """

    chief: bool = False
    evaluator: bool = False
    grace_s: float = 0.0  # before SIGTERM is sent to a task that is ended

    @property
    def extra_tasks(self) -> int:
        """Tasks besides parameter servers and workers."""
        return self.chief + self.evaluator

    def name_tasks(self, tasks: Sequence[PlacedTask]) -> list[PlacedTask]:
        """Return the tasks with their roles: the first of the workers is the chief, the last the evaluator."""
        last = max(task.index for task in tasks if task.job == "worker")
        return [self._assign_role(task, last) if task.job == "worker" else task for task in tasks]

    def _assign_role(self, task: PlacedTask, last: int) -> PlacedTask:
        if self.chief and task.index == 0:
            return replace(task, job="chief")
        if self.evaluator and task.index == last:
            return replace(task, job="evaluator", index=0)
        return replace(task, index=task.index - self.chief)

    def is_kept(self, task: PlacedTask) -> bool:
        """Return whether a task stays until it is ended, even if its program has ended before."""
        return task.job in ("ps", "evaluator") or (self.chief and task.job == "worker")


WORKERS_LEAD = Roles()
