"""Bring the stored facts of one side of a comparison to times by worker and kind of work, and model a step with them.

Traced steps have every kind of work, but there are only five of them. Step timestamps are in every measured step, but show
only when the variables and the gradients were there. Where both are known, the traced kinds are scaled to the timestamps.

The model answers how long a step would be, had some times not changed. Each worker has its own work, kind by kind; the step
ends a fixed time after the last worker has done its own. For workers that do not wait for others that is the slowest worker's
step. Where a coordinator gives each worker its next step as soon as it is ready, the faster ones do more steps:
`compute_step_s`. The method is the what-if analysis of "Understanding Stragglers in Large Model Training" (OSDI 2025): the
times of a candidate cause are *added* to the good step and *removed* from the bad one. With several candidates the two differ,
because only the last worker counts. So the seconds of a candidate are the mean over all orders in which the candidates could
have come (Shapley's value), which add up; adding and removing are its two ends.
"""

import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import Literal

from pytest_dtfperf.datamodel.host_state import Disturbance, HostState
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTiming, WorkerTimings, WorkKind
from pytest_dtfperf.explain import thresholds
from pytest_dtfperf.explain.step_events import is_server


@dataclass(frozen=True, kw_only=True)
class MeasurementProfile:
    """The facts of one side of a comparison. All are optional; facts that are known twice must agree."""

    name: str = "the baseline"  # in messages: "62 % slower than the anchor"
    when: str = "in the baseline"  # in messages: "2.00 ms in the anchor"
    step_s: Sequence[float] = ()  # seconds of a step in each run that counts: devices x batch size / rate
    step_breakdown: StepBreakdown | None = None  # of the last run that was traced
    worker_timings: WorkerTimings | None = None  # of the same run's measured steps
    probes: Probes | None = None  # of the hosts and links it was on
    states: Mapping[str, HostState] = field(default_factory=dict)  # host -> its state in the last run
    disturbances: Sequence[Disturbance] = ()
    hosts: Mapping[str, str] = field(default_factory=dict)  # task -> host
    sleeps: Mapping[str, float] = field(default_factory=dict)  # task -> seconds of injected sleep in every step
    cluster: str | None = None  # options of suggested commands, such as "--cluster=daint"; None: no command can check its hosts
    coordinated: bool = False  # a coordinator gives each worker its next step as soon as it is ready
    in_lockstep: bool = True  # whether every step of a worker waits for all others
    is_own_program: bool = False  # an external program cannot be traced; it may report its steps
    graph: str | None = None  # the hash of what a step computes
    # Differences between the two sides' fingerprints, one phrase each. Only those of the current side count.
    program_changes: Sequence[str] = ()  # of the graph, and of the settings that it runs with
    software_changes: Sequence[str] = ()
    hardware_changes: Sequence[str] = ()


def ms(seconds: float, like: float | None = None) -> str:
    """Format milliseconds with three digits, as `1,273`, `21.5` or `0.42`, or with as many decimals as `like` has."""
    largest = abs(1000 * (seconds if like is None else like))
    decimals = 0 if largest >= 99.5 else 1 if largest >= 9.95 else 2
    return f"{1000 * seconds:z,.{decimals}f}"  # z: no result is -0


def signed_ms(seconds: float, like: float | None = None) -> str:
    """Format milliseconds with their sign, as `+1.2`."""
    text = ms(seconds, like)
    return text if text.startswith("-") else f"+{text}"


def gbit_per_s(bytes_per_s: float) -> str:
    return f"{8 * bytes_per_s / 1e9:.3g}"


def percent_longer(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):.0f} %" if before else "much"


def list_ends(location: str | None) -> Sequence[str]:
    """Return both ends of a link, the one task or host, or no end."""
    return [end for end in re.split("<?>", location) if end] if location else []


def add_host(task: str, hosts: Mapping[str, str]) -> str:
    """Return a task with its host, as `ps:1 (node07)`."""
    return f"{task} ({hosts[task]})" if hosts.get(task, task) != task else task


Cell = tuple[str, str]  # worker, kind of work
COMPUTE = "compute"  # forward, backward and compiled work together, where only step timestamps are known


class CandidateKind(StrEnum):
    """The kinds of candidate causes. Each has a row in `reasons.ROWS`, except for REST and LATE."""

    # Kinds of work that lengthen together: `GROUPS`.
    COMPUTE = "compute"
    INPUT = "input"
    TRANSFER = "transfer"
    PYTHON = "python"
    APPLY = "apply"
    HOST = "host"
    FLOOR = "floor"  # time of a step after the last worker's own work
    REST = "rest"  # changes that chance explains
    LATE = "late"  # lateness of a worker, where the parts of its steps are not known
    # Merged by `merge_causes.merge_causes`.
    PROGRAM = "program"
    SERVER = "server"
    CPU_STARVED = "CPU-starved"  # a host without free cores
    DECODING = "decoding"  # of the input, on the cores that compute


# Kinds of work that lengthen together. "apply" is the parameter servers' where there are any.
GROUPS: Mapping[CandidateKind, tuple[str, ...]] = {
    CandidateKind.COMPUTE: (WorkKind.FORWARD, WorkKind.BACKWARD, WorkKind.COMPILED, COMPUTE),
    CandidateKind.INPUT: (WorkKind.INPUT,),
    CandidateKind.TRANSFER: (WorkKind.RECEIVE, WorkKind.SEND),
    CandidateKind.PYTHON: (WorkKind.PYTHON,),
    CandidateKind.APPLY: (WorkKind.APPLY,),
    CandidateKind.HOST: (WorkKind.HOST,),
}


@dataclass(frozen=True)
class Times:
    """The seconds of workers' work on one side, by kind."""

    own: Mapping[str, Mapping[str, float]]  # worker -> kind -> seconds, without waiting for others
    step_s: float
    error_s: Mapping[str, float] = field(default_factory=dict)  # kind -> standard error of its mean
    coordinated: bool = False  # a coordinator gives each worker its next step as soon as it is ready

    @property
    def residual_s(self) -> float:
        """Return the seconds of the step beyond the workers' own work."""
        return self.step_s - compute_step_s([sum(of_worker.values()) for of_worker in self.own.values()], self.coordinated)

    def seconds(self, worker: str, kinds: Collection[str]) -> float:
        return sum(seconds for kind, seconds in self.own.get(worker, {}).items() if kind in kinds)

    def compute_error(self, kinds: Collection[str]) -> float:
        return math.sqrt(sum(error**2 for kind, error in self.error_s.items() if kind in kinds))


@dataclass(frozen=True)
class CandidateCause:
    """Times that have changed together, and may have one cause. Every changed time belongs to exactly one candidate."""

    kind: CandidateKind
    cells: Mapping[Cell, float]  # change in seconds
    residual_s: float = 0.0  # change of what comes after the last worker's own work
    location: str | None = None  # a task, host or link; None: all of them

    @cached_property
    def _parts(self) -> Mapping[str, Mapping[str, float]]:
        """The changes of each worker by kind of work."""
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for (worker, kind), seconds in self.cells.items():
            found[worker][kind] = seconds
        return dict(found)

    @cached_property
    def workers(self) -> Sequence[str]:
        return sorted(self._parts)

    @property
    def largest_s(self) -> float:
        """Return the largest change of any worker's own work, in seconds."""
        return max((abs(self.sum_worker(worker)) for worker in self.workers), default=0.0) + abs(self.residual_s)

    def largest_of(self, kinds: Collection[str]) -> float:
        """Return the largest change of any worker's work of these kinds, in seconds."""
        sums = [sum(s for kind, s in parts.items() if kind in kinds) for parts in self._parts.values()]
        return max(map(abs, sums), default=0.0)

    def sum_worker(self, worker: str) -> float:
        return sum(self._parts.get(worker, {}).values())


@dataclass(frozen=True)
class Gain:
    """The seconds by which a candidate cause changes a step."""

    seconds: float  # the mean over all orders
    added_s: float  # alone, in the good step
    removed_s: float  # alone taken out of the bad one


def compute_step_s(own: Sequence[float], coordinated: bool) -> float:
    """Return the seconds of a common step, from each worker's own work: the maximum.

    With a coordinator it is the time of all together for as many steps as there are workers: their harmonic mean.
    """
    if not coordinated or not own:
        return max(own, default=0.0)
    return len(own) / sum(1 / max(thresholds.MIN_WORKER_STEP_S, seconds) for seconds in own)


def compute_gains(baseline: Times, candidates: Sequence[CandidateCause]) -> Sequence[Gain]:
    """Return how much each candidate adds to the step; the gains add up to what all candidates add together."""
    assert len(candidates) <= thresholds.MAX_CANDIDATES + 1
    base = {worker: sum(kinds.values()) for worker, kinds in baseline.own.items()}
    changes = [{worker: candidate.sum_worker(worker) for worker in candidate.workers} for candidate in candidates]
    everyone = range(len(candidates))
    steps: dict[frozenset[int], float] = {}
    for size in range(len(candidates) + 1):
        for chosen in combinations(everyone, size):
            own = [before + sum(changes[i].get(worker, 0.0) for i in chosen) for worker, before in base.items()]
            steps[frozenset(chosen)] = (
                compute_step_s(own, baseline.coordinated) + baseline.residual_s + sum(candidates[i].residual_s for i in chosen)
            )
    return [_gain(i, steps, len(candidates)) for i in everyone]


def _gain(i: int, steps: Mapping[frozenset[int], float], count: int) -> Gain:
    """Return the change by one part, averaged over all orders in which parts can change."""
    seconds = sum(
        math.factorial(len(before))
        * math.factorial(count - len(before) - 1)
        / math.factorial(count)
        * (steps[before | {i}] - step)
        for before, step in steps.items()
        if i not in before
    )
    everyone = frozenset(range(count))
    return Gain(seconds, steps[frozenset({i})] - steps[frozenset()], steps[everyone] - steps[everyone - {i}])


Basis = Literal["traces", "timestamps", "peers"]

WAITING = (WorkKind.WAIT, WorkKind.REDUCE, WorkKind.LATE)  # for others: no worker's own work
# Kinds that mostly end before the last gradient is there
_TIMESTAMPED = (WorkKind.RECEIVE, WorkKind.INPUT, WorkKind.FORWARD, WorkKind.BACKWARD, WorkKind.COMPILED)


@dataclass(frozen=True)
class ComparedTimes:
    """The times of the same workers on both sides, and the basis of the comparison."""

    baseline: Times
    current: Times
    basis: Basis


def compare_times(baseline: MeasurementProfile, current: MeasurementProfile) -> ComparedTimes | None:
    """Return the workers' times of both sides; None if the current ones are not known, or there is nothing to compare with."""
    coordinated = current.coordinated
    if baseline.step_breakdown and current.step_breakdown:
        breakdowns = baseline.step_breakdown, current.step_breakdown
        traced = _read_traced_times(breakdowns[0], coordinated), _read_traced_times(breakdowns[1], coordinated)
        return _compare_traced_times(traced, breakdowns, (baseline.worker_timings, current.worker_timings))
    before, after = (
        _read_stamped_times(timings, coordinated) if timings and _has_step_parts(timings) else None
        for timings in (baseline.worker_timings, current.worker_timings)
    )
    if before and after:
        return _match_workers(before, after, "timestamps")
    alone = _read_traced_times(current.step_breakdown, coordinated) if current.step_breakdown else after
    return ComparedTimes(make_peer_times(alone), alone, "peers") if alone and len(alone.own) > 1 else None


def _compare_traced_times(
    traced: tuple[Times, Times],
    breakdowns: tuple[StepBreakdown, StepBreakdown],
    timestamps: tuple[WorkerTimings | None, WorkerTimings | None],
) -> ComparedTimes | None:
    """Return traced times, scaled to step timestamps if both sides have them, so that only the training differs."""
    before, after = (
        _as_measured(times, breakdown, scores) if scores else None
        for times, breakdown, scores in zip(traced, breakdowns, timestamps, strict=True)
    )
    return _match_workers(before, after, "traces") if before and after else _match_workers(*traced, "traces")


def _match_workers(baseline: Times, current: Times, basis: Basis) -> ComparedTimes | None:
    """Return the comparison. A worker that is only on the current side is compared with a typical one."""
    if not baseline.own or not current.own:
        return None
    typical = _get_median_worker(baseline.own.values())
    own = {worker: baseline.own.get(worker, typical) for worker in current.own}
    return ComparedTimes(replace(baseline, own=own), current, basis)


def find_medians_of_others(values: Mapping[str, float]) -> dict[str, float]:
    """Return for each name the median of the values of all others, of which there is at least one."""
    order = sorted(values, key=lambda name: values[name])
    ordered = [values[name] for name in order]
    low, high = (len(order) - 2) // 2, (len(order) - 1) // 2  # in the middle of the others
    return {name: (ordered[low + (low >= at)] + ordered[high + (high >= at)]) / 2 for at, name in enumerate(order)}


def make_peer_times(current: Times) -> Times:
    """Return the times that each worker would have if it were no slower than the others' median. Used without a baseline."""
    workers = dict(current.own)
    have = Counter(kind for parts in workers.values() for kind in parts)
    others = {
        kind: find_medians_of_others({worker: parts.get(kind, 0.0) for worker, parts in workers.items()})
        for kind in sorted(have)
    }
    best = {
        worker: {
            kind: min(medians[worker], parts.get(kind, 0.0))
            for kind, medians in others.items()
            if have[kind] > (kind in parts)  # others have it, too
        }
        for worker, parts in workers.items()
    }
    step_s = compute_step_s([sum(parts.values()) for parts in best.values()], current.coordinated)
    return Times(best, step_s + current.residual_s, current.error_s, current.coordinated)


def select_worker_parts(breakdown: StepBreakdown) -> Mapping[str, Mapping[str, float]]:
    """Return the parts of all tasks that train, including tasks of which only the devices are used by another session."""
    return {task: of_task.parts for task, of_task in breakdown.tasks.items() if not is_server(task)}


def is_single_session(breakdown: StepBreakdown | None) -> bool:
    """Return whether one session computes on several workers' devices."""
    own = [task.cpu_s is not None for name, task in (breakdown.tasks.items() if breakdown else ()) if not is_server(name)]
    return any(own) and not all(own)


def _read_traced_times(breakdown: StepBreakdown, coordinated: bool) -> Times:
    own = {task: _remove_waiting(parts, coordinated) for task, parts in select_worker_parts(breakdown).items()}
    kinds = sorted({kind for parts in own.values() for kind in parts})
    # A breakdown's step is its slowest worker's, for which no other waits where a coordinator gives steps out.
    step_s = compute_step_s([sum(parts.values()) for parts in own.values()], coordinated) if coordinated else breakdown.wall_s
    return Times(own, step_s, {kind: _estimate_error(kind, own, breakdown) for kind in kinds}, coordinated)


def _remove_waiting(parts: Mapping[str, float], coordinated: bool) -> Mapping[str, float]:
    """Return the parts without waiting for others.

    A coordinator gives a worker its next step when its gradients have arrived, and has it ready by then. So the time between
    two batches is that of sending gradients, which no profile of a worker has.
    """
    found = {kind: seconds for kind, seconds in parts.items() if kind not in WAITING}
    return found | {WorkKind.SEND: found.get(WorkKind.SEND, 0.0) + parts.get(WorkKind.WAIT, 0.0)} if coordinated else found


def _estimate_error(kind: str, own: Mapping[str, Mapping[str, float]], breakdown: StepBreakdown) -> float:
    most = max(parts.get(kind, 0.0) for parts in own.values())
    error = max(breakdown.error_s.get(kind, thresholds.ASSUMED_RELATIVE_ERROR * most), thresholds.MIN_RELATIVE_ERROR * most)
    if kind in (WorkKind.RECEIVE, WorkKind.SEND):  # between two clocks; the bounds of their difference are this far apart
        error = math.hypot(error, max(breakdown.clock_error_s.values(), default=0.0) / 2)
    return error


def _as_measured(traced: Times, breakdown: StepBreakdown, scores: WorkerTimings) -> Times | None:
    """Return traced times, scaled to the measured steps; None if the factor is implausible.

    With one session on all workers, the others' timestamps come over the same links as all else. Then only the whole is scaled.
    """
    if traced.coordinated or not is_single_session(breakdown):
        return _scale_to_timestamps(traced, scores)
    if (
        scores.step_s is None
        or not traced.step_s
        or not 1 / thresholds.MAX_TRACE_FACTOR < (factor := scores.step_s / traced.step_s) < thresholds.MAX_TRACE_FACTOR
    ):
        return None
    own = {worker: {kind: factor * seconds for kind, seconds in parts.items()} for worker, parts in traced.own.items()}
    return Times(own, scores.step_s, {kind: factor * error for kind, error in traced.error_s.items()})


def _scale_to_timestamps(traced: Times, scores: WorkerTimings) -> Times | None:
    """Return traced times, scaled to the step timestamps of the measured steps; None if a worker has none."""
    if scores.step_s is None:
        return None
    known = {worker: scores.workers[worker] for worker in traced.own if worker in scores.workers}
    factors = {worker: _factor(traced.own[worker], score) for worker, score in known.items()}
    if len(factors) < len(traced.own) or not all(
        1 / thresholds.MAX_TRACE_FACTOR < factor < thresholds.MAX_TRACE_FACTOR for factor in factors.values()
    ):
        return None
    own = {worker: _scale_parts(parts, factors[worker], known[worker]) for worker, parts in traced.own.items()}
    errors = {
        kind: error * (thresholds.REMAINING_TRACE_ERROR if kind in (*_TIMESTAMPED, WorkKind.HOST, WorkKind.PYTHON) else 1)
        for kind, error in traced.error_s.items()
    }
    return _as_given_out(Times(own, scores.step_s, errors, traced.coordinated), scores)


def _as_given_out(times: Times, scores: WorkerTimings) -> Times:
    """Return times of steps that a coordinator gives out: each worker's step is as long as its number of steps implies.

    What has no timestamp was spent on sending gradients.
    """
    steps = {worker: scores.workers[worker].steps for worker in times.own}
    if not times.coordinated or not all(steps.values()):
        return times
    window_s = times.step_s * sum(steps.values()) / len(steps)
    own = {
        worker: {
            **parts,
            WorkKind.SEND: max(0.0, window_s / steps[worker] - sum(parts.values()) + parts.get(WorkKind.SEND, 0.0)),
        }
        for worker, parts in times.own.items()
    }
    error = max(window_s / count**2 for count in steps.values()) / 2  # one step is not over at the end of the window
    return replace(times, own=own, error_s={**times.error_s, WorkKind.SEND: max(error, times.error_s.get(WorkKind.SEND, 0.0))})


def _factor(parts: Mapping[str, float], score: WorkerTiming) -> float:
    timestamped = (score.receive_s or 0.0) + (score.compute_s or 0.0)
    traced = sum(parts.get(kind, 0.0) for kind in (*_TIMESTAMPED, WorkKind.HOST))
    return timestamped / traced if traced and timestamped else math.inf


def _scale_parts(parts: Mapping[str, float], factor: float, score: WorkerTiming) -> Mapping[str, float]:
    found = {kind: seconds * (factor if kind in (*_TIMESTAMPED, WorkKind.HOST) else 1) for kind, seconds in parts.items()}
    return found | ({WorkKind.PYTHON: score.python_s} if score.python_s is not None else {})


def _has_step_parts(scores: WorkerTimings) -> bool:
    return scores.step_s is not None and any(score.compute_s is not None for score in scores.workers.values())


def _read_stamped_times(scores: WorkerTimings, coordinated: bool) -> Times:
    assert scores.step_s is not None  # see `_has_step_parts`
    own = {
        worker: {
            kind: seconds
            for kind, seconds in (
                (WorkKind.PYTHON, score.python_s),
                (WorkKind.RECEIVE, score.receive_s),
                (COMPUTE, score.compute_s),
            )
            if seconds is not None
        }
        for worker, score in scores.workers.items()
    }
    errors = [score.ready_error_s or 0.0 for score in scores.workers.values()]
    kinds = {kind: max(parts.get(kind, 0.0) for parts in own.values()) for kind in (WorkKind.PYTHON, WorkKind.RECEIVE, COMPUTE)}
    error_s = {kind: max(thresholds.MIN_RELATIVE_ERROR * most, *errors) for kind, most in kinds.items()}
    return _as_given_out(Times(own, scores.step_s, error_s, coordinated), scores)


def _get_median_worker(of_workers: Iterable[Mapping[str, float]]) -> Mapping[str, float]:
    """Return the median worker's seconds of each kind."""
    found: Sequence[Mapping[str, float]] = list(of_workers)
    kinds = sorted({kind for parts in found for kind in parts})
    return {kind: statistics.median(parts.get(kind, 0.0) for parts in found) for kind in kinds}


def compute_update_ratio(server: str, baseline: MeasurementProfile, current: MeasurementProfile) -> float | None:
    """Return how many times as long a server's own operations take; None: not known."""
    before, after = (compute_update_time(server, side) for side in (baseline, current))
    return after / before if before and after else None


def compute_update_time(server: str, side: MeasurementProfile) -> float | None:
    task = side.step_breakdown.tasks.get(server) if side.step_breakdown else None
    return task.parts.get(WorkKind.APPLY) if task else None
