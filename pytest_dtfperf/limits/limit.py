"""Compute the highest rate that devices, links and memory allow, and which of them is the limit.

    step >= max(FLOP / peak of a host's devices, bytes / rate of a host's link, update bytes / memory of a server's host)

Each is a bound by itself, because a step may compute and send at the same time. How far they overlap is not known. Therefore a
rate below the limit is no sign of a fault. A rate is above the limit only if a probe was too low, or a step needs less than is
counted (docs/numbers.md).

The hardware of published rates cannot be probed. They have limits if its data sheets are known.

To choose a number of parameter servers, the duration of a step is predicted from its computation time t, of which a third
is the forward pass, and from the times that the busiest link needs for the variables' values (`down`) and for the gradients
(`up`):

    parameter_server, synchronous       max(t / 3, down) + max(2 t / 3, up)     values come during the forward pass
    distributed_replicated              t + max(0, up - 2 t / 3) + down         gradients leave during the backward pass
    asynchronous, or staged_vars        max(t, down + up)

t follows from one measured step. With two fitted numbers, this predicts the published rates of Piz Daint (report of 2017,
InceptionV3 on 2 to 128 GPUs) within 7 %. A prediction without links is wrong by 92 %. The prediction only ranks candidates,
which are then measured.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.baselines.references import Reference
from pytest_dtfperf.datamodel.explanation import CORES, GPUS, LINK, MEMORY, Bound, Limit
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.probes import ALL, HostProbe, Link, Probes, split_link_name
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.explain.probes import is_disturbed
from pytest_dtfperf.formats import format_count, percent, rate, with_prefix
from pytest_dtfperf.limits.needs import (
    Flow,
    Layout,
    Phase,
    compute_flop,
    compute_server_traffic,
    compute_traffic,
    compute_update_bytes,
    count_devices,
    needs_values_before_gradients,
)
from pytest_dtfperf.records.arithmetic import NO_TF32, peak_of
from pytest_dtfperf.spec import MODELS, VARIABLE_UPDATES, Spec
from pytest_dtfperf.training.models.outline import get_outline

Found = Bound | str  # a bound, or the reason why there is none


def find_limit(spec: Spec, layout: Layout, probes: Probes, gpus: Collection[str] = ()) -> Limit:
    """Return the limit by the resources with a known rate, and for each other resource the reason why it is unknown.

    `gpus` are the names of the GPUs that compute, as nvidia-smi prints them. It is empty if the cores compute.
    """
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


def describe_limit(found: Limit, images_per_sec: float) -> str:
    """Return a rate's share of a limit and its resource; empty if the limit is not known.

    `91.0 % of 441.2 images/sec, the limit by the link of node07: 190 MB sent at 117 MB/s, ...`
    """
    share = found.share(images_per_sec)
    if share is None or found.images_per_sec is None or found.binding is None:
        return ""
    resource = "GPUs" if found.binding.resource == GPUS else found.binding.resource
    where = f"the {resource} of {found.binding.host}"
    return f"{percent(share)} of {rate(found.images_per_sec)} images/sec, the limit by {where}: {found.binding.needs}"


def list_gpus(fingerprint: Fingerprint) -> list[str]:
    """Return the names of the GPUs that compute; none where cores compute, whether or not the hosts have GPUs."""
    hardware = fingerprint.hardware
    return [] if hardware.cpu_devices else [gpu.name for gpu in hardware.gpus]


def _arithmetic(spec: Spec, layout: Layout, probes: Probes, gpus: Collection[str]) -> Iterator[Found]:
    each = compute_flop(spec)
    if each is None:
        yield (
            f"{spec.model}: {get_outline(spec).uncounted}"
            if spec.own_model
            else "an external command trains, and what it computes is not known"
        )
        return
    devices = count_devices(spec, layout)
    workers_at: dict[str, list[str]] = defaultdict(list)
    for worker in layout.workers:
        workers_at[layout.hosts[worker]].append(worker)
    for host, of_host in workers_at.items():
        count = sum(devices[worker] for worker in of_host)
        if gpus:
            peak, why = _get_gpu_rate(spec, host, probes, gpus)
            needed, what = each, "on each GPU"
        else:
            cores = sum(layout.threads.get(worker, 0) for worker in of_host)
            peak, why = _get_cores_rate(spec, host, probes, cores)
            needed, what = each * count, f"on {format_count(cores, 'core')}"
        if peak is None:
            yield why
        else:
            needs = f"{_format_rate(needed, 'FLOP', peak, 'FLOP/s')} {what} ({why})"
            yield Bound(resource=GPUS if gpus else CORES, host=host, step_s=needed / peak, needs=needs)


def _get_cores_rate(spec: Spec, host: str, probes: Probes, cores: int) -> tuple[float | None, str]:
    """Return the FLOP/s of `cores` cores together and the source of this number, or None and the reason."""
    if spec.precision != "fp32":
        return None, f"cores were probed in fp32, and this computes in {spec.precision}"
    if not cores:
        return None, "how many cores each worker had is not recorded"
    one, together = (_get_fastest(probes, host, f"{family}.") for family in ("core", "cores"))
    found = [rate for rate in (one and one * cores, together) if rate]
    return (min(found), "as probed") if found else (None, _describe_unprobed(probes, host))


def _get_gpu_rate(spec: Spec, host: str, probes: Probes, gpus: Collection[str]) -> tuple[float | None, str]:
    """Return the FLOP/s of a host's fastest GPU, probed or from its data sheet, and the source; or None and the reason."""
    is_as_probed = spec.precision == "fp32" and NO_TF32 not in spec.environment
    if is_as_probed and (found := _get_fastest(probes, host, "gpu.")):
        return found, "as probed"
    names = sorted(set(gpus))
    peak = peak_of(names[0], spec.precision, spec.environment) if len(names) == 1 else None
    if peak:
        return peak.flops_per_sec, f"{peak.format} peak of its data sheet"
    return None, f"no peak in {spec.precision} is known of {', '.join(names)}"


def _get_fastest(probes: Probes, host: str, prefix: str) -> float | None:
    """Return the higher rate of matrix products and convolutions; for an unprobed host, the median of all probed ones.

    A probe that other processes disturbed had only a fraction of its cores' time: its rate is divided by this fraction.
    """

    def get_rate(probe: HostProbe) -> float | None:
        is_shared = is_disturbed(probe)
        return max(
            (
                reading.per_s / min(1.0, reading.cpu_share) if is_shared and reading.cpu_share else reading.per_s
                for name, reading in probe.readings.items()
                if name.startswith(prefix)
            ),
            default=None,
        )

    return _get_own_or_median(probes, host, get_rate)


def _get_own_or_median(probes: Probes, host: str, get_rate: Callable[[HostProbe], float | None]) -> float | None:
    if host in probes.hosts:
        return get_rate(probes.hosts[host])
    return _median(filter(None, map(get_rate, probes.hosts.values())))


def _median(rates: Iterable[float]) -> float | None:
    found = list(rates)
    return statistics.median(found) if found else None


def _links(spec: Spec, layout: Layout, probes: Probes) -> Iterator[Found]:
    phases, links = compute_traffic(spec, layout), Links(probes)
    for host in dict.fromkeys(layout.hosts.values()):
        flows = [phase[host] for phase in phases if host in phase]
        sent, received = sum(flow.sent for flow in flows), sum(flow.received for flow in flows)
        if not sent + received:
            continue
        out, into = links.get_out_of(host), links.get_into(host)
        if (sent and out is None) or (received and into is None):
            yield f"the link of {host} was not probed{_format_reason(probes, host)}"
        if step_s := sum(links.flow_s(host, flow) for flow in flows):
            ways = ((sent, "sent", out), (received, "received", into))
            known = (_format_rate(size, f"B {word}", per_s, "B/s") for size, word, per_s in ways if size and per_s)
            yield Bound(resource=LINK, host=host, step_s=step_s, needs=", ".join(known))


class Links:
    """The highest probed rate of each host's link in bytes/s, by direction: with all other hosts at once, or with one of them.

    A host that was not probed gets the median of the probed ones. The rate is None if it was not probed.
    """

    def __init__(self, probes: Probes) -> None:
        self._probed = probes.hosts.keys()
        self._out, self._into = (_list_host_rates(probes, outward=outward) for outward in (True, False))
        self._usual_out, self._usual_into = (_median(rates.values()) for rates in (self._out, self._into))

    def get_out_of(self, host: str) -> float | None:
        return self._out.get(host) if host in self._probed else self._usual_out

    def get_into(self, host: str) -> float | None:
        return self._into.get(host) if host in self._probed else self._usual_into

    def flow_s(self, host: str, flow: Flow) -> float:
        """Return the seconds of a flow, in both directions at the same time. A direction that was not probed takes no time."""
        out, into = self.get_out_of(host), self.get_into(host)
        return max(flow.sent / out if out else 0.0, flow.received / into if into else 0.0)

    def phase_s(self, phase: Phase) -> float:
        """Return the seconds until the last host has sent and received all of its bytes."""
        return max((self.flow_s(host, flow) for host, flow in phase.items()), default=0.0)


def _list_host_rates(probes: Probes, *, outward: bool) -> dict[str, float]:
    rates: dict[str, float] = {}
    for name, link in probes.links.items():
        for end in _list_measured_ends(name, link, outward=outward):
            rates[end] = max(rates.get(end, 0.0), link.per_s)
    return rates


def _list_measured_ends(name: str, link: Link, *, outward: bool) -> Collection[str]:
    """Return the hosts for which a reading is the rate of their whole link.

    If several hosts share the link of one host, their readings are only shares of it, and not the rates of their own links.
    """
    ends = split_link_name(name)[0 if outward else 1]
    if ends != ALL:
        return [ends]
    return link.streams if len(link.streams) == 1 else []


def _memory(spec: Spec, layout: Layout, probes: Probes) -> Iterator[Found]:
    for host, touched in compute_update_bytes(spec, layout).items():
        per_s = _get_own_or_median(probes, host, lambda probe: found.per_s if (found := probe.readings.get(MEMORY)) else None)
        if per_s is None:
            yield _describe_unprobed(probes, host)
        else:
            needs = _format_rate(touched, "B of updates", per_s, "B/s")
            yield Bound(resource=MEMORY, host=host, step_s=touched / per_s, needs=needs)


def _format_rate(amount: float, what: str, per_s: float, unit: str) -> str:
    """Return an amount with its rate, as `190 MB sent at 117 MB/s`."""
    return f"{with_prefix(amount, what)} at {with_prefix(per_s, unit)}"


def _describe_unprobed(probes: Probes, host: str) -> str:
    return f"{host} was not probed{_format_reason(probes, host)}"


def _format_reason(probes: Probes, host: str) -> str:
    why = probes.unknown.get(host) or probes.unknown.get(ALL)
    return f": {why}" if why else ""


FORWARD = 1 / 3  # of a step's arithmetic; docs/numbers.md
ALL_UP_TO = 8  # all counts are considered up to here; above, each is a quarter more than the one before
WITHIN = 0.10  # of the best predicted rate: counts that are predicted to be slower are not tried
MOST_TRIED = 4
_HALVINGS = 60  # of an interval that is at first as long as a step


def list_server_counts(most: int) -> list[int]:
    """Return the numbers of parameter servers that are considered, with one and `most` among them."""
    found = list(range(1, min(most, ALL_UP_TO) + 1))
    while found[-1] < most:
        found.append(min(most, math.ceil(found[-1] * 1.25)))
    return found


def predict_step(spec: Spec, layout: Layout, links: Links, compute_s: float) -> float:
    """Return the seconds of a step that would compute for `compute_s` without waiting."""
    phases = compute_server_traffic(spec, layout) if len(set(layout.hosts.values())) > 1 else ({}, {})
    down, up = (links.phase_s(phase) for phase in phases)
    if needs_values_before_gradients(spec):
        return max(compute_s * FORWARD, down) + max(compute_s * (1 - FORWARD), up)
    if spec.variable_update == "distributed_replicated":
        return compute_s + max(0.0, up - compute_s * (1 - FORWARD)) + down
    return max(compute_s, down + up)


def estimate_compute_s(spec: Spec, layout: Layout, links: Links, measured_s: float) -> float:
    """Return the shortest computation time with which a step is predicted to take `measured_s`; near zero if links alone do."""
    low, high = 0.0, measured_s
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if predict_step(spec, layout, links, middle) < measured_s:
            low = middle
        else:
            high = middle
    return high


def predict_rates(spec: Spec, layouts: Mapping[int, Layout], links: Links, compute_s: float) -> dict[int, float]:
    """Return images/sec by number of parameter servers, each with its layout."""
    images = spec.gpus * spec.batch_size
    return {
        count: images / predict_step(spec.replace(num_ps=count), layout, links, compute_s) for count, layout in layouts.items()
    }


def choose_counts(rates: Mapping[int, float]) -> list[int]:
    """Return the counts to try, the most promising first: the fewest servers of the best rate, then others near it.

    `rates` are the predicted ones. A count that is predicted to be more than 10 % slower than the best is left out; of the
    others those are chosen that are far from each other.
    """
    near = [count for count in sorted(rates) if rates[count] >= (1 - WITHIN) * max(rates.values())]
    chosen = [propose_count(rates)]
    while len(chosen) < min(MOST_TRIED, len(near)):
        left = [count for count in near if count not in chosen]
        chosen.append(max(left, key=lambda count: (round(_distance(count, chosen), 9), rates[count], -count)))
    return [chosen[0], *sorted(chosen[1:], key=lambda count: (-rates[count], count))]


def propose_count(rates: Mapping[int, float]) -> int:
    """Return the fewest servers with a rate within a hundredth of the best: each further server is one more process."""
    return min(count for count, rate in rates.items() if rate >= 0.99 * max(rates.values()))


def _distance(count: int, chosen: Sequence[int]) -> float:
    return min(abs(math.log(count / other)) for other in chosen)


@dataclass(frozen=True)
class PublishedHardware:
    """The hardware of a publication's system. `gpu` is the name that nvidia-smi prints, as in records/arithmetic.py."""

    gpu: str
    link_bytes_per_s: float | None = None  # of a node, in each direction; None: not published
    source: str = ""


_P2_8XLARGE = PublishedHardware(
    "Tesla K80", 10e9 / 8, "AWS, GPU & FPGA briefing, March 2017: 10 Gbps in a placement group; K80 for each of two GK210"
)
HARDWARE: Mapping[str, PublishedHardware] = {
    "dgx1": PublishedHardware("Tesla P100-SXM2-16GB", source="NVIDIA, DGX-1 data sheet: eight with NVLink, in one node"),
    "ec2-p3.16xlarge": PublishedHardware("Tesla V100-SXM2-16GB", source="AWS, P3 instances: eight with NVLink, in one node"),
    "piz-daint": PublishedHardware("Tesla P100-PCIE-16GB", source="the publication; it has no rate of one node over Aries"),
    "cscs-ec2-p2.xlarge": PublishedHardware(
        "Tesla K80", source="the publication; its network may exceed its specified rate for a short time"
    ),
    "cscs-ec2-p2.8xlarge": _P2_8XLARGE,
    "google-ec2-p2.8xlarge": _P2_8XLARGE,
    "google-ec2-p2.8xlarge-distributed": _P2_8XLARGE,
    "gce-n1-standard-32-k80x8": PublishedHardware("Tesla K80", source="the publication: eight in one node"),
}


def compute_published_limit(reference: Reference) -> Limit:
    """Return a published row's limit with the tasks of 2017: a worker per node, and parameter servers on the nodes in turn."""
    hardware = HARDWARE.get(reference.system)
    if hardware is None or not reference.gpus or reference.mode != "training" or reference.model not in MODELS:
        return Limit(unknown={"gpus": f"the hardware of {reference.system}, or its training, is not known"})
    try:
        spec, layout = describe_published(reference)
    except SpecError as error:
        return Limit(unknown={"gpus": str(error)})
    links = _published_links(hardware, reference.nodes or 1, knows_bytes=has_known_bytes(reference))
    return find_limit(spec, layout, links, [hardware.gpu])


def describe_published(reference: Reference) -> tuple[Spec, Layout]:
    """Return the spec of a published row and the layout of its tasks in 2017. Raises `SpecError` if no spec describes it."""
    spec, nodes = _spec(reference), reference.nodes or 1
    tasks = {f"ps:{number}": f"node {number % nodes + 1}" for number in range(spec.num_ps)}
    return spec, Layout({**tasks, **{f"worker:{number}": f"node {number + 1}" for number in range(nodes)}})


def _spec(reference: Reference) -> Spec:
    """Return the spec of a published row. Raises `SpecError` if no spec describes it. Images have the model's size."""
    mode = reference.variable_update if reference.variable_update in VARIABLE_UPDATES else "parameter_server"
    assert mode
    return Spec(
        model=reference.model,
        batch_size=reference.batch_size or MODELS[reference.model].batch_size,
        gpus=reference.gpus,
        num_ps=(reference.num_ps or 0) if VARIABLE_UPDATES[mode].parameter_servers else 0,
        variable_update=mode,
        precision=reference.precision,
    )


def has_known_bytes(reference: Reference) -> bool:
    """Return whether the publication has all that determines the bytes of a step."""
    return None not in (reference.batch_size, reference.nodes, reference.variable_update, reference.num_ps)


def _published_links(hardware: PublishedHardware, nodes: int, *, knows_bytes: bool) -> Probes:
    rate = hardware.link_bytes_per_s
    if rate is None or not knows_bytes:
        return Probes()
    names = [f"node {number + 1}" for number in range(nodes)]
    ways = (way for name in names for way in (f"*>{name}", f"{name}>*"))
    return Probes(links={way: Link(per_s=rate, spread=0.0, repeats=1) for way in ways})
