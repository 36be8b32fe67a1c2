"""Compare probes of hosts and links, and find what became slower. Pure: probes in, differences out.

A probe is a small benchmark of one thing, made while nothing trains: `launch/probing.py` makes it, and docs/explaining.md
describes how each number is measured. A reading that could not be measured is absent, and among the `unknown` with the reason.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.datamodel.probes import HostProbe, Link, Probes, Reading
from pytest_dtfperf.explain import thresholds

ALL = "*"  # in the name of a link: all the others at once, as in "*>node07"


@dataclass(frozen=True)
class Slower:
    """A reading that is lower than before."""

    location: str  # a host, or a link as "node01>node07", "*>node07"
    name: str  # of the reading: "core.matmul", "memory", ...; "link"
    before_per_s: float
    now_per_s: float
    threshold: float  # the loss that chance could explain
    against: str  # the origin of the earlier number: the same location, "the median of all", or "its part of *>node07"
    cpu_share: float | None = None  # now, as a `Reading` has it

    @property
    def loss(self) -> float:
        """Return the loss as a fraction of the rate before: 0.25 is a quarter less."""
        return 1 - self.now_per_s / self.before_per_s

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
    now: float | str


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


def merge_probes(before: Probes, now: Probes) -> Probes:
    """Return the readings of both. If both have a reading, the later one counts."""
    hosts = {
        name: _merge_host_probes(before.hosts[name], probe) if name in before.hosts else probe
        for name, probe in now.hosts.items()
    }
    return replace(now, hosts={**before.hosts, **hosts}, links={**before.links, **now.links})


def select_missing_probes(probes: Probes, known: Probes) -> Probes:
    """Return the probes of hosts and links that `known` does not have with the same values."""
    hosts = {name: probe for name, probe in probes.hosts.items() if probe != known.hosts.get(name)}
    links = {name: link for name, link in probes.links.items() if link != known.links.get(name)}
    return replace(probes, hosts=hosts, links=links)


def _merge_host_probes(before: HostProbe, now: HostProbe) -> HostProbe:
    readings = {**before.readings, **now.readings}
    unknown = {name: why for name, why in {**before.unknown, **now.unknown}.items() if name not in now.readings}
    return replace(
        now,
        readings=readings,
        unknown=unknown,
        clock_hz=before.clock_hz if now.clock_hz is None else now.clock_hz,
        most_clock_hz=before.most_clock_hz if now.most_clock_hz is None else now.most_clock_hz,
        limits=now.limits or before.limits,
    )


def find_slower(before: Probes, now: Probes) -> Sequence[Slower]:
    """Return the readings that became lower by more than chance explains, the largest loss first.

    Only readings with the same threads, sizes and streams (`how`) are compared.

    A host or link without an earlier probe is compared with the median of all that were measured in the same way: a cluster
    allocates other hosts of the same kind each time.
    """
    found = [*_hosts(before, now), *_links(before, now)]
    return sorted(found, key=lambda each: (-each.loss, each.location, each.name))


def find_limits(before: Probes, now: Probes) -> Sequence[ChangedLimit]:
    """Return the limits of hosts that are new, lower or changed.

    Hosts whose earlier limits are unknown are left out.
    """
    return list(_find_limits_of_host(before, now))


def _find_limits_of_host(before: Probes, now: Probes) -> Iterator[ChangedLimit]:
    for host, probe in now.hosts.items():
        then = before.hosts[host].limits if host in before.hosts else {}
        for name, value in (
            {**_USUAL, **probe.limits}.items() if then and probe.limits else ()
        ):  # limits that were read are never empty: they include cores
            usual = {**_USUAL, **then}.get(name)
            if _is_tighter(usual, value):
                yield ChangedLimit(host, name, usual, value)


def _is_tighter(before: float | str | None, now: float | str) -> bool:
    if isinstance(before, str) or isinstance(now, str) or before is None:
        return before != now
    return before - now > thresholds.MAX_ROUNDING_OF_LIMIT * abs(before)


def _hosts(before: Probes, now: Probes) -> Iterator[Slower]:
    for host, probe in now.hosts.items():
        for name, reading in probe.readings.items():
            own = before.hosts[host].readings.get(name) if host in before.hosts else None
            all_of = [] if own else [each.readings[name] for each in before.hosts.values() if name in each.readings]
            if slower := _find_slower(host, name, own, all_of, reading, thresholds.MIN_PROBE_LOSS):
                yield slower


def _links(before: Probes, now: Probes) -> Iterator[Slower]:
    for link, reading in now.links.items():
        own = before.links.get(link)
        all_of = [] if own else [each for other, each in before.links.items() if _direction(other) == _direction(link)]
        if slower := _find_slower(link, LINK, own, all_of, reading, thresholds.MIN_LINK_PROBE_LOSS):
            yield slower
        if own and own.how == reading.how and len(reading.streams) > 1:
            yield from (slower for slower in _streams(link, own, reading) if slower.location not in now.links)


def _streams(link: str, before: Link, now: Link) -> Iterator[Slower]:
    """Yield the hosts of a fan-in that lost their part of it, even if others took it over and the sum is unchanged."""
    for host, per_s in now.streams.items():
        then = before.streams.get(host, 0.0)
        if per_s < (1 - thresholds.MIN_STREAM_PROBE_LOSS) * then:
            yield Slower(link.replace(ALL, host), LINK, then, per_s, thresholds.MIN_STREAM_PROBE_LOSS, f"its part of {link}")


def _find_slower(
    location: str, name: str, own: Reading | None, all_of: Sequence[Reading], now: Reading, least: float
) -> Slower | None:
    alike = [each for each in ([own] if own else all_of) if each.how == now.how and each.per_s > 0]
    if not alike:
        return None
    rates = [each.per_s for each in alike]
    then = statistics.median(rates)
    host_spread = (max(rates) - min(rates)) / 2 / then
    threshold = max(least, max(each.spread for each in alike) + now.spread, host_spread + now.spread)
    if now.per_s >= (1 - threshold) * then:
        return None
    return Slower(location, name, then, now.per_s, threshold, location if own else "the median of all", now.cpu_share)


def _direction(link: str) -> tuple[bool, bool]:
    """Return for each end of a link whether it stands for all other hosts."""
    source, _, target = link.partition(">")
    return source == ALL, target == ALL
