"""How much of a cluster a test needs, and how much a session of them. Values in, values out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pytest_dtfperf.clusters import capacity
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.spec import Spec


def powers_of_two(limit: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `limit` itself."""
    return tuple(dict.fromkeys([*(1 << i for i in range(limit.bit_length())), limit]))


def most_servers(gpus: int, config: ClusterConfig) -> int:
    """How many parameter servers a sweep considers at most: one for each device, as in 2017, if there is room."""
    there = capacity.hosts(config)
    if there is None:
        return gpus
    fitting = (n for n in range(gpus, 1, -1) if capacity.hosts_for(config, needed(gpus, n, config)) <= there)
    return next(fitting, 1)


def needed(gpus: int, num_ps: int, config: ClusterConfig) -> Resources:
    """What training on so many devices with so many parameter servers needs. More than there is, is not asked for."""
    apart = 0 if config.ps_on_worker_hosts else -(-num_ps // (config.most_ps_per_host or 1))
    return Resources(devices=min(gpus, capacity.devices(config) or gpus), separate_ps_hosts=apart)


def needed_by(test: Mapping[str, Any], given: Sequence[int] | None, config: ClusterConfig) -> Resources | None:
    """What a test needs, as far as its parameters or the device counts `given` for all say; None if they say nothing."""
    gpus = test.get("gpus") or max(given or (0,))
    return needed(gpus, _num_ps(test, gpus, config), config) if gpus else None


def _num_ps(test: Mapping[str, Any], gpus: int, config: ClusterConfig) -> int:
    """Of a test that does not say, or leaves it to a baseline: the default. A sweep needs room for the most it considers."""
    given = test.get("num_ps")
    if given == "sweep":
        return most_servers(gpus, config)
    return given if isinstance(given, int) else 1


def to_ask_for(spec: Spec | None, expected: Sequence[Resources], config: ClusterConfig) -> Resources:
    """What is asked of the cluster to train `spec`, or for no training: for a session, what the largest of all needs.

    `expected`: what else the session will need, as far as that is known. Raises `UsageError` where hosts are lent for each
    measurement, and there is none.
    """
    now = [needed(spec.gpus, spec.num_ps, config)] if spec else []
    if config.allocation == "session":
        return largest([*now, *expected] or [Resources(devices=1)], config)
    if not now:
        raise UsageError(
            f'cluster {config.name} has no hosts between two measurements: its allocation = "test" lends them to '
            'each anew. Train first, or say allocation = "session" in clusters.toml'
        )
    return now[0]


def largest(needs: Iterable[Resources], config: ClusterConfig) -> Resources:
    """What is enough for each of them, one after the other: any host can be a worker's, or be for parameter servers alone."""
    return max(needs, key=lambda need: (capacity.hosts_for(config, need), need.devices))


def covers(held: Resources, need: Resources, config: ClusterConfig) -> bool:
    """Whether the hosts of an allocation are enough for another need."""
    return capacity.hosts_for(config, held) >= capacity.hosts_for(config, need)


def too_large(test: Mapping[str, Any], config: ClusterConfig) -> str | None:
    """Why the cluster has too few hosts for a test with these parameters, or None."""
    gpus = test.get("gpus", 1)
    num_ps = _num_ps(test, gpus, config)
    need = needed(gpus, num_ps, config)
    there = capacity.hosts(config)
    if there is None or capacity.hosts_for(config, need) <= there:
        return None
    apart = f" and num_ps={num_ps} on hosts of their own" if need.separate_ps_hosts else ""
    return f"{config.name} has {counted(there, 'host')}, gpus={need.devices}{apart} need {capacity.hosts_for(config, need)}"
