"""Find which of the workers' times changed, which changed together, and which transfers became slower.

Every change belongs to exactly one candidate cause. Workers with the same change are one candidate. A change of one worker and
one group of kinds goes to "rest" if chance explains it: from step to step, other workers have a little more of a kind.

Workers' seconds of receiving and sending are distributed over their links, by how much longer each link was busy. The location
of a cause is the smallest part of the network that has all slow links and no other. A link with few bytes counts only if it was
probed.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.datamodel.probes import ALL
from pytest_dtfperf.datamodel.step_times import MAX_LINKS, LinkTraffic, StepBreakdown, WorkKind
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.explain.measurement_profile import (
    GROUPS,
    CandidateCause,
    CandidateKind,
    Cell,
    ComparedTimes,
    MeasurementProfile,
    list_ends,
    select_worker_parts,
)
from pytest_dtfperf.explain.probes import LINK, find_slower
from pytest_dtfperf.explain.step_events import is_server

Ends = tuple[str, str]  # source, destination
Pair = tuple[str, str]  # the same two in the order of their names


@dataclass(frozen=True)
class SlowNetworkPart:
    """A slow part of the network."""

    location: str | None  # "ps:0>worker:1", "ps:0<>worker:1", a task, a host; None: all of it
    pairs: Sequence[Pair]


def find_slow_transfers(
    cells: Mapping[Cell, float],
    slow: Collection[str],
    baseline: StepBreakdown | None,
    current: StepBreakdown | None,
    hosts: Mapping[str, str],
    probed: Collection[Ends] = (),
) -> Iterator[CandidateCause]:
    """Yield a candidate for each slow part of the network, with what others wait for over the same links.

    Args:
        cells: The changes of the workers' transfers, in seconds.
        slow: The workers with significantly longer transfers. Only their links can be the location.
        probed: Links between hosts that are slower when probed.
    """
    links = _find_links(cells, current)
    traced = {cell: seconds for cell, seconds in cells.items() if links[cell] and (cell[0] in slow or seconds > 0)}
    shared = dict(_distribute_over_links(traced, links, baseline, current))
    of_slow = {ends: {cell: s for cell, s in found.items() if cell[0] in slow} for ends, found in shared.items()}
    untraced = {cell: seconds for cell, seconds in cells.items() if cell not in traced and cell[0] in slow}
    others = {_sort_ends(ends) for ends, found in of_slow.items() if not found}
    known = {ends: found for ends, found in of_slow.items() if found}
    for part in name_slow_parts(known, baseline, current, hosts, probed, others):
        found: dict[Cell, float] = defaultdict(float)
        for ends in list(shared):
            if _sort_ends(ends) in part.pairs:
                for cell, seconds in shared.pop(ends).items():
                    found[cell] += seconds
        if found:  # a breakdown has only the busiest links: the other links of this part belong to it, too
            location = _widen(part.location, {worker for worker, _ in untraced}, slow, {worker for worker, _ in cells}, hosts)
            is_all = location is None or is_server(location)
            theirs = {cell: s for cell, s in untraced.items() if is_all or hosts.get(cell[0]) == location}
            found = {**found, **theirs}
            untraced = {cell: seconds for cell, seconds in untraced.items() if cell not in theirs}
            yield CandidateCause(CandidateKind.TRANSFER, found, location=location)
    if untraced:
        waiting, everyone = ({worker for worker, _ in each} for each in (untraced, cells))
        yield CandidateCause(CandidateKind.TRANSFER, untraced, location=_locate_unknown(waiting, everyone, hosts))


def _widen(
    location: str | None, untraced: Collection[str], slow: Collection[str], everyone: Collection[str], hosts: Mapping[str, str]
) -> str | None:
    """Return the host of a slow worker if all workers there are slow, some of them without a link in the breakdown."""
    host = hosts.get(location or "")
    there = {worker for worker in everyone if hosts.get(worker) == host}
    return host if host and location in there and not there.isdisjoint(untraced) and there <= {*slow} else location


def _locate_unknown(slow: Collection[str], everyone: Collection[str], hosts: Mapping[str, str]) -> str | None:
    """Return the slow location without traced links; None: all.

    It is the one slow worker, or the one host of several if workers on further hosts than the servers' are not slow, or the one
    server.
    """
    servers = [task for task in hosts if is_server(task)]
    if len(slow) == 1:
        return next(iter(slow))
    of_slow, of_servers = ({hosts.get(task) for task in tasks} for tasks in (slow, servers))
    others = {hosts.get(worker) for worker in everyone if worker not in slow} - of_servers
    if len(of_slow) == 1 and others - of_slow - {None}:
        return next(iter(of_slow))
    return servers[0] if len(servers) == 1 and slow else None


def _distribute_over_links(
    cells: Mapping[Cell, float],
    links: Mapping[Cell, Sequence[Ends]],
    baseline: StepBreakdown | None,
    current: StepBreakdown | None,
) -> Iterator[tuple[Ends, Mapping[Cell, float]]]:
    """Yield each link with its part of these seconds."""
    found: dict[Ends, dict[Cell, float]] = defaultdict(lambda: defaultdict(float))
    for (worker, kind), seconds in cells.items():
        growth = {ends: _compute_busy_increase_s(ends, worker, baseline, current) for ends in links[worker, kind]}
        total = sum(growth.values())
        for ends, part in growth.items():
            if part > 0:
                found[ends][worker, kind] += seconds * part / total
    yield from found.items()


def _find_links(cells: Iterable[Cell], breakdown: StepBreakdown | None) -> Mapping[Cell, Sequence[Ends]]:
    """Return the links that seconds can come from: a worker's own in their direction, or else all links of a session."""
    links = [(link.source, link.destination) for link in breakdown.links] if breakdown else []
    is_alone = breakdown is None or len(select_worker_parts(breakdown)) < 2  # of many links, a breakdown has the busiest
    return {cell: _select_links(*cell, links, links if is_alone else []) for cell in cells}


def _select_links(worker: str, kind: str, links: Sequence[Ends], everything: Sequence[Ends]) -> Sequence[Ends]:
    own = [ends for ends in links if worker in ends]
    if kind == WorkKind.HOST:
        return own or everything
    found = [ends for ends in own or everything if (ends[0] if kind == WorkKind.SEND else ends[1]) == worker]
    return found or own or everything


def _compute_busy_increase_s(ends: Ends, worker: str, baseline: StepBreakdown | None, current: StepBreakdown | None) -> float:
    return max(0.0, _compute_busy_s(ends, worker, current) - _compute_busy_s(ends, worker, baseline))


def _compute_busy_s(ends: Ends, worker: str, breakdown: StepBreakdown | None) -> float:
    """Return the seconds of a step in which a link was busy.

    Without aligned clocks they are the link's share of the worker's time for such transfers, by bytes. A link that the
    breakdown left out was busy for as long as the least busy one in it, at most.
    """
    link = _find_link(ends, breakdown)
    if breakdown is None or (link is None and len(breakdown.links) < MAX_LINKS):
        return 0.0
    if link is None:
        return min((each.busy_s for each in breakdown.links if each.busy_s is not None), default=0.0)
    if link.busy_s is not None:
        return link.busy_s
    kind = WorkKind.SEND if ends[0] == worker else WorkKind.RECEIVE
    task = breakdown.tasks.get(worker)
    alike = [each for each in breakdown.links if worker == (each.source if kind == WorkKind.SEND else each.destination)]
    total = sum(each.size_bytes for each in alike)
    return task.parts.get(kind, 0.0) * link.size_bytes / total if task and total else 0.0


def _find_link(ends: Ends, breakdown: StepBreakdown | None) -> LinkTraffic | None:
    links = breakdown.links if breakdown else ()
    return next((link for link in links if (link.source, link.destination) == ends), None)


def name_slow_parts(
    shared: Mapping[Ends, Mapping[Cell, float]],
    baseline: StepBreakdown | None,
    current: StepBreakdown | None,
    hosts: Mapping[str, str],
    probed: Collection[Ends] = (),
    others: Collection[Pair] = (),
) -> Iterator[SlowNetworkPart]:
    """Yield the slow parts of the network, the one with most seconds first.

    `others` are further links. They count as slow if they are busy longer by as much.
    """
    seconds: dict[Pair, float] = defaultdict(float)
    for ends, of_link in shared.items():
        seconds[_sort_ends(ends)] += sum(of_link.values())
    conclusive = _find_conclusive_pairs(current)
    most = max(seconds.values(), default=0.0)
    slower = {
        pair: _compute_slowdown(pair, baseline, current)
        for pair in seconds
        if seconds[pair] > thresholds.MIN_SHARE_OF_LARGEST_LINK * most
    }
    least = max(
        thresholds.MIN_LINK_INCREASE,
        thresholds.MIN_SHARE_OF_SLOWEST_LINK * max((slower[pair] for pair in slower if pair in conclusive), default=0.0),
    )
    slow = {pair for pair in slower if slower[pair] > least or slower[pair] == math.inf}
    slow |= {pair for pair in conclusive & set(others) if slow and _compute_slowdown(pair, baseline, current) > least}
    for _ in range(thresholds.MAX_NETWORK_LOCATIONS):
        if slow.isdisjoint(seconds):
            return
        found = _find_largest_part(slow, conclusive | slow, seconds, hosts)
        pairs = [pair for pair in seconds if found is None or pair in found.pairs or _is_link_end(pair, found.location, hosts)]
        location = found.location if found else None
        if found and len(found.pairs) == 1:
            location = _find_slow_end(found.pairs[0], conclusive, current, hosts, probed) or _format_direction(pairs, shared)
        yield SlowNetworkPart(location, pairs)
        slow -= set(pairs)


def _find_slow_end(
    pair: Pair, conclusive: Collection[Pair], current: StepBreakdown | None, hosts: Mapping[str, str], probed: Collection[Ends]
) -> str | None:
    """Return the one end of a slow link that probes found slow, too, while its other links have too few bytes for a conclusion.

    Some of its other links were slow when probed, or only all of them together and no other host's.
    """
    both = [hosts.get(end, end) for end in pair]
    altogether = {end for ends in probed if ALL in ends for end in ends} - {ALL}
    found = []
    for end, host, other in zip(pair, both, both[::-1], strict=True):
        is_alone = all(end not in each for each in conclusive if each != pair)
        has_more = any(end in each and each != pair for each in _list_server_pairs(current))
        is_slow = any(host in ends and other not in ends and ALL not in ends for ends in probed)
        if is_alone and (is_slow or (has_more and altogether == {host})):
            found.append(end)
    return found[0] if len(found) == 1 else None


def _list_server_pairs(breakdown: StepBreakdown | None) -> set[Pair]:
    """Return the links of workers with parameter servers. Probes do not measure what these exchange."""
    links = [(link.source, link.destination) for link in breakdown.links] if breakdown else []
    return {_sort_ends(ends) for ends in links if is_server(ends[0]) != is_server(ends[1])}


def _find_largest_part(
    slow: Iterable[Pair], conclusive: Iterable[Pair], seconds: Mapping[Pair, float], hosts: Mapping[str, str]
) -> SlowNetworkPart | None:
    """Return the part with most seconds that has only slow links among the conclusive ones; None: the whole network."""
    slow, conclusive = set(slow), set(conclusive)
    candidates = [SlowNetworkPart(None, [pair]) for pair in sorted(slow)]
    tasks = sorted({end for pair in conclusive for end in pair})
    for end in (*tasks, *sorted({*hosts.values()} - {*tasks})):
        of_end = [pair for pair in sorted(conclusive) if _is_link_end(pair, end, hosts)]
        if len(of_end) > 1 and slow.issuperset(of_end):
            candidates.append(SlowNetworkPart(end, of_end))
    best = max(candidates, key=lambda each: (round(sum(seconds.get(pair, 0.0) for pair in each.pairs), 9), -len(each.pairs)))
    is_all = len(slow) > 1 and slow >= conclusive and len(best.pairs) < len(slow)
    return None if is_all else best


def _find_conclusive_pairs(breakdown: StepBreakdown | None) -> set[Pair]:
    sizes: dict[Pair, float] = defaultdict(float)
    for link in breakdown.links if breakdown else ():
        sizes[_sort_ends((link.source, link.destination))] += link.size_bytes
    least = thresholds.MIN_SHARE_OF_LARGEST_LINK * max(sizes.values(), default=0.0)
    return {pair for pair, size in sizes.items() if size > least}


def _compute_slowdown(pair: Pair, baseline: StepBreakdown | None, current: StepBreakdown | None) -> float:
    """Return by what fraction a link is busy longer, in its slower direction."""
    return max(_compute_growth(ends, baseline, current) for ends in (pair, pair[::-1]))


def _compute_growth(ends: Ends, baseline: StepBreakdown | None, current: StepBreakdown | None) -> float:
    worker = next((end for end in ends if not is_server(end)), ends[0])
    before, after = (_compute_busy_s(ends, worker, side) for side in (baseline, current))
    return after / before - 1 if before else math.inf if after else 0.0


def _format_direction(pairs: Sequence[Pair], shared: Mapping[Ends, Mapping[Cell, float]]) -> str:
    """Return the direction in which the one pair is slow, as `ps:0>worker:1`, or `ps:0<>worker:1` for both."""
    (one, other) = pairs[0]
    there, back = (sum(shared.get(ends, {}).values()) for ends in ((one, other), (other, one)))
    if min(there, back) > thresholds.MIN_SHARE_OF_OTHER_DIRECTION * (there + back):
        return f"{other}<>{one}" if is_server(one) else f"{one}<>{other}"
    return f"{one}>{other}" if there > back else f"{other}>{one}"


def _is_link_end(pair: Pair, end: str | None, hosts: Mapping[str, str]) -> bool:
    """Return whether a task is one end of the link, or a host has one end and not the other."""
    return end is not None and (end in pair or [hosts.get(each) == end for each in pair].count(True) == 1)


def _sort_ends(ends: Ends) -> Pair:
    return min(ends), max(ends)


Changes = Mapping[str, Mapping[str, float]]  # worker -> kind -> seconds


def find_candidate_causes(
    both: ComparedTimes, baseline: MeasurementProfile, current: MeasurementProfile
) -> list[CandidateCause]:
    """Return all changes, grouped by what changed together; the rest is last."""
    changes = compute_changes(both)
    hosts = {**baseline.hosts, **current.hosts}
    found: list[CandidateCause] = []
    for what, cells in _group_changes(both, changes, _has_servers(current)).items():
        least_s = {worker: compute_least_change(both, worker, GROUPS[what]) for worker in both.current.own}
        slow = _select_slow_workers(cells, least_s)
        if what == CandidateKind.TRANSFER:
            found += find_slow_transfers(
                cells, slow, baseline.step_breakdown, current.step_breakdown, hosts, _find_slow_probed_links(baseline, current)
            )
        elif slow:
            found += _group_workers(what, cells, slow, list(both.current.own), hosts)
    residual_s = both.current.residual_s - both.baseline.residual_s
    if residual_s > compute_least_residual(both):
        found.append(CandidateCause(CandidateKind.FLOOR, {}, residual_s))
    return append_rest(found, changes, residual_s)


def _find_slow_probed_links(baseline: MeasurementProfile, current: MeasurementProfile) -> Sequence[Ends]:
    """Return the links between hosts that are slower when probed, as source and destination."""
    found = find_slower(baseline.probes, current.probes) if baseline.probes and current.probes else ()
    return [(source, to) for source, to in (list_ends(each.location) for each in found if each.name == LINK)]


def append_rest(found: Sequence[CandidateCause], changes: Changes, residual_s: float) -> list[CandidateCause]:
    """Return the largest candidates, and one candidate for all other changes."""
    kept = sorted(found, key=lambda candidate: -candidate.largest_s)[: thresholds.MAX_CANDIDATES - 1]
    left: dict[Cell, float] = {(worker, kind): seconds for worker, kinds in changes.items() for kind, seconds in kinds.items()}
    for candidate in kept:
        for cell, seconds in candidate.cells.items():
            left[cell] = left.get(cell, 0.0) - seconds
    return [*kept, CandidateCause(CandidateKind.REST, left, residual_s - sum(candidate.residual_s for candidate in kept))]


def compute_changes(both: ComparedTimes) -> Changes:
    before = both.baseline.own
    return {
        worker: {kind: parts.get(kind, 0.0) - before[worker].get(kind, 0.0) for kind in {**before[worker], **parts}}
        for worker, parts in both.current.own.items()
    }


def compute_least_change(both: ComparedTimes, worker: str, kinds: Sequence[str]) -> float:
    """Return the smallest change of these kinds of work of a worker that chance does not explain, in seconds."""
    error = thresholds.STANDARD_ERRORS * compute_error(both, kinds)
    return max(
        error,
        thresholds.MIN_RELATIVE_CHANGE[both.basis] * both.baseline.seconds(worker, kinds),
        thresholds.MIN_SHARE_OF_STEP * both.baseline.step_s,
    )


def compute_error(both: ComparedTimes, kinds: Sequence[str]) -> float:
    """Return the standard error of the change of one worker's mean."""
    return math.hypot(both.baseline.compute_error(kinds), both.current.compute_error(kinds))


def compute_least_residual(both: ComparedTimes) -> float:
    """Return the smallest change of waiting that chance does not explain. As the rest of the step it has all errors."""
    return max(
        thresholds.STANDARD_ERRORS * compute_error(both, [*both.baseline.error_s, *both.current.error_s]),
        thresholds.MIN_SHARE_OF_STEP * both.baseline.step_s,
    )


def _has_servers(side: MeasurementProfile) -> bool:
    return side.step_breakdown is not None and any(is_server(task) for task in side.step_breakdown.tasks)


def _group_changes(both: ComparedTimes, changes: Changes, has_servers: bool) -> Mapping[CandidateKind, Mapping[Cell, float]]:
    """Return the changes by group. TensorFlow's host code on a worker belongs to the group that became longer there."""
    found: dict[CandidateKind, dict[Cell, float]] = defaultdict(dict)
    for worker, kinds in changes.items():
        host = _choose_group_of_host_code(both, worker, kinds)
        elsewhere = {CandidateKind.HOST: host, **({} if has_servers else {CandidateKind.APPLY: CandidateKind.COMPUTE})}
        for what, members in GROUPS.items():
            for kind in members:
                if kind in kinds:
                    found[elsewhere.get(what, what)][worker, kind] = kinds[kind]
    return found


def _choose_group_of_host_code(both: ComparedTimes, worker: str, kinds: Mapping[str, float]) -> CandidateKind:
    """Return the group that a worker's host code belongs to: the one that is significantly longer, and by more than this code.

    Starting operations is host code, too, so that both grow together. Host code that grew by more has a reason of its own: a
    worker that sleeps is not slow by its arithmetic.
    """
    changes = {
        what: sum(kinds.get(kind, 0.0) for kind in GROUPS[what]) for what in (CandidateKind.COMPUTE, CandidateKind.TRANSFER)
    }
    longer = {what: seconds for what, seconds in changes.items() if seconds > compute_least_change(both, worker, GROUPS[what])}
    host_s = kinds.get(WorkKind.HOST, 0.0)
    most = max(longer, key=lambda what: longer[what], default=CandidateKind.HOST)
    return most if 0 < host_s <= longer.get(most, 0.0) else CandidateKind.HOST


def _select_slow_workers(cells: Mapping[Cell, float], least_s: Mapping[str, float]) -> Mapping[str, float]:
    """Return the workers that are significantly longer, with their seconds."""
    of_worker: dict[str, float] = defaultdict(float)
    for (worker, _), seconds in cells.items():
        of_worker[worker] += seconds
    return {worker: seconds for worker, seconds in of_worker.items() if seconds > least_s[worker]}


def _group_workers(
    kind: CandidateKind,
    cells: Mapping[Cell, float],
    slow: Mapping[str, float],
    everyone: Collection[str],
    hosts: Mapping[str, str],
) -> Iterator[CandidateCause]:
    """Yield one candidate for what all workers have in common, and one for each worker with more."""
    is_all = len(slow) == len(everyone) or len({hosts.get(worker, worker) for worker in slow}) > thresholds.MAX_SINGLE_HOSTS
    common = _compute_common_s(list(slow.values())) if is_all else 0.0
    parts: dict[Cell, float] = {}
    alone: dict[str, dict[Cell, float]] = defaultdict(dict)
    workers_at: dict[str | None, list[str]] = defaultdict(list)
    for worker in everyone:
        workers_at[hosts.get(worker)].append(worker)
    for (worker, work), seconds in cells.items():
        if worker not in slow:
            continue
        excess = slow[worker] - common
        own = 0.0 if common and excess <= thresholds.MAX_EXCESS_OVER_COMMON * common else excess / slow[worker]
        parts[worker, work] = seconds * (1 - own)
        if own:
            host = hosts.get(worker)
            there = workers_at[host]
            is_host = 1 < len(there) < len(everyone) and all(other in slow for other in there)  # and others are elsewhere
            alone[host if host and is_host else worker][worker, work] = seconds * own
    if common:
        yield CandidateCause(kind, parts)
    for at, of_those in sorted(alone.items()):
        yield CandidateCause(kind, of_those, location=at)


def _compute_common_s(seconds: Sequence[float]) -> float:
    """Return the seconds that all have in common: of two the smaller, of more the lower median."""
    return min(seconds) if len(seconds) < 3 else statistics.median_low(seconds)
