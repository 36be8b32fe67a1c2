"""How much of a cluster a test needs, and how much a session of them. Values in, values out."""

from collections.abc import Iterable, Mapping
from typing import Any

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.plugin.options import Options


def needed(gpus: int, num_ps: int, config: ClusterConfig) -> Resources:
    """What training on so many devices with so many parameter servers needs. More than there is, is not asked for."""
    apart = 0 if config.ps_on_worker_hosts else -(-num_ps // (config.most_ps_per_host or 1))
    return Resources(devices=min(gpus, capacity.devices(config) or gpus), separate_ps_hosts=apart)


def needed_by(test: Mapping[str, Any], options: Options, config: ClusterConfig) -> Resources | None:
    """What a collected test needs, as far as its parameters or the command line say; None if they say nothing."""
    gpus = test.get("gpus") or max(options.gpus or (0,))
    return needed(gpus, _num_ps(test), config) if gpus else None


def _num_ps(test: Mapping[str, Any]) -> int:
    """Of a test that does not say, or leaves it to a baseline: the default."""
    said = test.get("num_ps")
    return said if isinstance(said, int) else 1


def largest(needs: Iterable[Resources], config: ClusterConfig) -> Resources:
    """What is enough for each of them, one after the other: any host can be a worker's, or be for parameter servers alone."""
    return max(needs, key=lambda need: (capacity.hosts_for(config, need), need.devices))


def covers(held: Resources, need: Resources, config: ClusterConfig) -> bool:
    """Whether the hosts of an allocation are enough for another need."""
    return capacity.hosts_for(config, held) >= capacity.hosts_for(config, need)


def too_large(test: Mapping[str, Any], config: ClusterConfig) -> str | None:
    """Why the cluster has too few hosts for a test with these parameters, or None."""
    need = needed(test.get("gpus", 1), _num_ps(test), config)
    there = capacity.hosts(config)
    if there is None or capacity.hosts_for(config, need) <= there:
        return None
    apart = f" and num_ps={_num_ps(test)} on hosts of their own" if need.separate_ps_hosts else ""
    return f"{config.name} has {there} host(s), gpus={need.devices}{apart} need {capacity.hosts_for(config, need)}"
