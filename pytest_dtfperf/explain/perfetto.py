"""Traced steps as a file that ui.perfetto.dev and chrome://tracing open: Chrome's trace event format, compressed.

Each task is a process; its lanes are what it computes, what comes over the wire, and what waits in queues. Arrows go from the
task that has sent something to where it has arrived. Times are those of the first trace's clock, from the first event on.
"""

import gzip
import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from pytest_dtfperf.explain.step_events import Clocks, Event, cluster_step, task_of
from pytest_dtfperf.traces import TaskTrace

# An event with its arrow takes up to 30 bytes of the file (a test holds real traces against that), so that none has 20 MB.
MOST_EVENTS = 600_000
_LANES = {"operations": 0, "wire": 1000, "waits": 2000}  # the first lane of each


def write(file: IO[bytes], traces: Sequence[TaskTrace], clocks: Clocks, most: int = MOST_EVENTS) -> int:
    """Write as many whole steps as fit; if not even one does, its longest events. Returns how many events were left out.

    So is what happened by a clock that is not known. Of workers that a coordinator gives batches some have more, some none.
    """
    steps = max(len(trace.steps) for trace in traces)
    left_out, room = 0, most
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        rows = _Rows()
        for number in range(steps):
            stepping = [trace for trace in traces if number < len(trace.steps)]
            kept = _select_events(cluster_step(stepping, number, clocks).events, room, whole=number > 0)
            left_out += sum(len(trace.steps[number].ran) + len(trace.steps[number].received) for trace in stepping) - len(kept)
            room -= len(kept)
            for row in rows.of(kept):
                packed.write(json.dumps(row, separators=(",", ":")).encode() + b",")
        about = {"ph": "M", "name": "dtfperf", "pid": 0, "args": {"steps": steps, "events left out": left_out}}
        packed.write(json.dumps(about).encode() + b"]}")
    return left_out


def _select_events(events: Sequence[Event], room: int, *, whole: bool) -> Sequence[Event]:
    if len(events) <= room:
        return events
    return [] if whole else heapq.nlargest(room, events, key=lambda event: event.end - event.start)


class _Rows:
    """Events of one step after the other as rows of the format."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], list[tuple[int, int]]] = {}  # task and group -> a heap of lanes by their last end
        self._zero: int | None = None

    def of(self, events: Sequence[Event]) -> Iterator[Mapping[str, Any]]:
        ordered = sorted(events, key=lambda event: event.start)
        if self._zero is None and ordered:
            self._zero = ordered[0].start
        for event in ordered:
            for task in dict.fromkeys([event.task, task_of(event.source or event.device)]):
                yield from self._named(task)
            yield from self._row(event, self._zero or 0)

    def _named(self, task: str) -> Iterator[Mapping[str, Any]]:
        if task not in self._tasks:
            self._tasks[task] = len(self._tasks) + 1
            yield {"ph": "M", "name": "process_name", "pid": self._tasks[task], "args": {"name": task}}

    def _row(self, event: Event, zero: int) -> Iterator[Mapping[str, Any]]:
        group = "wire" if event.source else "waits" if event.kind == "wait" else "operations"
        lanes = self._lanes.setdefault((event.task, group), [])
        new = not lanes or lanes[0][0] > event.start
        lane = len(lanes) if new else heapq.heappop(lanes)[1]
        heapq.heappush(lanes, (event.end, lane))
        at = {"pid": self._tasks[event.task], "tid": _LANES[group] + lane}
        if new:
            yield {"ph": "M", "name": "thread_name", **at, "args": {"name": group}}
        row = {"ph": "X", **at, "ts": event.start - zero, "dur": event.end - event.start, "cat": event.kind}
        if not event.source:
            yield {**row, "name": event.type, "args": {"name": event.name, "session": event.session}}
            return
        yield {
            **row,
            "name": event.location,
            "args": {"name": event.name, "variable": event.variable, "bytes": event.size_bytes},
        }
        for sent in event.causes:
            arrow = {"name": "sent", "cat": event.kind, "id": f"{event.session} {event.end - zero} {event.name}"}
            yield {"ph": "s", **arrow, "pid": self._tasks[task_of(event.source)], "tid": 0, "ts": sent.end - zero}
            yield {"ph": "f", "bp": "e", **arrow, **at, "ts": event.end - zero}
