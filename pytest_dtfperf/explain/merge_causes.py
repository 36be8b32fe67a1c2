"""Merge candidate causes of several kinds of work that have one cause, and find the reason why arithmetic takes longer.

Such causes are a host without free cores or with an input that takes them, a late server, another graph, a lower clock, less
memory and other software. A case is one candidate cause with both sides, from which its reason follows.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pytest_dtfperf.datamodel.explanation import CauseKind, Confidence
from pytest_dtfperf.datamodel.step_times import WorkKind
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.explain.host_pressure import HostPressure, find_host_pressures
from pytest_dtfperf.explain.measurement_profile import (
    GROUPS,
    CandidateCause,
    CandidateKind,
    Cell,
    ComparedTimes,
    MeasurementProfile,
    Times,
    add_host,
    compute_update_ratio,
    compute_update_time,
    is_single_session,
    list_ends,
    ms,
    percent_longer,
)
from pytest_dtfperf.explain.step_events import is_server

_OF_SERVERS = (CandidateKind.APPLY, CandidateKind.SERVER)  # candidates that do not belong to a worker
_WITH_LOCATIONS = frozenset({CauseKind.LINK, CauseKind.INPUT})


@dataclass(frozen=True)
class Reason:
    """The kind, location, message, evidence and confidence of a cause."""

    kind: CauseKind
    location: str | None
    words: str
    evidence: Sequence[str]
    confidence: Confidence


@dataclass(frozen=True)
class ExplainCase:
    """A candidate cause with the facts of both sides."""

    baseline: MeasurementProfile
    current: MeasurementProfile
    both: ComparedTimes
    candidate: CandidateCause

    @cached_property
    def hosts(self) -> Mapping[str, str]:
        """Return the host of each task."""
        return {**self.baseline.hosts, **self.current.hosts}

    @property
    def location(self) -> str | None:
        """Return the location; of a single worker its name, unless it is the work of parameter servers."""
        is_its = len(self.both.current.own) == 1 and self.candidate.kind not in _OF_SERVERS
        return self.candidate.location or (next(iter(self.both.current.own)) if is_its else None)

    @property
    def subject(self) -> str:
        """Return the subject of messages, as `worker:5 (node03)`.

        Workers on many hosts with the same change are only counted.
        """
        if self.location:
            return add_host(self.location, self.hosts)
        everyone = self.both.current.own
        return f"each of {len(self.workers)} of the {len(everyone)} workers" if self.other_workers else "every worker"

    @property
    def workers(self) -> Sequence[str]:
        return self.candidate.workers or sorted(self.both.current.own)

    @property
    def other_workers(self) -> Sequence[str]:
        workers = set(self.workers)
        return [worker for worker in self.both.current.own if worker not in workers]

    @property
    def all_wait(self) -> str:
        times = self.both.current
        is_one_of_several = self.candidate.location and len(times.own) > 1
        return "; all wait for it" if is_one_of_several and self.current.in_lockstep and not times.coordinated else ""

    @property
    def before_text(self) -> str:
        """Return the phrase for the side of the earlier numbers."""
        return "the others" if self.both.basis == "peers" else self.baseline.when

    @property
    def reference_name(self) -> str:
        """Return the phrase for the times that it is slower than."""
        if self.both.basis == "peers":
            return "the others"
        return "its baseline" if self.location and self.baseline.name == "the baseline" else self.baseline.name

    def seconds(self, what: CandidateKind) -> tuple[float, float]:
        """Return the mean of these workers' seconds of a group of kinds, on the baseline side and on the current side."""
        sides = self.both.baseline, self.both.current
        found = (sum(side.seconds(worker, GROUPS[what]) for worker in self.workers) for side in sides)
        before, after = (seconds / len(self.workers) for seconds in found)
        return before, after

    def describe_host_pressures(self, *kinds: CauseKind) -> Sequence[str]:
        """Return the findings of its hosts that support such a cause.

        A cause without a location needs them of all hosts that take part. Links and inputs have them with their location.
        """
        at = {self.hosts.get(end, end) for end in list_ends(self.location)}
        found = [each for each in self._host_pressures if each.kind in kinds and (not at or not at.isdisjoint(each.hosts))]
        is_reported = (
            at or _WITH_LOCATIONS.issuperset(kinds) or {host for each in found for host in each.hosts} >= self._taking_part
        )
        return [each.words for each in found] if is_reported else []

    @property
    def _taking_part(self) -> set[str]:
        """Return the hosts that take part, as far as they are known."""
        tasks = filter(is_server, self.hosts) if self.candidate.kind in _OF_SERVERS else self.workers
        return {self.hosts[task] for task in tasks if task in self.hosts}

    @cached_property
    def _host_pressures(self) -> Sequence[HostPressure]:
        return find_host_pressures(self.baseline, self.current)

    def reason(self, kind: CauseKind, message: str, evidence: Sequence[str], agreeing: Sequence[str] = ()) -> Reason:
        """Return the reason. `agreeing` is evidence that does not come from the same seconds."""
        sure = Confidence.MEDIUM if not agreeing else Confidence.HIGH
        if self.both.basis == "peers":
            sure = Confidence.MEDIUM if agreeing else Confidence.LOW
        return Reason(kind, self.location, f"{message}{self.all_wait}", [*evidence, *agreeing], sure)


def explain_compute(case: ExplainCase) -> Reason:
    before, after = case.seconds(CandidateKind.COMPUTE)
    seconds = f"computes {ms(after)} ms of a step, {ms(before)} ms {case.before_text}"
    slower = f"{case.subject} computes {percent_longer(before, after)} slower than {case.reference_name}"
    evidence = [seconds, *_list_same_graph(case)]
    for kind in (CauseKind.CLOCK, CauseKind.MEMORY):
        if found := case.describe_host_pressures(kind):
            return case.reason(kind, f"{slower}; {found[0]}", evidence, found)
    if case.candidate.location is None and case.current.software_changes:
        return explain_software(case, slower, evidence)
    found = case.describe_host_pressures(CauseKind.COMPUTE, CauseKind.OTHERS)
    return case.reason(CauseKind.COMPUTE, f"{slower}; {found[0]}" if found else slower, evidence, found)


def explain_starvation(case: ExplainCase) -> Reason:
    """Return the reason of work without a core: by its arithmetic if that is conclusive, and else by the kernel's counts."""
    others = case.describe_host_pressures(CauseKind.OTHERS)
    longer = describe_starvation(case)
    message = f"{case.subject} waits for its cores: {longer or next(iter(others), 'it was ready to work, and had none')}"
    evidence = ["it was ready to compute, and had no core"] if longer else []
    return case.reason(CauseKind.OTHERS, message, evidence, others if longer else others[1:] or others)


def explain_decoding(case: ExplainCase) -> Reason:
    before, after = case.seconds(CandidateKind.COMPUTE)
    probed = case.describe_host_pressures(CauseKind.INPUT)
    message = f"{case.subject} decodes its input on the cores that it computes with; {probed[0]}"
    longer = describe_decoding(case)  # of all together, as some may only wait for their batches
    evidence = [f"computes {ms(after)} ms of a step, {ms(before)} ms {case.before_text}", *([longer] if longer else [])]
    return case.reason(CauseKind.INPUT, message, evidence, probed)


def describe_decoding(case: ExplainCase) -> str:
    """Describe that the input takes more of the computing cores: by a probe, and by more CPU time of the process.

    Return empty text if it does not, or if it is not known.
    """
    cpu_s, usual_cpu_s = (compute_mean_cpu_s(side, case.workers) for side in (case.current, case.baseline))
    before, after = case.seconds(CandidateKind.COMPUTE)
    if case.both.basis == "peers" or not case.describe_host_pressures(CauseKind.INPUT) or cpu_s is None or usual_cpu_s is None:
        return ""
    is_more = cpu_s - usual_cpu_s > thresholds.MAX_SHARE_OF_CPU_WORK * (after - before)
    return f"{ms(cpu_s)} ms of CPU for a step, {ms(usual_cpu_s)} ms {case.before_text}" if is_more else ""


def explain_software(case: ExplainCase, message: str, evidence: Sequence[str]) -> Reason:
    """Return a reason with low confidence: versions differ, but it is not known whether they make it slower."""
    changed = ", ".join(case.current.software_changes)
    return replace(
        case.reason(CauseKind.SOFTWARE, f"{message}; versions differ: {changed}", evidence), confidence=Confidence.LOW
    )


def describe_starvation(case: ExplainCase) -> str:
    """Describe that the same arithmetic waited for a core; return empty text if it did not, or if it is not known."""
    current = _compute_wall_and_cpu_s(case.both.current, case.current, case.workers)
    usual = (
        _compute_wall_and_cpu_s(case.both.current, case.current, case.other_workers)
        if case.both.basis == "peers"
        else _compute_wall_and_cpu_s(case.both.baseline, case.baseline, case.workers)
    )
    if current is None or usual is None:
        return ""
    (wall, cpu), (usual_wall, usual_cpu) = current, usual
    longer, more_work = wall / usual_wall - 1, cpu / usual_cpu - 1
    if (
        more_work > thresholds.MAX_SHARE_OF_CPU_WORK * longer
        or wall / cpu < thresholds.MIN_WALL_PER_CPU_RATIO * usual_wall / usual_cpu
    ):
        return ""
    return f"{ms(wall)} ms of computing for {ms(cpu)} ms of CPU, {ms(usual_wall)} for {ms(usual_cpu)} ms {case.before_text}"


def _compute_wall_and_cpu_s(times: Times, side: MeasurementProfile, workers: Sequence[str]) -> tuple[float, float] | None:
    """Return the mean seconds of computing and of CPU of these workers; None if those of one worker are not known."""
    cpu = compute_mean_cpu_s(side, workers)
    wall = sum(times.seconds(worker, GROUPS[CandidateKind.COMPUTE]) for worker in workers)
    return (wall / len(workers), cpu) if cpu and wall else None


def compute_mean_cpu_s(side: MeasurementProfile, workers: Sequence[str]) -> float | None:
    """Return the mean CPU seconds of these workers; None if those of one of them are not known."""
    known = [cpu for worker in workers if (cpu := get_cpu_s(side, worker))]
    return sum(known) / len(known) if known and len(known) == len(workers) else None


def get_cpu_s(side: MeasurementProfile, worker: str) -> float | None:
    """Return the CPU seconds of a worker's process per step. Measured steps take precedence over traced ones."""
    score = side.worker_timings.workers.get(worker) if side.worker_timings else None
    if score and score.cpu_s is not None:
        return score.cpu_s
    task = side.step_breakdown.tasks.get(worker) if side.step_breakdown else None
    return task.cpu_s if task else None


def _list_same_graph(case: ExplainCase) -> Iterator[str]:
    if case.baseline.graph is not None and case.baseline.graph == case.current.graph and not case.current.program_changes:
        yield "the same graph with the same settings: it is its arithmetic that takes longer"


_OF_THE_PROGRAM = (
    CandidateKind.COMPUTE,
    CandidateKind.APPLY,
    CandidateKind.TRANSFER,
    CandidateKind.HOST,
    CandidateKind.INPUT,
    CandidateKind.FLOOR,
)
# Kinds of a worker's time in which it waits for its parameter servers
_EXCHANGE = (WorkKind.RECEIVE, WorkKind.SEND, WorkKind.APPLY, WorkKind.HOST)


def merge_causes(
    candidates: Sequence[CandidateCause], both: ComparedTimes, baseline: MeasurementProfile, current: MeasurementProfile
) -> list[CandidateCause]:
    """Return the candidates with those of one cause merged; the rest stays last."""
    *found, rest = candidates
    if current.program_changes:  # another program may need other times: all that has no other cause is its own
        of_all = [each for each in found if each.location is None and each.kind in _OF_THE_PROGRAM]
        found = _join(CandidateKind.PROGRAM, None, [*of_all, rest], found)
        rest = CandidateCause(rest.kind, {})
    else:
        found = _merge_decoding(found, both, baseline, current)
    found, rest = _merge_cpu_starved(found, rest, both, baseline, current)
    for transfer in _select(found, CandidateKind.TRANSFER):
        server = _server_of(transfer, both)
        if server and is_server_late(server, transfer, baseline, current):
            found = _join(
                CandidateKind.SERVER, server, [transfer, *_select(found, CandidateKind.APPLY, CandidateKind.FLOOR)], found
            )
    found = _join(CandidateKind.SERVER, find_slowest_server(baseline, current), _select(found, CandidateKind.APPLY), found)
    residual_s = sum(each.residual_s for each in _select(found, CandidateKind.FLOOR))
    has_slow_links = any(each.kind == CauseKind.LINK for each in find_host_pressures(baseline, current))
    cpu_starved = [
        each
        for each in _select(found, CandidateKind.CPU_STARVED)
        if not has_slow_links and each.largest_s > thresholds.MIN_CPU_STARVED_SHARE_OF_EXCHANGE * residual_s
    ]
    exchanges = _select(found, CandidateKind.TRANSFER, CandidateKind.SERVER) or cpu_starved
    largest = max(exchanges, key=lambda each: each.largest_s, default=None)
    if largest:
        after = _select(found, CandidateKind.FLOOR)
        if largest.kind != CandidateKind.CPU_STARVED:  # time after the last worker's own work is its, also if it scatters
            after, rest = [*after, CandidateCause(CandidateKind.FLOOR, {}, rest.residual_s)], replace(rest, residual_s=0.0)
        found = _join(largest.kind, largest.location, [largest, *after], found)
    elif not has_slow_links:
        found = _merge_scatter(found, both)
    return [*found, rest]


def _merge_scatter(found: Sequence[CandidateCause], both: ComparedTimes) -> list[CandidateCause]:
    """Return the candidates, where longer waiting belongs to much slower arithmetic if it grew no more than in proportion.

    The steps of a slower worker scatter by more seconds, too, and all workers wait for its longest ones.
    """
    slower = max(
        (each for each in _select(found, CandidateKind.COMPUTE) if each.location), key=lambda each: each.largest_s, default=None
    )
    waiting = _select(found, CandidateKind.FLOOR)
    if not (slower and waiting) or both.current.residual_s > both.baseline.residual_s * (1 + _growth([slower], both)):
        return list(found)
    is_scatter = sum(each.residual_s for each in waiting) <= thresholds.ASSUMED_RELATIVE_ERROR * slower.largest_s
    return _join(slower.kind, slower.location, [slower, *waiting], found) if is_scatter else list(found)


def _merge_decoding(
    found: Sequence[CandidateCause], both: ComparedTimes, baseline: MeasurementProfile, current: MeasurementProfile
) -> list[CandidateCause]:
    """Return the candidates, with one for all input that is late or takes cores for the same reason.

    If several workers wait for batches, some wait longer than others by chance, or not at all. If a probe found the input
    slower, computing that became slower beside its decoding belongs to it.
    """
    cases = [ExplainCase(baseline, current, both, each) for each in _select(found, CandidateKind.INPUT, CandidateKind.COMPUTE)]
    inputs = [case for case in cases if case.candidate.kind == CandidateKind.INPUT]
    is_of_several = len(inputs) > 1 or any(case.candidate.location is None for case in inputs)
    waiting = [case.candidate for case in inputs if is_of_several or case.describe_host_pressures(CauseKind.INPUT)]
    computing_beside = [
        case.candidate for case in cases if case.candidate.kind == CandidateKind.COMPUTE and describe_decoding(case)
    ]
    locations = {each.location for each in (*waiting, *computing_beside)}
    location = locations.pop() if len(locations) == 1 else None
    return _join(
        CandidateKind.DECODING if computing_beside else CandidateKind.INPUT, location, [*waiting, *computing_beside], found
    )


def _merge_cpu_starved(
    found: Sequence[CandidateCause],
    rest: CandidateCause,
    both: ComparedTimes,
    baseline: MeasurementProfile,
    current: MeasurementProfile,
) -> tuple[list[CandidateCause], CandidateCause]:
    """Return the candidates with one for each host without free cores, and the rest.

    All work takes longer there, also sending and receiving. Links that a probe found slow stay candidates of their own. The
    exchange with parameter servers belongs to it as a whole, even if no kind of it has changed significantly.
    """
    hosts = {**baseline.hosts, **current.hosts}
    at = {
        task: hosts.get(task, task)
        for task in (*both.current.own, *(current.step_breakdown.tasks if current.step_breakdown else ()), *hosts)
    }
    cpu_starved_hosts = {*_find_cpu_starved_hosts(found, both, baseline, current)} & {*at.values()}
    slow_links = {host for each in find_host_pressures(baseline, current) if each.kind == CauseKind.LINK for host in each.hosts}
    left = list(found)
    if cpu_starved_hosts and cpu_starved_hosts >= {at[worker] for worker in both.current.own}:
        elsewhere = (CandidateKind.FLOOR, CandidateKind.TRANSFER) if slow_links else (CandidateKind.FLOOR,)
        everywhere = [each for each in left if each.kind not in elsewhere]
        return _join(CandidateKind.CPU_STARVED, None, _select_proportional(everywhere, both), left), rest
    tasks_at = {host: [task for task in at if at[task] == host] for host in cpu_starved_hosts}
    workers_at = {host: [task for task in tasks if task in both.current.own] for host, tasks in tasks_at.items()}
    # A server beside a CPU-starved worker gets the rest.
    for host in sorted(cpu_starved_hosts, key=lambda host: (not workers_at[host], host)):
        tasks, workers = tasks_at[host], workers_at[host]
        there = [
            each
            for each in left
            if _is_at(each, {host, *tasks}) and not (each.kind == CandidateKind.TRANSFER and host in slow_links)
        ]
        if workers or not tasks:
            there = _select_proportional(there, both)
            exchange, without = _exchange_of(rest)
            has_it = is_single_session(current.step_breakdown) and all(
                each in there for each in _select(left, CandidateKind.TRANSFER)
            )
            if (
                has_it
                and sum(each.largest_s for each in there) > thresholds.MIN_CPU_STARVED_SHARE_OF_SESSION * exchange.largest_s
            ):
                there, rest = [*there, exchange], without
            left = _join(CandidateKind.CPU_STARVED, workers[0] if len(workers) == 1 else host, there, left)
        else:
            # Workers wait for it once they have done their own, and within their steps, while nothing is under way.
            update = [*there, *_select(left, CandidateKind.HOST, CandidateKind.APPLY, CandidateKind.FLOOR)]
            if all(each in update for each in _select(left, CandidateKind.TRANSFER)):
                exchange, rest = _exchange_of(rest)
                update.append(exchange)
            left = _join(CandidateKind.SERVER, tasks[0] if len(tasks) == 1 else host, update, left)
    return left, rest


def _exchange_of(rest: CandidateCause) -> tuple[CandidateCause, CandidateCause]:
    """Split the rest into the exchange of workers with parameter servers, and all else."""
    exchanged = {cell: seconds for cell, seconds in rest.cells.items() if cell[1] in _EXCHANGE}
    own = {cell: seconds for cell, seconds in rest.cells.items() if cell[1] not in _EXCHANGE}
    return replace(rest, cells=exchanged), replace(rest, cells=own, residual_s=0.0)


def _select_proportional(parts: Sequence[CandidateCause], both: ComparedTimes) -> list[CandidateCause]:
    """Return the parts that became longer in proportion to arithmetic, as a host without free cores makes all work slower.

    A part that grew far more has a reason of its own: a worker that sleeps on a busy host sleeps.
    """
    arithmetic = _growth(_select(parts, CandidateKind.COMPUTE), both)
    if not arithmetic:
        return _select(parts, CandidateKind.TRANSFER)
    return [
        each
        for each in parts
        if each.kind == CandidateKind.COMPUTE or _growth([each], both) <= thresholds.MAX_RATIO_TO_COMPUTE_INCREASE * arithmetic
    ]


def _growth(candidates: Sequence[CandidateCause], both: ComparedTimes) -> float:
    """Return by what fraction their total time has grown."""
    cells = {cell for each in candidates for cell in each.cells}
    before = sum(both.baseline.own[worker].get(kind, 0.0) for worker, kind in cells)
    longer = sum(seconds for each in candidates for seconds in each.cells.values())
    return longer / before if before else math.inf if longer else 0.0


def _find_cpu_starved_hosts(
    found: Sequence[CandidateCause], both: ComparedTimes, baseline: MeasurementProfile, current: MeasurementProfile
) -> Iterator[str]:
    """Yield the hosts without free cores.

    It is known by the kernel's counts, by arithmetic that took longer for no more CPU time, or by a server's operations
    together with probes of its host.
    """
    hosts = {**baseline.hosts, **current.hosts}
    known = find_host_pressures(baseline, current)
    yield from (host for each in known if each.is_cpu_starved for host in each.hosts)
    without_a_core = {host for each in known if each.kind == CauseKind.OTHERS for host in each.hosts}
    for server in filter(is_server, current.step_breakdown.tasks if current.step_breakdown else ()):
        if (compute_update_ratio(server, baseline, current) or 0.0) > thresholds.MIN_UPDATE_RATIO_WITHOUT_CORE and hosts.get(
            server
        ) in without_a_core:
            yield hosts[server]
    arithmetic = _select(found, CandidateKind.COMPUTE) if not current.program_changes else []
    most_s = max((each.largest_s for each in arithmetic), default=0.0)
    for each in arithmetic:
        case = ExplainCase(baseline, current, both, each)
        if each.largest_s > thresholds.MIN_SHARE_OF_LARGEST_COMPUTE_INCREASE * most_s and describe_starvation(case):
            yield from (hosts.get(worker, worker) for worker in case.workers)


def _is_at(candidate: CandidateCause, ends: Collection[str]) -> bool:
    """Return whether the candidate belongs to this host or its tasks, or one end of its link does."""
    named = list_ends(candidate.location)
    return any(end in ends for end in named)


def _select(candidates: Sequence[CandidateCause], *kinds: CandidateKind) -> list[CandidateCause]:
    return [each for each in candidates if each.kind in kinds]


def _join(
    kind: CandidateKind, location: str | None, parts: Sequence[CandidateCause], among: Sequence[CandidateCause]
) -> list[CandidateCause]:
    """Replace the given parts by one candidate; change nothing where there are none."""
    if not parts:
        return list(among)
    cells: dict[Cell, float] = defaultdict(float)
    for part in parts:
        for cell, seconds in part.cells.items():
            cells[cell] += seconds
    one = CandidateCause(kind, cells, sum(part.residual_s for part in parts), location)
    return [one, *(each for each in among if not any(each is part for part in parts))]


def _server_of(transfer: CandidateCause, both: ComparedTimes) -> str | None:
    """Return the server that has all these links; None if there is none. With a single worker it has only one link."""
    servers = [end for end in list_ends(transfer.location) if is_server(end)]
    is_its_only_link = transfer.location in servers or len(both.current.own) == 1
    return servers[0] if len(servers) == 1 and is_its_only_link else None


def is_server_late(server: str, transfer: CandidateCause, baseline: MeasurementProfile, current: MeasurementProfile) -> bool:
    """Return whether all links of a server are slow because of the server, and not of its host's link."""
    ratio = compute_update_ratio(server, baseline, current)
    increase_s = sum(sign * (compute_update_time(server, side) or 0.0) for sign, side in ((-1, baseline), (1, current)))
    gaps = sum(seconds for (_, kind), seconds in transfer.cells.items() if kind == WorkKind.HOST)
    total = sum(transfer.cells.values())
    is_slow = (ratio or 0.0) > thresholds.MIN_UPDATE_RATIO and increase_s > thresholds.MIN_UPDATE_SHARE_OF_TRANSFER * total
    return is_slow or gaps > thresholds.MIN_IDLE_SHARE_OF_TRANSFER * total


def find_slowest_server(baseline: MeasurementProfile, current: MeasurementProfile) -> str | None:
    """Return the server with operations that became far longer than the others'; None if all are alike, or unknown."""
    servers = [task for task in (current.step_breakdown.tasks if current.step_breakdown else ()) if is_server(task)]
    if len(servers) == 1:
        return servers[0]
    ratios = {server: ratio for server in servers if (ratio := compute_update_ratio(server, baseline, current)) is not None}
    ordered = sorted(ratios, key=lambda server: -ratios[server])
    if len(ordered) < 2 or ratios[ordered[0]] < thresholds.MIN_UPDATE_RATIO * ratios[ordered[1]]:
        return None
    return ordered[0]
