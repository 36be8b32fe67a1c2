"""The highest rate that devices, links and memory allow, and which of them it is that allows no more.

    step >= max(FLOP / peak of a host's devices, bytes / rate of a host's link, update bytes / memory of a server's host)

Each is a bound by itself: a step may compute and send at the same time, and nothing more is known of how they overlap. So a
rate may be below the limit for good reasons, and is above it only where a probe has told too little, or a step needs less than
is counted (docs/numbers.md).
"""

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.explain.probes import ALL, HostProbe, Link, Probes
from pytest_dtfperf.formats import counted, percent, rate, with_prefix
from pytest_dtfperf.limits.needs import Flow, Layout, Phase, devices_of, flop, traffic, update_bytes
from pytest_dtfperf.records.arithmetic import NO_TF32, peak_of
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.models.outline import outline_of

CORES, GPUS, LINK, MEMORY = "cores", "gpus", "link", "memory"


@dataclass(frozen=True, kw_only=True)
class Bound(JsonData):
    """What one resource of one host needs for a step, at least."""

    resource: str  # cores, gpus, link or memory
    host: str
    step_s: float
    needs: str  # what of it, and how much it can do, in words


@dataclass(frozen=True, kw_only=True)
class Limit(JsonData):
    """Of one measurement. `images_per_sec` is None where nothing is known that would bound it."""

    images_per_sec: float | None = None
    bounds: Sequence[Bound] = ()  # of each resource the host that needs most; the longest first
    unknown: Mapping[str, str] = field(default_factory=dict)  # resource -> why it, or some host's, is not counted

    @property
    def binding(self) -> Bound | None:
        """The resource that allows no more."""
        return self.bounds[0] if self.bounds else None

    def share(self, images_per_sec: float) -> float | None:
        """What part of it a rate is."""
        return None if self.images_per_sec is None else images_per_sec / self.images_per_sec

    def words(self, images_per_sec: float) -> str:
        """`91.0 % of 441.2 images/sec, the limit by the link of node07: 190 MB sent at 117 MB/s, ...`; empty if not known."""
        share = self.share(images_per_sec)
        if share is None or self.images_per_sec is None or self.binding is None:
            return ""
        where = f"the {_WORDS.get(self.binding.resource, self.binding.resource)} of {self.binding.host}"
        return f"{percent(share)} of {rate(self.images_per_sec)} images/sec, the limit by {where}: {self.binding.needs}"


_WORDS = {GPUS: "GPUs"}

Found = Bound | str  # a bound, or why there is none


def limit(spec: Spec, layout: Layout, probes: Probes, gpus: Collection[str] = ()) -> Limit:
    """Of what is known. `gpus`: names of all kinds, as nvidia-smi gives them; none: the cores of hosts compute."""
    bounds: list[Bound] = []
    unknown: dict[str, str] = {}
    for resource, found in (
        (GPUS if gpus else CORES, _arithmetic(spec, layout, probes, gpus)),
        (LINK, _links(spec, layout, probes)),
        (MEMORY, _memory(spec, layout, probes)),
    ):
        of_all = list(found)
        known = [each for each in of_all if isinstance(each, Bound)]
        if why := [each for each in of_all if isinstance(each, str)]:
            unknown[resource] = why[0]
        if known:
            bounds.append(max(known, key=lambda bound: bound.step_s))
    bounds.sort(key=lambda bound: -bound.step_s)
    images = spec.gpus * spec.batch_size
    return Limit(images_per_sec=images / bounds[0].step_s if bounds else None, bounds=bounds, unknown=unknown)


def _arithmetic(spec: Spec, layout: Layout, probes: Probes, gpus: Collection[str]) -> Iterator[Found]:
    each = flop(spec)
    if each is None:
        yield (
            f"{spec.model}: {outline_of(spec).uncounted}"
            if spec.own_model
            else "an external command trains, and what it computes is not known"
        )
        return
    devices = devices_of(spec, layout)
    for host in dict.fromkeys(layout.hosts[worker] for worker in layout.workers):
        of_host = [worker for worker in layout.workers if layout.hosts[worker] == host]
        count = sum(devices[worker] for worker in of_host)
        if gpus:
            peak, why = _of_gpu(spec, host, probes, gpus)
            needed, what = each, "on each GPU"
        else:
            cores = sum(layout.threads.get(worker, 0) for worker in of_host)
            peak, why = _of_cores(spec, host, probes, cores)
            needed, what = each * count, f"on {counted(cores, 'core')}"
        if peak is None:
            yield why
        else:
            needs = f"{_at(needed, 'FLOP', peak, 'FLOP/s')} {what} ({why})"
            yield Bound(resource=GPUS if gpus else CORES, host=host, step_s=needed / peak, needs=needs)


def _of_cores(spec: Spec, host: str, probes: Probes, cores: int) -> tuple[float | None, str]:
    """FLOP/s of so many cores together, and what says so; or None, and why."""
    if spec.precision != "fp32":
        return None, f"cores were probed in fp32, and this computes in {spec.precision}"
    if not cores:
        return None, "how many cores each worker had is not recorded"
    one, together = (_fastest(probes, host, f"{family}.") for family in ("core", "cores"))
    found = [rate for rate in (one and one * cores, together) if rate]
    return (min(found), "as probed") if found else (None, _not_probed(probes, host))


def _of_gpu(spec: Spec, host: str, probes: Probes, gpus: Collection[str]) -> tuple[float | None, str]:
    """FLOP/s of the fastest of a host's GPUs, as probed, or as its maker says; or None, and why."""
    is_as_probed = spec.precision == "fp32" and NO_TF32 not in spec.environment
    if is_as_probed and (found := _fastest(probes, host, "gpu.")):
        return found, "as probed"
    names = sorted(set(gpus))
    peak = peak_of(names[0], spec.precision, spec.environment) if len(names) == 1 else None
    if peak:
        return peak.flops_per_sec, f"{peak.format} peak of its data sheet"
    return None, f"no peak in {spec.precision} is known of {', '.join(names)}"


def _fastest(probes: Probes, host: str, prefix: str) -> float | None:
    """The higher of products and convolutions; of a host that was not probed, the median of all that were."""

    def of(probe: HostProbe) -> float | None:
        return max((reading.per_s for name, reading in probe.readings.items() if name.startswith(prefix)), default=None)

    return _own_or_median(probes, host, of)


def _own_or_median(probes: Probes, host: str, of: Callable[[HostProbe], float | None]) -> float | None:
    if host in probes.hosts:
        return of(probes.hosts[host])
    return _median(filter(None, map(of, probes.hosts.values())))


def _median(rates: Iterable[float]) -> float | None:
    found = list(rates)
    return statistics.median(found) if found else None


def _links(spec: Spec, layout: Layout, probes: Probes) -> Iterator[Found]:
    phases, links = traffic(spec, layout), Links(probes)
    for host in dict.fromkeys(layout.hosts.values()):
        flows = [phase[host] for phase in phases if host in phase]
        sent, received = sum(flow.sent for flow in flows), sum(flow.received for flow in flows)
        if not sent + received:
            continue
        out, into = links.out(host), links.into(host)
        if (sent and out is None) or (received and into is None):
            yield f"the link of {host} was not probed{_because(probes, host)}"
        if step_s := sum(links.flow_s(host, flow) for flow in flows):
            ways = ((sent, "sent", out), (received, "received", into))
            known = (_at(size, f"B {word}", per_s, "B/s") for size, word, per_s in ways if size and per_s)
            yield Bound(resource=LINK, host=host, step_s=step_s, needs=", ".join(known))


class Links:
    """Bytes/s of hosts' links in each direction: to or from all others at once, or the best with one of them.

    Of a host that was not probed, the median of all that were; None where nothing is known.
    """

    def __init__(self, probes: Probes) -> None:
        self._probed = probes.hosts.keys()
        self._out, self._into = (_by_host(probes, outward=outward) for outward in (True, False))
        self._usual_out, self._usual_into = (_median(rates.values()) for rates in (self._out, self._into))

    def out(self, host: str) -> float | None:
        return self._out.get(host) if host in self._probed else self._usual_out

    def into(self, host: str) -> float | None:
        return self._into.get(host) if host in self._probed else self._usual_into

    def flow_s(self, host: str, flow: Flow) -> float:
        """Both directions at once; one that was not probed counts for nothing."""
        out, into = self.out(host), self.into(host)
        return max(flow.sent / out if out else 0.0, flow.received / into if into else 0.0)

    def phase_s(self, phase: Phase) -> float:
        """Until the last host has sent and received what is its own."""
        return max((self.flow_s(host, flow) for host, flow in phase.items()), default=0.0)


def _by_host(probes: Probes, *, outward: bool) -> dict[str, float]:
    rates: dict[str, float] = {}
    for name, link in probes.links.items():
        for end in _ends(name, link, outward=outward):
            rates[end] = max(rates.get(end, 0.0), link.per_s)
    return rates


def _ends(name: str, link: Link, *, outward: bool) -> Collection[str]:
    """Whose link a reading has filled. A stream of several has had no more than the others have left it."""
    ends = name.split(">")[0 if outward else 1]
    if ends != ALL:
        return [ends]
    return link.streams if len(link.streams) == 1 else []


def _memory(spec: Spec, layout: Layout, probes: Probes) -> Iterator[Found]:
    for host, touched in update_bytes(spec, layout).items():
        per_s = _own_or_median(probes, host, lambda probe: found.per_s if (found := probe.readings.get(MEMORY)) else None)
        if per_s is None:
            yield _not_probed(probes, host)
        else:
            needs = _at(touched, "B of updates", per_s, "B/s")
            yield Bound(resource=MEMORY, host=host, step_s=touched / per_s, needs=needs)


def _at(amount: float, what: str, per_s: float, unit: str) -> str:
    """`190 MB sent at 117 MB/s`."""
    return f"{with_prefix(amount, what)} at {with_prefix(per_s, unit)}"


def _not_probed(probes: Probes, host: str) -> str:
    return f"{host} was not probed{_because(probes, host)}"


def _because(probes: Probes, host: str) -> str:
    why = probes.unknown.get(host) or probes.unknown.get(ALL)
    return f": {why}" if why else ""
