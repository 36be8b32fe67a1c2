"""Hosts for a checkup: lent as for a test and given back, with one checkup process started on each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.locks import LockHolder, LockWait, lock_hosts
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Host, Resources
from pytest_dtfperf.doctor.several import LentHosts, one_by_one
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node import wire
from pytest_dtfperf.node.module_command import module_command
from pytest_dtfperf.records.session import new_session_id

Lend = Callable[[ClusterConfig, Resources, Sequence[str]], AbstractContextManager[LentHosts]]

_AT_ONCE = 16  # connections that are made side by side, where the cluster does not say


@contextmanager
def lent_hosts(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Iterator[LentHosts]:
    """As many hosts as `gpus` devices need, or all. Raises `UsageError`, `AllocationError`."""
    resources = needed(config, gpus, on_status)
    timeout_s = f"{config.heartbeat_timeout_s:g}"
    argv = module_command(named.python(config), "pytest_dtfperf.node.checkup", "--heartbeat-timeout-s", timeout_s)
    with _turn(config, resources), APART.get(config.backend, together)(config, resources, argv) as lent:
        yield lent


def needed(config: ClusterConfig, gpus: int | None, on_status: Callable[[str], object]) -> Resources:
    """What is asked of the cluster. Raises `UsageError` where neither it nor anybody else says how many hosts."""
    session = new_session_id()
    apart = 0 if config.ps_on_worker_hosts else 1
    if gpus is not None:
        return Resources(gpus, apart, session=session, on_status=on_status)
    there = capacity.count_hosts(config)
    if there is None:
        raise UsageError(f"clusters.toml does not say how many hosts {config.name!r} has: --gpus=N says how many to look at")
    workers = max(1, there - apart)
    return Resources(
        workers * (capacity.predict_devices_per_host(config) or 1), there - workers, session=session, on_status=on_status
    )


@contextmanager
def together(config: ClusterConfig, resources: Resources, argv: Sequence[str]) -> Iterator[LentHosts]:
    """All hosts as one allocation, or none."""
    with named.open_cluster(config).allocate(resources) as allocation:
        channel = allocation.start(argv)
        try:
            yield LentHosts(allocation.hosts, channel, {})
        finally:
            channel.close()


@contextmanager
def ssh(config: ClusterConfig, resources: Resources, argv: Sequence[str]) -> Iterator[LentHosts]:
    """Hosts that SSH reaches, each for itself."""
    from pytest_dtfperf.clusters.ssh.cluster import open_allocation
    from pytest_dtfperf.clusters.ssh.endpoints import list_endpoints

    resources.on_status("connecting to all hosts")
    chosen = list_endpoints(config)[: capacity.require_hosts(config, resources, "the hosts")]
    one = Resources(devices=1, session=resources.session)  # of which nothing is told: many speak at once
    known = [Host(each.name, each.address or each.target) for each in chosen]
    lenders = [partial(open_allocation, config, [each], one) for each in chosen]
    at_once = config.backend_keys.get("parallel", _AT_ONCE)
    with one_by_one(known, lenders, argv, at_once=at_once, idle=wire.encode({"order": "ping"})) as found:
        yield found


def alone(config: ClusterConfig, hosts: str, on_status: Callable[[str], object]) -> ClusterConfig:
    """The cluster with these of its hosts alone, where its backend knows hosts by name; else all, and that is said.

    Raises `UsageError`.
    """
    if capacity.is_inside_allocation(config):
        raise UsageError("within a job there are its own nodes, and no others can be chosen: leave --hosts out")
    if config.backend not in BY_NAME:
        on_status(f"{config.name} lends no hosts by name: looking at all")
        return config
    module, _, name = BY_NAME[config.backend].partition(":")
    chosen: ClusterConfig = getattr(import_module(module), name)(config, hosts)
    return chosen


# Backends that can lend hosts which somebody names: "module:function", of a cluster and names, gives the cluster with these.
BY_NAME: Mapping[str, str] = {
    "ssh": "pytest_dtfperf.clusters.ssh.endpoints:select_hosts",
    "slurm": "pytest_dtfperf.clusters.slurm.request:select_nodes",
}

# Backends whose hosts are lent one by one, so that those which answer can be looked at while others do not.
APART: Mapping[str, Lend] = {"ssh": ssh}


def _turn(config: ClusterConfig, resources: Resources) -> AbstractContextManager[object]:
    """Not while others measure there, nor when there are as many allocations as there may be."""
    if capacity.is_inside_allocation(config):
        return nullcontext()
    shared = named.BACKENDS[config.backend].list_shared_machines(config)

    def waiting(wait: LockWait) -> None:
        resources.on_status(f"waiting for {config.name}, {wait}")

    return lock_hosts(
        shared or [f"cluster-{config.name}"],
        slots=1 if shared else config.jobs_at_once,
        holder=LockHolder.me(session=resources.session, what="dtfperf doctor"),
        on_wait=waiting,
    )
