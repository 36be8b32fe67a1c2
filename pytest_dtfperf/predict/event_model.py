"""The events of one step: values and gradients on links, computing, updates, and how long all of it takes. Pure.

All workers are alike, so a step is computed for one of them: that on the host with the fewest bytes on parameter servers, which
has to fetch the most. docs/predict.md has the equations and what they leave out.

    values      each host with parameter servers sends what it holds to all workers, a stream to each, in the network's order
    streams     share the link of their sender and the link of the worker, each direction for itself, max-min fair
    forward     a layer begins when its values are there and the layer before has ended
    gradients   are sent as they are computed, last layer first
    updates     take no time, once all workers' gradients are there
    barrier     the step ends with the slowest of n devices

Max-min fair sharing: Bertsekas and Gallager, Data Networks, 1992, section 6.5.2. Schedules of all-reduce: Thakur, Rabenseifner
and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005; Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.limits.limit import FORWARD
from pytest_dtfperf.limits.needs import Layout, compute_traffic, count_devices, get_wire_part, needs_values_before_gradients
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.all_reduce import Range, parse
from pytest_dtfperf.training.exchange_plan import Exchange, list_exchanges
from pytest_dtfperf.training.models.outline import get_outline
from pytest_dtfperf.training.placement import FLOAT_BYTES

MESSAGE_S = 40e-6  # of a tensor on the network, however small it is: training/exchange_plan.py

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class NetworkRates:
    """What all hosts can do beside computing."""

    link_bytes_per_s: float  # of a host, in each direction
    message_s: float = MESSAGE_S  # for which a tensor occupies both links, whatever its size


@dataclass(frozen=True)
class Stream:
    """What a worker exchanges with the parameter servers of another host, in the order of the network."""

    host: str
    receivers: int  # workers on other hosts than this one
    starts: Floats  # when each is used: the part of the forward pass before it
    sizes: Floats  # bytes on the wire


class StepModel:
    """A step of one training on one layout, for any network and time of computing."""

    def __init__(self, spec: Spec, layout: Layout) -> None:
        self.spec, self.layout = spec, layout
        self._workers = Counter(layout.hosts[worker] for worker in layout.workers)
        self.wire = get_wire_part(spec)
        self._starts = _find_starts(spec)
        devices = count_devices(spec, layout)
        self.devices = sum(devices.values())

    @property
    def crosses_links(self) -> bool:
        """Whether anything is sent from host to host."""
        return self.busiest_link_bytes > 0

    @cached_property
    def busiest_link_bytes(self) -> float:
        """Bytes per step through the link that has most, in the direction that has more, as limits/ counts them."""
        totals: dict[str, float] = defaultdict(float)
        for phase in compute_traffic(self.spec, self.layout):
            for host, flow in phase.items():
                totals[host] += max(flow.sent, flow.received)
        return max(totals.values(), default=0.0)

    def find_hot_stream(self) -> Stream | None:
        """Return the stream of the host with the most bytes for all workers; None without parameter servers on other hosts."""
        return max(self._streams, key=lambda each: each.receivers * float(each.sizes.sum()), default=None)

    def step_s(self, compute_s: float, network: NetworkRates) -> float:
        """Return the seconds of a step that would compute for `compute_s` if it never waited."""
        if not self.crosses_links:
            return compute_s
        least_s = self.busiest_link_bytes / network.link_bytes_per_s
        if not self.layout.servers:
            return max(least_s, self._find_all_reduce_end(compute_s, network))
        if not self.spec.cross_replica_sync:
            return max(least_s, self._with_servers_s(compute_s, network, alone=True))
        if self.spec.staged_vars and not self.spec.forward_only:
            return max(least_s, compute_s)
        return max(least_s, self._with_servers_s(compute_s, network))

    @cached_property
    def _exchanges(self) -> Sequence[Exchange]:
        return list_exchanges(self.spec)

    @cached_property
    def _streams(self) -> Sequence[Stream]:
        if not self.layout.servers:
            return []
        hosts = [self.layout.hosts[server] for server in self.layout.servers]
        held: Counter[str] = Counter(dict.fromkeys(self._workers, 0))
        for each in self._exchanges:
            held[hosts[each.server]] += each.size_bytes
        own = min(self._workers, key=lambda host: held[host])
        of_host: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for each in self._exchanges:
            of_host[hosts[each.server]].append((float(self._starts[each.first]), each.size_bytes * self.wire))
        return [
            Stream(host, self._workers.total() - self._workers[host], *np.array(sorted(rows)).T)
            for host, rows in of_host.items()
            if host != own
        ]

    def _with_servers_s(self, compute_s: float, network: NetworkRates, *, alone: bool = False) -> float:
        """`alone`: no other worker uses the links, as for one of many that do not wait for each other."""
        streams = self._streams
        flows = [
            Flows(1 if alone else each.receivers, each.sizes + network.message_s * network.link_bytes_per_s) for each in streams
        ]
        on_each = 1 if alone else self._workers[min(self._workers)]
        link = SharedLinks(flows, network.link_bytes_per_s, on_each)
        pulls = self.spec.forward_only or needs_values_before_gradients(self.spec) or alone
        forward_s, backward_s = compute_s * FORWARD, compute_s * (1 - FORWARD)
        if self.spec.forward_only:
            forward_s, backward_s = compute_s, 0.0
        forward_end = forward_s
        if pulls:
            arrivals = link.finish([np.zeros_like(each.sizes) for each in streams])
            for each, arrival in zip(streams, arrivals, strict=True):
                forward_end = max(forward_end, float(np.max(arrival + (1 - each.starts) * forward_s)))
        end = forward_end + backward_s
        if self.spec.forward_only:
            return end
        ready = [forward_end + (1 - each.starts[::-1]) * backward_s for each in streams]  # last layer first
        delivered = link.turn_round().finish(ready)
        last = delivered if pulls else link.turn_round().finish(delivered)
        return max(end, *(float(times[-1]) for times in last))

    def _find_all_reduce_end(self, compute_s: float, network: NetworkRates) -> float:
        ranks = Ranks(len(self._workers), max(self._workers.values()))
        ranges = parse(self.spec.all_reduce_spec or "xring")
        busy: dict[int, list[tuple[float, float]]] = defaultdict(list)  # by the link that a tensor occupies: ready, seconds
        for number, each in enumerate(self._exchanges):
            algorithm = _choose_range(ranges, each.size_bytes // FLOAT_BYTES).algorithm
            ready = compute_s * (FORWARD + (1 - FORWARD) * (1 - float(self._starts[each.first])))
            seconds = ranks.seconds(algorithm, each.size_bytes * self.wire, network)
            busy[ranks.owner(algorithm, number)].append((ready, seconds))
        ends = [compute_s]
        for rows in busy.values():
            ready_s, seconds_s = np.array(sorted(rows)).T
            ends.append(float(_serve(ready_s, seconds_s)[-1]))
        return max(ends)


@dataclass(frozen=True)
class Ranks:
    """The members of an all-reduce: so many hosts, and at most so many workers on each."""

    hosts: int
    on_host: int

    def seconds(self, algorithm: str, size_bytes: float, network: NetworkRates) -> float:
        """Return how long a tensor of this size occupies the links between hosts."""
        hosts = self.hosts
        steps, sent = self._count(algorithm.rpartition("/")[2], 1 if "/" in algorithm else self.on_host, hosts)
        return steps * network.message_s + sent * size_bytes / network.link_bytes_per_s

    @staticmethod
    def _count(algorithm: str, on_host: int, hosts: int) -> tuple[float, float]:
        """Return messages one after another, and how many times its size a tensor is sent by the busiest host."""
        ranks = on_host * hosts
        if algorithm == "rechd":  # halves the tensor log2 n times, then doubles it
            return 2 * math.ceil(math.log2(ranks)), 2 * (1 - 1 / ranks)
        if algorithm in ("pscpu", "psgpu"):  # one rank receives from all others, then sends to all of them
            remote = ranks - on_host
            return 2 * remote, 2 * remote
        return 2 * (ranks - 1), 2 * (ranks - 1) / ranks  # a ring

    def owner(self, algorithm: str, number: int) -> int:
        """Return which link a tensor waits for: one for all in rings, one for each host that adds in turn."""
        return number % self.hosts if algorithm.rpartition("/")[2] in ("pscpu", "psgpu") else -1


def _choose_range(ranges: Sequence[Range], elements: int) -> Range:
    return next(each for each in ranges if each.limit is None or elements <= each.limit)


def _find_starts(spec: Spec) -> Floats:
    """Return, of each trained variable, the part of the forward pass's arithmetic before it is used."""
    outline = get_outline(spec)
    work = np.array([float(outline.work.get(variable.name, 0)) for variable in outline.trained])
    if not work.sum():
        work = np.ones(len(work))  # of own models it is not known which variable takes how much
    found: Floats = np.concatenate(([0.0], np.cumsum(work)[:-1])) / work.sum()
    return found


@dataclass(frozen=True)
class Flows:
    """What is sent from one host: to so many receivers at once, in messages of these sizes to each."""

    receivers: int
    sizes: Floats

    def turn_round(self) -> "Flows":
        return Flows(self.receivers, self.sizes[::-1])


class SharedLinks:
    """Streams from several hosts to one worker, or back. All links have the same rate, and the worker's serves `on_each`."""

    def __init__(self, flows: Sequence[Flows], per_s: float, on_each: int) -> None:
        self._flows, self._per_s, self._on_each = flows, per_s, on_each
        self._most = np.array([per_s / each.receivers for each in flows])  # of each stream, by the link of its host
        self._capacity = per_s / on_each  # of the worker's link
        self._is_even = len({each.receivers for each in flows}) == 1
        self._shares: dict[tuple[int, ...], list[float]] = {}

    def turn_round(self) -> "SharedLinks":
        """Return the same with the last message first."""
        return SharedLinks([each.turn_round() for each in self._flows], self._per_s, self._on_each)

    def finish(self, ready: Sequence[Floats]) -> list[Floats]:
        """Return when each message has come that is ready at these times, which ascend in each stream."""
        if len(self._flows) == 1 or self._most.sum() <= self._capacity * (1 + 1e-9):  # no stream takes from another
            rates = np.minimum(self._most, self._capacity)
            return [_serve(times, each.sizes / rate) for times, each, rate in zip(ready, self._flows, rates, strict=True)]
        return self.share_between(ready)

    def share_between(self, ready: Sequence[Floats]) -> list[Floats]:
        """Return the same for streams that share the worker's link, event by event."""
        offsets = [np.cumsum(each.sizes) for each in self._flows]
        releases = sorted(
            (float(time), number, float(size))
            for number, (times, each) in enumerate(zip(ready, self._flows, strict=True))
            for time, size in zip(times, each.sizes, strict=True)
        )
        sent_at, sent = self._drain(releases)
        return [_find_times(offset, sent[:, number], sent_at) for number, offset in enumerate(offsets)]

    def _drain(self, releases: Sequence[tuple[float, int, float]]) -> tuple[Floats, Floats]:
        """Return times of events, and what each stream has sent until then."""
        count = len(self._flows)
        backlog, sent = [0.0] * count, [0.0] * count
        active: list[int] = []
        now, at = 0.0, 0
        times, states = [0.0], [sent.copy()]
        while at < len(releases) or active:
            if not active and releases[at][0] > now:
                now = releases[at][0]
                times.append(now)
                states.append(sent.copy())
            while at < len(releases) and releases[at][0] <= now:
                backlog[releases[at][1]] += releases[at][2]
                at += 1
            if at == len(releases) and self._is_even:
                rest_times, rest_sent = self._drain_evenly(np.array(backlog))
                return np.append(times, now + rest_times), np.vstack([*states, np.array(sent) + rest_sent])
            active = [stream for stream in range(count) if backlog[stream] > 0]
            rates = self._get_shares(active)
            lasts = min(backlog[stream] / rate for stream, rate in zip(active, rates, strict=True))
            if at < len(releases):
                lasts = min(lasts, releases[at][0] - now)
            for stream, rate in zip(active, rates, strict=True):
                left = backlog[stream] - rate * lasts
                if left < 1e-6:  # bytes
                    left = 0.0
                sent[stream] += backlog[stream] - left
                backlog[stream] = left
            active = [stream for stream in active if backlog[stream]]
            now += lasts
            times.append(now)
            states.append(sent.copy())
        return np.array(times), np.array(states)

    def _drain_evenly(self, backlog: Floats) -> tuple[Floats, Floats]:
        """Return the same of streams that all have the same rate at any time, and to which nothing is added."""
        levels = np.unique(backlog[backlog > 0])
        active = np.array([float((backlog >= level).sum()) for level in levels])
        rates = np.minimum(self._most[0], self._capacity / active)
        times: Floats = np.cumsum(np.diff(levels, prepend=0.0) / rates)
        return times, np.minimum.outer(levels, backlog)

    def _get_shares(self, active: Sequence[int]) -> list[float]:
        """Return the rates of active streams. From event to event the same streams are active again and again."""
        key = tuple(active)
        if key not in self._shares:
            self._shares[key] = self._share(self._most[list(active)]).tolist()
        return self._shares[key]

    def _share(self, most: Floats) -> Floats:
        """Return the max-min fair rates of streams: what their hosts' links allow, or even parts of the rest."""
        rates, capacity, left = most.copy(), self._capacity, np.ones(len(most), dtype=bool)
        while left.any():
            even = capacity / left.sum()
            below = left & (most < even)
            if not below.any():
                rates[left] = even
                break
            capacity -= float(most[below].sum())
            left &= ~below
        return rates


def _find_times(offsets: Floats, sent: Floats, times: Floats) -> Floats:
    """Return the first times at which so much was sent."""
    at = np.minimum(np.maximum(np.searchsorted(sent, offsets - 1e-6), 1), len(sent) - 1)
    before, after = sent[at - 1], sent[at]
    part = np.divide(offsets - before, after - before, out=np.ones_like(offsets), where=after > before)
    found: Floats = times[at - 1] + np.minimum(part, 1.0) * (times[at] - times[at - 1])
    return found


def _serve(ready: Floats, seconds: Floats) -> Floats:
    """Return when each ends that is ready at these times, one after another."""
    before = np.concatenate(([0.0], np.cumsum(seconds)[:-1]))
    ends: Floats = np.maximum.accumulate(ready - before) + before + seconds
    return ends
