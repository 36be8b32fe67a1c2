"""What was asked for and what was lent, as two lists of short phrases and whether the second holds the first. Pure.

A cluster may lend what it was not asked for: a node with a broken GPU, nodes on more switches than wanted. Training goes on
there as well as it can, but its rate says nothing of the hosts that were meant.
"""

from collections.abc import Sequence
from typing import Any

from pytest_dtfperf.clusters.capacity import device
from pytest_dtfperf.clusters.named import ClusterConfig, gpus_per_host
from pytest_dtfperf.formats import counted
from pytest_dtfperf.launch.placement import HostView

_NAMED = 8  # of more nodes that are alike their number says enough


def placement(config: ClusterConfig, hosts: Sequence[HostView], *, wanted_nodes: int | None) -> dict[str, Any]:
    """Both lists, all nodes, and whether they hold what was asked for. `wanted_nodes` None: nobody said how many."""
    gpus, switches = _wanted_gpus(config, hosts), config.backend_keys.get("switches")
    known = sorted({host.switch for host in hosts if host.switch is not None})
    requested = [counted(wanted_nodes, "node")] if wanted_nodes else []
    granted = [counted(len(hosts), "node")]
    if gpus:
        requested.append(f"{_gpus(gpus)} each")
        granted += _gpus_on(hosts)
    if switches:
        requested.append(counted(switches, "switch", "es"))
    if known:
        granted.append(f"{counted(len(known), 'switch', 'es')}: {', '.join(known)}")
    elif switches:
        granted.append("switches unknown")
    return {
        "requested": requested,
        "granted": granted,
        "nodes": [{"name": host.name, "gpus": len(host.gpus), "switch": host.switch} for host in hosts],
        "matches": len(hosts) >= (wanted_nodes or 0)
        and all(len(host.gpus) >= gpus for host in hosts)
        and len(known) <= (switches or len(known)),
    }


def _wanted_gpus(config: ClusterConfig, hosts: Sequence[HostView]) -> int:
    """GPUs that each host should have; 0 where none are meant."""
    if config.device == "cpu":
        return 0
    if asked := gpus_per_host(config):
        return asked
    if config.device == "gpu" or any(host.gpus for host in hosts):
        return config.devices_per_host or int(not all(host.gpus for host in hosts))
    return int(device(config) == "gpu")


def _gpus_on(hosts: Sequence[HostView]) -> list[str]:
    names: dict[int, list[str]] = {}
    for host in hosts:
        names.setdefault(len(host.gpus), []).append(host.name)
    if len(names) == 1:
        return [f"{_gpus(count)} each" for count in names]
    return [
        f"{_gpus(count)} on {', '.join(alike) if len(alike) <= _NAMED else counted(len(alike), 'node')}"
        for count, alike in names.items()
    ]


def _gpus(count: int) -> str:
    return counted(count, "GPU") if count else "no GPU"
