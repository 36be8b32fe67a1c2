"""Readings of hosts and links that another session took within the hour, so that a session begins without taking them again.

A reading of a host is valid until its kernel starts again, for the same cores, GPUs and Python; a reading of a link for the
same set of such hosts. Readings that other processes disturbed are not kept, for the next session would use them.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pytest_dtfperf.clusters import answer_cache
from pytest_dtfperf.clusters.named import ClusterConfig, python
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.explain.probes import HostProbe, Link, Probes, is_disturbed
from pytest_dtfperf.launch.placement import HostView

MAX_AGE_S = 3600.0
Kept = TypeVar("Kept", HostProbe, Link)
_NOT_KEPT = "input"  # depends on the data set, which the name of a reading does not show


def load_probes(config: ClusterConfig, hosts: Sequence[HostView]) -> Probes:
    """Return what is known of these hosts and the links between them; hosts without a boot id are unknown."""
    found = {}
    for host in hosts:
        kept = answer_cache.load(_host_key(config, host), MAX_AGE_S) if host.boot else None
        if kept is not None and (probe := _parse(HostProbe, kept)):
            found[host.name] = probe
    read = {name: link for name, each in _load_links(hosts).items() if (link := _parse(Link, each["link"]))}
    return Probes(hosts=found, links=read)


def store_probes(config: ClusterConfig, hosts: Sequence[HostView], probes: Probes) -> None:
    """Keep the undisturbed readings of `probes`, all of which were taken now."""
    disturbed = {name for name, probe in probes.hosts.items() if probe.unknown or is_disturbed(probe)}
    for host in hosts:
        probe = probes.hosts.get(host.name)
        if probe is None or host.name in disturbed or not host.boot:
            continue
        readings = {name: reading for name, reading in probe.readings.items() if name != _NOT_KEPT}
        answer_cache.store(_host_key(config, host), replace(probe, readings=readings).to_json())
    if probes.links and not disturbed and all(host.boot for host in hosts):
        new = {name: {"at": time.time(), "link": link.to_json()} for name, link in probes.links.items()}
        answer_cache.store(_links_key(hosts), {**_load_links(hosts), **new})


def _load_links(hosts: Sequence[HostView]) -> dict[str, Any]:
    """Return the readings of links by name, each with the time at which it was taken, without those that are too old."""
    kept = answer_cache.load(_links_key(hosts), MAX_AGE_S) if all(host.boot for host in hosts) else None
    try:
        return {name: each for name, each in (kept or {}).items() if time.time() - each["at"] <= MAX_AGE_S}
    except (TypeError, KeyError):  # another version of this package wrote it
        return {}


def _parse(kind: type[Kept], kept: Any) -> Kept | None:
    """Return a reading of the file, or None for one that another version of this package wrote."""
    try:
        return kind.from_json(kept)
    except ValidationError:
        return None


def _host_key(config: ClusterConfig, host: HostView) -> str:
    computes_with = (host.cpus, host.gpus, config.entry, python(config), config.environment)
    return f"probe of {host.name} {host.boot} {_digest(str(computes_with))}"


def _links_key(hosts: Sequence[HostView]) -> str:
    return f"links of {_digest(' '.join(sorted(f'{host.name} {host.address} {host.boot}' for host in hosts)))}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
