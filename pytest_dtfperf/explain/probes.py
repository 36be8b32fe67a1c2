"""Compare probes of hosts and links, and find what became slower. Pure: probes in, differences out.

A probe is a small benchmark of one thing, made while nothing trains: `launch/probing.py` makes it, and docs/explaining.md
describes how each number is measured. A reading that could not be measured is absent, and among the `unknown` with the reason.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.datamodel.probes import ALL, HostProbe, Link, Probes, Reading, split_link_name
from pytest_dtfperf.explain import thresholds


@dataclass(frozen=True)
class Slower:
    """A reading that is lower than before."""

    location: str  # a host, or a link as "node01>node07", "*>node07"
    name: str  # of the reading: "core.matmul", "memory", ...; "link"
    before_per_s: float
    after_per_s: float
    threshold: float  # the loss that chance could explain
    against: str  # the origin of the earlier number: the same location, "the median of all", or "its part of *>node07"
    cpu_share: float | None = None  # of the later probe, as a `Reading` has it

    @property
    def loss(self) -> float:
        """Return the loss as a fraction of the rate before: 0.25 is a quarter less."""
        return 1 - self.after_per_s / self.before_per_s

    @property
    def words(self) -> str:
        """Return the description of the reading, such as `matrix products on one core`."""
        return describe_reading(self.name)

    @property
    def unit(self) -> str:
        return unit_of(self.name)


@dataclass(frozen=True)
class ChangedLimit:
    """A limit of a host that has been set, lowered or changed."""

    host: str
    name: str
    before: float | str | None  # None: unlimited
    after: float | str


_FLOPS, _BYTES, _IMAGES = "FLOP/s", "bytes/s", "images/s"
_OPERATIONS = {"matmul": "matrix products", "convolution": "convolutions"}
LINK = "link"
_USUAL: Mapping[str, float | str] = {"priority": 0}  # default values, which are left out
# The name for messages and the unit of every reading of a host, except for GPUs, and of a link.
READING_NAMES: Mapping[str, tuple[str, str]] = {
    **{f"core.{name}": (f"{operation} on one core", _FLOPS) for name, operation in _OPERATIONS.items()},
    **{f"cores.{name}": (f"{operation} on all cores", _FLOPS) for name, operation in _OPERATIONS.items()},
    "memory": ("copying in memory", _BYTES),
    "input": ("reading and decoding of the input", _IMAGES),
    LINK: ("the link", _BYTES),
}


def describe_reading(name: str) -> str:
    """Describe what a reading measures."""
    if name.startswith("gpu."):
        _, index, operation = name.split(".")
        return f"{_OPERATIONS.get(operation, operation)} on GPU {index}"
    return READING_NAMES[name][0] if name in READING_NAMES else name


def unit_of(name: str) -> str:
    return _FLOPS if name.startswith("gpu.") else READING_NAMES.get(name, ("", ""))[1]


def is_disturbed(probe: HostProbe) -> bool:
    """Return whether other processes used the host's cores during the probe, so that its readings are too low."""
    return (probe.others_cores or 0.0) > thresholds.MAX_CORES_OF_OTHER_PROCESSES


def merge_probes(before: Probes, after: Probes) -> Probes:
    """Return the readings of both. If both have a reading, the later one counts."""
    hosts = {
        name: _merge_host_probes(before.hosts[name], probe) if name in before.hosts else probe
        for name, probe in after.hosts.items()
    }
    return replace(after, hosts={**before.hosts, **hosts}, links={**before.links, **after.links})


def select_missing_probes(probes: Probes, known: Probes) -> Probes:
    """Return the probes of hosts and links that `known` does not have with the same values."""
    hosts = {name: probe for name, probe in probes.hosts.items() if probe != known.hosts.get(name)}
    links = {name: link for name, link in probes.links.items() if link != known.links.get(name)}
    return replace(probes, hosts=hosts, links=links)


def _merge_host_probes(before: HostProbe, after: HostProbe) -> HostProbe:
    readings = {**before.readings, **after.readings}
    unknown = {name: why for name, why in {**before.unknown, **after.unknown}.items() if name not in after.readings}
    return replace(
        after,
        readings=readings,
        unknown=unknown,
        clock_hz=before.clock_hz if after.clock_hz is None else after.clock_hz,
        most_clock_hz=before.most_clock_hz if after.most_clock_hz is None else after.most_clock_hz,
        limits=after.limits or before.limits,
    )


def find_slower(before: Probes, after: Probes) -> Sequence[Slower]:
    """Return the readings that became lower by more than chance explains, the largest loss first.

    Only readings with the same threads, sizes and streams (`how`) are compared.

    A host or link without an earlier probe is compared with the median of all that were measured in the same way: a cluster
    allocates other hosts of the same kind each time.
    """
    found = [*_hosts(before, after), *_links(before, after)]
    return sorted(found, key=lambda each: (-each.loss, each.location, each.name))


def find_limits(before: Probes, after: Probes) -> Sequence[ChangedLimit]:
    """Return the limits of hosts that are new, lower or changed.

    Hosts whose earlier limits are unknown are left out.
    """
    return list(_find_limits_of_host(before, after))


def _find_limits_of_host(before: Probes, after: Probes) -> Iterator[ChangedLimit]:
    for host, probe in after.hosts.items():
        limits_before = before.hosts[host].limits if host in before.hosts else {}
        for name, value in (
            {**_USUAL, **probe.limits}.items() if limits_before and probe.limits else ()
        ):  # limits that were read are never empty: they include cores
            usual = {**_USUAL, **limits_before}.get(name)
            if _is_tighter(usual, value):
                yield ChangedLimit(host, name, usual, value)


def _is_tighter(before: float | str | None, after: float | str) -> bool:
    if isinstance(before, str) or isinstance(after, str) or before is None:
        return before != after
    return before - after > thresholds.MAX_ROUNDING_OF_LIMIT * abs(before)


def _hosts(before: Probes, after: Probes) -> Iterator[Slower]:
    for host, probe in after.hosts.items():
        for name, reading in probe.readings.items():
            own = before.hosts[host].readings.get(name) if host in before.hosts else None
            all_of = [] if own else [each.readings[name] for each in before.hosts.values() if name in each.readings]
            if slower := _find_slower(host, name, own, all_of, reading, thresholds.MIN_PROBE_LOSS):
                yield slower


def _links(before: Probes, after: Probes) -> Iterator[Slower]:
    for link, reading in after.links.items():
        own = before.links.get(link)
        all_of = [] if own else [each for other, each in before.links.items() if _direction(other) == _direction(link)]
        if slower := _find_slower(link, LINK, own, all_of, reading, thresholds.MIN_LINK_PROBE_LOSS):
            yield slower
        if own and own.how == reading.how and len(reading.streams) > 1:
            yield from (slower for slower in _streams(link, own, reading) if slower.location not in after.links)


def _streams(link: str, before: Link, after: Link) -> Iterator[Slower]:
    """Yield the hosts of a fan-in that lost their part of it, even if others took it over and the sum is unchanged."""
    least = thresholds.MIN_STREAM_PROBE_LOSS
    for host, per_s in after.streams.items():
        before_per_s = before.streams.get(host, 0.0)
        if per_s < (1 - least) * before_per_s:
            yield Slower(link.replace(ALL, host), LINK, before_per_s, per_s, least, f"its part of {link}")


def _find_slower(
    location: str, name: str, own: Reading | None, all_of: Sequence[Reading], after: Reading, least: float
) -> Slower | None:
    alike = [each for each in ([own] if own else all_of) if each.how == after.how and each.per_s > 0]
    if not alike:
        return None
    rates = [each.per_s for each in alike]
    usual_per_s = statistics.median(rates)
    host_spread = (max(rates) - min(rates)) / 2 / usual_per_s
    threshold = max(least, max(each.spread for each in alike) + after.spread, host_spread + after.spread)
    if after.per_s >= (1 - threshold) * usual_per_s:
        return None
    against = location if own else "the median of all"
    return Slower(location, name, usual_per_s, after.per_s, threshold, against, after.cpu_share)


def _direction(link: str) -> tuple[bool, bool]:
    """Return for each end of a link whether it stands for all other hosts."""
    source, target = split_link_name(link)
    return source == ALL, target == ALL
