"""Where the time of each task goes: every moment of the step is of exactly one kind, so that the kinds add up to the step.

A worker's step is its own, from the end of the step before to its end. A task that only serves (a parameter server, a worker
that lends its devices) is looked at from the first worker's begin to the last one's end.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pytest_dtfperf.explain.events import ClusterStep, Event, WorkerStep
from pytest_dtfperf.explain.kinds import WORK, is_server

Span = tuple[int, int, str]  # from, until, kind


def of_workers(step: ClusterStep) -> dict[str, Counter[str]]:
    """Worker -> kind -> microseconds, which add up to its step."""
    events: dict[str, list[Event]] = {worker.task: [] for worker in step.workers}
    for event in step.events:
        events[event.session].append(event)
    return {worker.task: _of_worker(worker, events[worker.task], worker.task in step.blind) for worker in step.workers}


def of_servers(step: ClusterStep) -> dict[str, Counter[str]]:
    """Task that has no session of its own -> kind -> microseconds, which add up to the cluster's step."""
    workers = {worker.task for worker in step.workers}
    spans: dict[str, list[Span]] = {}
    for event in step.events:
        for task in {event.task, event.source.partition("/")[0]} - workers - {""}:
            if span := _at_server(task, event):
                spans.setdefault(task, []).append(span)
    return {task: split(of_task, step.begin, step.last.end, rest="wait") for task, of_task in sorted(spans.items())}


def split(spans: Iterable[Span], begin: int, end: int, rest: str) -> Counter[str]:
    """Microseconds from `begin` to `end` by kind: of the spans that go on at a moment, the kind that comes first in `WORK`."""
    marks = []
    for start, until, kind in spans:
        start, until = max(start, begin), min(until, end)
        if start < until:
            rank = _RANK[kind]
            marks += [(start, 1, rank), (until, -1, rank)]
    marks.sort()
    active = [0] * len(_RANKED)
    spent: Counter[str] = Counter()
    at = begin
    for moment, change, rank in marks:
        if moment > at:
            spent[_first(active, rest)] += moment - at
            at = moment
        active[rank] += change
    if end > at:
        spent[rest] += end - at
    return spent


_RANKED = (*WORK, "unknown")
_RANK: Mapping[str, int] = {kind: rank for rank, kind in enumerate(_RANKED)}


def _first(active: Sequence[int], rest: str) -> str:
    return next((kind for kind, count in zip(_RANKED, active, strict=True) if count > 0), rest)


def _of_worker(worker: WorkerStep, events: Sequence[Event], blind: bool) -> Counter[str]:
    spans = [span for event in events if (span := _in_session(worker.task, event))]
    called = min(max(worker.called, worker.begin), worker.end)
    spent = split(spans, called, worker.end, rest="unknown" if blind else "host")
    spent["python"] += called - worker.begin
    return +spent


def _in_session(worker: str, event: Event) -> Span | None:
    """What an event of its session is to a worker."""
    kind = event.kind
    if event.source:
        source = event.source.partition("/")[0]
        if worker not in (event.task, source):
            return None
        kind = "receive" if event.task == worker else "send"
    elif event.task != worker and not is_server(event.device):
        kind = "wait"  # for a worker that lends its devices
    return event.start, event.end, kind


def _at_server(task: str, event: Event) -> Span | None:
    if event.source:
        return event.start, event.end, "receive" if event.task == task else "send"
    return None if event.kind == "wait" else (event.start, event.end, event.kind)
