"""The number of hosts and devices of a cluster, and of those that a training takes: for predictions and for the placement.

Predictions contact no other machine. On this machine they run nvidia-smi once.
"""

import os
from functools import cache

from pytest_dtfperf.clusters.environment import select_variables
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import AllocationError, ClusterFileError, UsageError
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node import probes

# Variables of this process and of clusters.toml that decide which GPUs an agent sees.
_COUNTED_BY = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PATH")


DEFAULT_DEVICES = 2  # of a host without GPUs, where the cluster file sets no number


def choose_device(config: ClusterConfig, has_gpus: bool) -> str:
    """Return "gpu" or "cpu": the value in the cluster file, or else GPUs if every host has some."""
    return config.device or ("gpu" if has_gpus else "cpu")


def count_devices_of_host(config: ClusterConfig, device: str, *, cores: int, gpus: int) -> int:
    """Return how many devices a host with so many cores and GPUs has: GPUs, or shares of the cores."""
    if device == "gpu":
        return min(config.devices_per_host or gpus, gpus)
    return config.devices_per_host or min(DEFAULT_DEVICES, cores)


def count_hosts(config: ClusterConfig) -> int | None:
    """Return the largest number of hosts: those of the allocation in which this process runs, or the number in the file."""
    return BACKENDS[config.backend].count_allocated_hosts() or config.max_hosts


def is_inside_allocation(config: ClusterConfig) -> bool:
    """Return whether this process runs in an allocation: then there are no other hosts."""
    return BACKENDS[config.backend].count_allocated_hosts() is not None


def select_hosts(config: ClusterConfig, names: str) -> ClusterConfig | None:
    """Return the cluster with only the hosts of a list such as "node03,node07"; None if its hosts have no names beforehand.

    Raises `UsageError` within an allocation, and for names that the cluster does not have.
    """
    if is_inside_allocation(config):
        raise UsageError("within a job, the hosts are those of the job: leave --hosts out")
    return BACKENDS[config.backend].select_hosts(config, names)


def count_devices(config: ClusterConfig) -> int | None:
    """Return how many devices training can have there; None if that is not known without an allocation."""
    there, on_each = count_hosts(config), predict_devices_per_host(config)
    if there is None or on_each is None:
        return None
    return (there - count_server_hosts(config, 1)) * on_each


def predict_devices_per_host(config: ClusterConfig) -> int | None:
    """Return the devices of a host as in the file, else, on this machine, as many as it has; None if unknown."""
    if config.stated_devices_per_host is not None or not BACKENDS[config.backend].is_local:
        return config.stated_devices_per_host
    if config.device != "cpu" and (gpus := _count_local_gpus(config)):
        return gpus
    cores = max(1, len(os.sched_getaffinity(0)) // (config.max_hosts or 1))
    return count_devices_of_host(config, "cpu", cores=cores, gpus=0)


def count_server_hosts(config: ClusterConfig, num_ps: int) -> int:
    """Return how many hosts are only for so many parameter servers; 0 if they are on the hosts of workers."""
    return 0 if config.ps_on_worker_hosts else -(-num_ps // (config.most_ps_per_host or 1))


def count_worker_hosts(config: ClusterConfig, devices: int, on_each: int) -> int:
    """Return how many hosts workers need: the number in the file for so many devices, or else with `on_each` on each host."""
    return get_worker_hosts(config, devices) or -(-devices // on_each)


def compute_need(config: ClusterConfig, gpus: int, num_ps: int) -> Resources:
    """Return the requirements of a training, but no more than the cluster has."""
    return Resources(devices=min(gpus, count_devices(config) or gpus), separate_ps_hosts=count_server_hosts(config, num_ps))


def count_hosts_for(config: ClusterConfig, resources: Resources) -> int:
    """Return how many hosts these resources need: those for workers, and those for parameter servers only."""
    on_each = predict_devices_per_host(config) or 1
    return count_worker_hosts(config, resources.devices, on_each) + resources.separate_ps_hosts


def require_hosts(config: ClusterConfig, resources: Resources, keys: str) -> int:
    """Return the same. Raises `AllocationError` if the cluster has fewer, and names the `keys` that set the number."""
    wanted, there = count_hosts_for(config, resources), config.max_hosts
    if there is not None and wanted > there:
        for_servers = f" and {resources.separate_ps_hosts} for parameter servers alone" if resources.separate_ps_hosts else ""
        fewer = "Ask for fewer devices, or raise" if resources.devices > 1 else "Raise"
        raise AllocationError(
            f"cluster {config.name!r} has {format_count(there, 'host')} of "
            f"{format_count(predict_devices_per_host(config) or 1, 'device')}, but "
            f"{format_count(resources.devices, 'device')}{for_servers} need {wanted} hosts. {fewer} {keys} in clusters.toml."
        )
    return wanted


def predict_devices_per_worker(config: ClusterConfig) -> int:
    """Return how many devices one worker process has, unless its variable update gives it all."""
    if config.workers_per_host is None:
        return config.devices_per_worker
    return max(1, (predict_devices_per_host(config) or 1) // config.workers_per_host)


def get_worker_hosts(config: ClusterConfig, devices: int) -> int | None:
    """Return the number of hosts for so many devices; None if the file does not define it for this count."""
    key = BACKENDS[config.backend].spread_key
    given: int | None = config.backend_keys.get(key, {}).get(str(devices)) if key else None
    return given


def predict_device(config: ClusterConfig) -> str:
    """Return what computes there, "gpu" or "cpu", as far as that is known without an allocation."""
    if config.device is not None:
        return config.device
    gpus = (
        _count_local_gpus(config)
        if BACKENDS[config.backend].is_local
        else BACKENDS[config.backend].count_gpus(config.backend_keys)
    )
    if gpus is None:  # a site that allocates GPUs with whole nodes, without a request for them, sets device = "gpu"
        return BACKENDS[config.backend].device
    return "gpu" if gpus else "cpu"


def _count_local_gpus(config: ClusterConfig) -> int:
    """Return how many GPUs this machine's agents will see. Raises `ClusterFileError` where they cannot be listed."""
    environ = select_variables(os.environ, _COUNTED_BY, config.environment)
    try:
        found = _count_gpus(tuple(environ.get(name) for name in _COUNTED_BY))
    except probes.GpusUnknown as exc:
        raise ClusterFileError(
            f"cluster {config.name!r}: the GPUs of this machine cannot be listed: {exc}. {probes.WITHOUT_GPUS}"
        ) from exc
    if not found and (named := environ.get("CUDA_VISIBLE_DEVICES")) and not probes.hides_all_gpus(named):
        raise ClusterFileError(
            f"cluster {config.name!r}: CUDA_VISIBLE_DEVICES={named} names GPUs, but this machine has none that works. "
            f"Load its driver, or unset the variable. {probes.WITHOUT_GPUS}"
        )
    return found


@cache  # nvidia-smi takes up to seconds, and each test needs the number
def _count_gpus(values: tuple[str | None, ...]) -> int:
    given = {name: value for name, value in zip(_COUNTED_BY, values, strict=True) if value is not None}
    others = {name: value for name, value in os.environ.items() if name not in _COUNTED_BY}
    return len(probes.list_gpus(environ={**others, **given}))
