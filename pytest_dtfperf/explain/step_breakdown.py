"""Break a step down: traces of all workers in, a few kilobytes of seconds that add up out.

    path    the cluster's critical path: seconds by kind of work and task or link, which add up to the step's wall time
    tasks   each task's own time by kind of work, which adds up to its step's wall time
    links   bytes and rate between tasks, and the variables that they are

The first traced step is dropped: it is often longer for being the first. All seconds and bytes are means over the others, so
that parts that add up in each step add up here. Facts that are not in a trace are absent or None, and never 0.

Every moment of a task's step is of exactly one kind of work, so that the kinds add up to the step. A worker's step lasts from
the end of its step before to its own end. A task that only serves (a parameter server, a worker whose devices others use) is
measured from the begin of the first worker to the end of the last one.

The critical path is the work that would have made the whole step shorter, had it been shorter. It is walked backwards from the
end of the last worker's step: each stretch ends where the one after it begins, so that they add up to the cluster's step, from
the first worker's begin to the last one's end. Overlap counts once.
"""

import bisect
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.datamodel.step_times import (
    MAX_LINKS,
    MAX_PARTS,
    MAX_VARIABLES,
    WORK,
    LinkTraffic,
    Part,
    StepBreakdown,
    TaskTime,
    WorkKind,
)
from pytest_dtfperf.explain.step_events import (
    Bounds,
    Clocks,
    ClusterStep,
    Event,
    WorkerStep,
    align_clocks,
    get_task,
    is_server,
    make_cluster_step,
)
from pytest_dtfperf.explain.thresholds import MAX_CLOCK_ERROR_OF_LINK, MIN_THREAD_WAIT_US, MIN_UNKNOWN_INPUT_US, SAME_MOMENT_US
from pytest_dtfperf.traces import InvalidTrace, TaskTrace

_MOST_BACK = 8  # operations that end within that moment

_OFF_THREADS = (WorkKind.WAIT, WorkKind.REDUCE)  # these keep no thread busy


@dataclass(frozen=True)
class Stretch:
    """A part of the path."""

    kind: WorkKind
    location: str  # a task, or a link: "ps:0>worker:1"
    name: str  # the operation or tensor; empty: neither
    variable: str | None  # the variable that a transfer brings; None: not known, or no transfer
    us: int


def find_critical_path(step: ClusterStep) -> list[Stretch]:
    """Return the critical path, from the step's end to its beginning."""
    last = step.last
    walk = _Walk(step.begin, last.end)
    ended = _OperationsByEnd(step.events)
    own = (event for event in step.events if event.session == last.task and event.end <= last.end)
    event = max(own, key=lambda event: event.end, default=None)
    session, location = last.task, last.task
    seen: set[int] = set()
    while event and id(event) not in seen:
        seen.add(id(event))
        walk.back(WorkKind.HOST, location, event.end)
        until, before = _find_begin(event, ended)
        walk.back(event.kind, event.location, until, event)
        session, location, event = event.session, event.task, before
    (worker,) = (worker for worker in step.workers if worker.task == session)
    walk.back(WorkKind.HOST, worker.task, worker.called)
    walk.back(WorkKind.PYTHON, worker.task, worker.begin)
    walk.back(WorkKind.LATE, worker.task, step.begin)
    return walk.stretches


class _Walk:
    """A walk from the end of a step to its begin, which never turns and stays within the step, whatever the clocks show."""

    def __init__(self, begin: int, end: int) -> None:
        self.stretches: list[Stretch] = []
        self._begin, self._at = begin, end

    def back(self, kind: WorkKind, location: str, until: int, event: Event | None = None) -> None:
        until = max(until, self._begin)
        if until < self._at:
            name, variable = (event.name, event.variable) if event else ("", None)
            self.stretches.append(Stretch(kind, location, name, variable, self._at - until))
            self._at = until


class _OperationsByEnd:
    """Operations in the order of their ends: of all that have the same threads, and of one session there."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events: dict[tuple[str, ...], list[Event]] = {}
        for event in events:
            if not event.source and event.kind not in _OFF_THREADS:
                for key in (_threads(event), (event.session, *_threads(event))):
                    self._events.setdefault(key, []).append(event)
        for of_key in self._events.values():
            of_key.sort(key=lambda event: event.end)
        self._ends = {key: [event.end for event in of_key] for key, of_key in self._events.items()}

    def find_last_before(self, event: Event, moment: int, *key: str) -> Event | None:
        """Return the event that began before this one, and was the last to end by that moment."""
        at = bisect.bisect_right(self._ends.get(key, []), moment)
        near = self._events[key][max(0, at - _MOST_BACK) : at] if at else []
        return next((found for found in reversed(near) if found.start < event.start), None)


def _threads(event: Event) -> tuple[str, ...]:
    """Return the threads of an event. All CPU devices of a task share theirs."""
    return (event.task if "/CPU:" in event.device else event.device,)


def _find_begin(event: Event, ended: _OperationsByEnd) -> tuple[int, Event | None]:
    """Return where an event begins on the path, and the event before it."""
    cause = max(event.causes, key=lambda cause: cause.end, default=None)
    if event.source:
        return event.start, cause
    partner = event.partner
    if event.kind == WorkKind.WAIT and partner and partner.start <= event.end:
        return min(partner.end, event.end), partner
    if (
        event.kind == WorkKind.REDUCE and partner and partner.start > event.start
    ):  # continue with the reason why the other was late
        return partner.start, max(partner.causes, key=lambda cause: cause.end, default=partner)
    other = None
    if event.start - event.ready > MIN_THREAD_WAIT_US:
        other = ended.find_last_before(event, event.start, *_threads(event))
    elif cause is None or cause.end < event.ready - MIN_UNKNOWN_INPUT_US:
        other = ended.find_last_before(event, event.ready + SAME_MOMENT_US, event.session, *_threads(event))
    return event.start, other if other and (cause is None or other.end > cause.end) else cause


Span = tuple[int, int, WorkKind]  # from, until, kind


def split_worker_steps(step: ClusterStep) -> dict[str, Counter[WorkKind]]:
    """Return for each worker the microseconds by kind, which add up to its step."""
    events: dict[str, list[Event]] = {worker.task: [] for worker in step.workers}
    for event in step.events:
        events[event.session].append(event)
    return {worker.task: _sum_worker(worker, events[worker.task], worker.task in step.blind) for worker in step.workers}


def split_server_steps(step: ClusterStep) -> dict[str, Counter[WorkKind]]:
    """Return for each task without its own session the microseconds by kind, which add up to the cluster's step."""
    workers = {worker.task for worker in step.workers}
    spans: dict[str, list[Span]] = {}
    for event in step.events:
        for task in {event.task, event.source.partition("/")[0]} - workers - {""}:
            if span := _find_server_span(task, event):
                spans.setdefault(task, []).append(span)
    return {
        task: split_by_kind(of_task, step.begin, step.last.end, rest=WorkKind.WAIT) for task, of_task in sorted(spans.items())
    }


def split_by_kind(spans: Iterable[Span], begin: int, end: int, rest: WorkKind) -> Counter[WorkKind]:
    """Return the microseconds from `begin` to `end` by kind: at each moment, the active kind that comes first in `WORK`."""
    marks = []
    for start, until, kind in spans:
        start, until = max(start, begin), min(until, end)
        if start < until:
            rank = _RANK[kind]
            marks += [(start, 1, rank), (until, -1, rank)]
    marks.sort()
    active = [0] * len(_RANKED)
    spent: Counter[WorkKind] = Counter()
    at = begin
    for moment, change, rank in marks:
        if moment > at:
            spent[_select_first(active, rest)] += moment - at
            at = moment
        active[rank] += change
    if end > at:
        spent[rest] += end - at
    return spent


_RANKED = (*WORK, WorkKind.UNKNOWN)
_RANK: Mapping[WorkKind, int] = {kind: rank for rank, kind in enumerate(_RANKED)}


def _select_first(active: Sequence[int], rest: WorkKind) -> WorkKind:
    return next((kind for kind, count in zip(_RANKED, active, strict=True) if count > 0), rest)


def _sum_worker(worker: WorkerStep, events: Sequence[Event], blind: bool) -> Counter[WorkKind]:
    spans = [span for event in events if (span := _find_session_span(worker.task, event))]
    called = min(max(worker.called, worker.begin), worker.end)
    spent = split_by_kind(spans, called, worker.end, rest=WorkKind.UNKNOWN if blind else WorkKind.HOST)
    spent[WorkKind.PYTHON] += called - worker.begin
    return +spent


def _find_session_span(worker: str, event: Event) -> Span | None:
    """Return the kind of work that an event of its session is to a worker."""
    kind = event.kind
    if event.source:
        source = event.source.partition("/")[0]
        if worker not in (event.task, source):
            return None
        kind = WorkKind.RECEIVE if event.task == worker else WorkKind.SEND
    elif event.task != worker and not is_server(event.device):
        kind = WorkKind.WAIT  # for a worker with devices that another session uses
    return event.start, event.end, kind


def _find_server_span(task: str, event: Event) -> Span | None:
    if event.source:
        return event.start, event.end, WorkKind.RECEIVE if event.task == task else WorkKind.SEND
    return None if event.kind == WorkKind.WAIT else (event.start, event.end, event.kind)


_DROPPED = 1  # traced steps at the begin
_DIGITS = 7  # of seconds: a tenth of a microsecond


def compute_step_breakdown(
    traces: Sequence[TaskTrace], *, lockstep: bool = True, clocks: Bounds | None = None, aligned: Clocks | None = None
) -> StepBreakdown:
    """Break the traced steps down. Raises `InvalidTrace`.

    With `lockstep`, a step of all workers is one step; else each worker has its own, and the path is the slowest's. `clocks`
    bounds how far tasks' clocks are apart, where that is known from elsewhere. `aligned` are the clocks of all traces, if they
    were computed before. Traces without edges have no path, and each worker has its own times; a worker that had too little to
    do is left out. A worker with a clock that is not tied to the chief's has its own times, too, beside the path.
    """
    edges = all(trace.edges for trace in traces)
    if not edges:
        traces = [trace for trace in traces if len(trace.steps) > _DROPPED] or traces
    steps = _count(traces)
    _check_times(traces)
    aligned = (aligned or align_clocks(traces, clocks)) if lockstep and edges else None
    sums = _Sums(steps)
    for number in range(_DROPPED, _DROPPED + steps):
        if aligned:
            sums.add_step(make_cluster_step(traces, number, aligned))
        for trace in traces:
            if not aligned or not aligned.reads(trace.task):
                sums.add_worker(make_cluster_step([trace], number, align_clocks([trace], clocks)))
    if not aligned:
        counted = slice(_DROPPED, _DROPPED + steps)  # a quicker worker was given more batches, and has more steps
        slowest = max(traces, key=lambda trace: sum(s.end_us - s.begin_us for s in trace.steps[counted]))
        aligned = align_clocks([slowest], clocks)
        for number in range(_DROPPED, _DROPPED + steps):
            sums.add_path(make_cluster_step([slowest], number, aligned), edges=edges)
    return sums.step_breakdown(aligned, edges=edges)


def _count(traces: Sequence[TaskTrace]) -> int:
    """Return the number of steps that count."""
    if not traces:
        raise InvalidTrace("is of no worker")
    least = min(len(trace.steps) for trace in traces)
    if least <= _DROPPED:
        raise InvalidTrace(f"has {least} steps, and the first is never counted")
    return least - _DROPPED


def _check_times(traces: Sequence[TaskTrace]) -> None:
    """Raise `InvalidTrace` if a clock was set back during a step: its parts would be negative."""
    for trace in traces:
        if any(step.end_us < step.begin_us for step in trace.steps):
            raise InvalidTrace(f"of {trace.task} has a step that ends before it begins: its host's clock was set")


class _Sums:
    """Microseconds and bytes of all steps."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._wall = 0
        self._path: Counter[tuple[WorkKind, str, str | None]] = Counter()
        self._tasks: dict[str, Counter[WorkKind]] = {}
        self._squares: Counter[tuple[str, WorkKind]] = Counter()  # of a worker's time for a kind of work, step by step
        self._cpu: Counter[str] = Counter()
        self._bytes: dict[tuple[str, str], Counter[str | None]] = {}
        self._busy: Counter[tuple[str, str]] = Counter()
        self._transfers: Counter[tuple[str, str]] = Counter()

    def add_step(self, step: ClusterStep) -> None:
        self.add_worker(step)
        self.add_path(step)
        self._add_tasks(split_server_steps(step))

    def add_worker(self, step: ClusterStep) -> None:
        own = split_worker_steps(step)
        self._add_tasks(own)
        self._squares.update({(task, kind): us * us for task, parts in own.items() for kind, us in parts.items()})
        for worker in step.workers:
            if worker.cpu is not None:
                self._cpu[worker.task] += worker.cpu
        for link, events in _group_by_link(step.events).items():
            sizes = self._bytes.setdefault(link, Counter())
            for event in events:
                sizes[event.variable] += event.size_bytes
            until = min(event.start for event in events)
            for start, end in sorted((event.start, event.end) for event in events):
                self._busy[link] += max(0, end - max(start, until))
                until = max(until, end)
            self._transfers[link] += len(events)

    def add_path(self, step: ClusterStep, *, edges: bool = True) -> None:
        self._wall += step.last.end - step.begin
        for stretch in find_critical_path(step) if edges else ():
            self._path[stretch.kind, stretch.location, stretch.variable] += stretch.us

    def _add_tasks(self, found: Mapping[str, Counter[WorkKind]]) -> None:
        for task, parts in found.items():
            self._tasks.setdefault(task, Counter()).update(parts)

    def step_breakdown(self, clocks: Clocks, *, edges: bool) -> StepBreakdown:
        return StepBreakdown(
            steps=self._steps,
            wall_s=self._seconds(self._wall),
            path=list(self._parts()),
            tasks={task: self._task(task, parts) for task, parts in sorted(self._tasks.items())},
            links=list(self._links(clocks)) if edges else [],
            clock_error_s={t: round(error / 1e6, _DIGITS) for t, error in sorted(clocks.error_us.items())} if edges else {},
            error_s=self._compute_errors(),
        )

    def _compute_errors(self) -> Mapping[str, float]:
        """Return the standard errors by kind; empty for a single step, which has no scatter."""
        largest: dict[str, float] = {}
        for (task, kind), squares in self._squares.items() if self._steps > 1 else ():
            variance = (squares - self._tasks[task][kind] ** 2 / self._steps) / (self._steps - 1)
            error = math.sqrt(max(0.0, variance) / self._steps) / 1e6
            largest[kind] = max(largest.get(kind, 0.0), round(error, _DIGITS))
        return dict(sorted(largest.items()))

    def _seconds(self, us: int) -> float:
        return round(us / self._steps / 1e6, _DIGITS)

    def _parts(self) -> Iterator[Part]:
        ordered = self._path.most_common()
        for (kind, location, variable), us in ordered[:MAX_PARTS]:
            yield Part(kind, location, variable, self._seconds(us))
        rest: Counter[WorkKind] = Counter()
        for (kind, _, _), us in ordered[MAX_PARTS:]:
            rest[kind] += us
        for kind, us in rest.most_common():
            yield Part(kind, None, None, self._seconds(us))

    def _task(self, task: str, parts: Counter[WorkKind]) -> TaskTime:
        cpu = self._seconds(self._cpu[task]) if task in self._cpu else None
        return TaskTime(self._seconds(parts.total()), cpu, {kind: self._seconds(us) for kind, us in parts.most_common()})

    def _links(self, clocks: Clocks) -> Iterator[LinkTraffic]:
        for (source, destination), busy in self._busy.most_common(MAX_LINKS):
            sizes = self._bytes[source, destination]
            error = clocks.error_us.get(source, busy) + clocks.error_us.get(destination, busy)
            known = error * self._transfers[source, destination] <= MAX_CLOCK_ERROR_OF_LINK * busy
            named = Counter({variable: size for variable, size in sizes.items() if variable is not None})
            yield LinkTraffic(
                source,
                destination,
                sizes.total() / self._steps,
                self._seconds(busy) if known else None,
                {variable: size / self._steps for variable, size in named.most_common(MAX_VARIABLES)},
            )


def _group_by_link(events: Sequence[Event]) -> dict[tuple[str, str], list[Event]]:
    """Return the transfers between tasks, by link."""
    found: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        if event.source and (source := get_task(event.source)) != event.task:
            found.setdefault((source, event.task), []).append(event)
    return found
