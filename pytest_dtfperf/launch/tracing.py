"""Compute step breakdown and worker timings of a run from traces and timestamps. Invalid ones cost a run nothing but these."""

import gzip
import heapq
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice, permutations
from pathlib import Path
from typing import IO, Any

from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTiming, WorkerTimings, WorkKind
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.explain.step_events import Clocks, Event, align_clocks, get_task, make_cluster_step
from pytest_dtfperf.explain.worker_timings import compute_worker_timings
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import (
    MOST_STEPS,
    InvalidTimestamps,
    InvalidTrace,
    StepTimestamps,
    TaskTrace,
    unpack_timestamps,
    unpack_trace,
)

TRACED_STEPS = 6  # the first of them does not count
FILE = "trace.json.gz"  # beside the tasks' logs


@dataclass
class TraceCollector:
    """The traces of one run's tasks."""

    spec: Spec
    hosts: Mapping[str, object]  # task -> its host
    is_requested: bool
    packed: dict[str, str] = field(default_factory=dict)  # task -> its packed trace
    _refused: str = ""

    @property
    def steps(self) -> int:
        """The number of traced steps of each task."""
        return TRACED_STEPS if self.is_requested else 0

    def receive(self, task: str, data: str | None, error: str | None) -> None:
        """Process a task's trace, or the reason why there is none."""
        if data is not None:
            self.packed[task] = data
        else:
            self._refused = self._refused or f"{task} could not be traced: {error}"

    def outcome(self) -> tuple[StepBreakdown | None, str]:
        """Return the step breakdown, or why there is none though it was requested."""
        if not self.is_requested or self._refused:
            return None, self._refused
        if not self.packed:
            what = "an external command" if self.spec.command else f"variable_update={self.spec.variable_update}"
            return None, f"{what} cannot be traced"
        try:
            aligned = self._clocks if self._lockstep else None
            return compute_step_breakdown(self._traces, lockstep=self._lockstep, clocks=self._one_clock, aligned=aligned), ""
        except InvalidTrace as error:
            return None, f"the trace {error}"

    def write(self, folder: Path) -> None:
        """Write all events for Perfetto. A failure must not lose the run."""
        if not self.packed or self._refused:
            return
        with suppress(OSError, InvalidTrace):
            clocks = self._clocks
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / FILE).open("wb") as file:
                write_perfetto(file, self._traces, clocks)

    @property
    def _lockstep(self) -> bool:
        return self.spec.in_lockstep or self.spec.mode.single_session

    @cached_property
    def _traces(self) -> Sequence[TaskTrace]:
        """The traces, the chief's first: all times are on its clock. Raises `InvalidTrace`."""
        found = [self._unpack_trace(task, packed) for task, packed in self.packed.items()]
        return sorted(found, key=lambda trace: int(trace.task.partition(":")[2]))

    def _unpack_trace(self, task: str, packed: str) -> TaskTrace:
        trace = unpack_trace(packed)
        if trace.task != task:
            raise InvalidTrace(f"of {task} is that of {trace.task}")
        if strangers := trace.tasks - self.hosts.keys():
            raise InvalidTrace(f"of {task} names {min(strangers)}, which is no task of this run")
        most = TRACED_STEPS if trace.edges else TRACED_STEPS * self.spec.gpus  # batches may go to any free worker
        if len(trace.steps) > most:
            raise InvalidTrace(f"of {task} has {format_count(len(trace.steps), 'step')}, {most} were asked for")
        return trace

    @cached_property
    def _clocks(self) -> Clocks:
        """The clocks of all tasks, for both the breakdown and the file."""
        return align_clocks(self._traces, self._one_clock)

    @cached_property
    def _one_clock(self) -> Mapping[tuple[str, str], int]:
        """The pairs of tasks on one host, which share a clock."""
        of_host: dict[object, list[str]] = {}
        for task, host in self.hosts.items():
            of_host.setdefault(host, []).append(task)
        return {pair: 0 for tasks in of_host.values() for pair in permutations(tasks, 2)}


@dataclass
class TimestampCollector:
    """The step timestamps of one run's tasks."""

    spec: Spec
    tasks: Collection[str]
    packed: dict[str, str] = field(default_factory=dict)  # task -> its packed timestamps
    _refused: str = ""

    def receive(self, task: str, data: str | None, error: str | None) -> None:
        """Process a task's step timestamps, or the reason why there are none."""
        if data is not None:
            self.packed[task] = data
        else:
            self._refused = self._refused or f"{task} has no timestamps: {error}"

    def outcome(self) -> tuple[WorkerTimings | None, str]:
        """Return the worker timings, and an error. Both are empty if there are no timestamps."""
        if self._refused:
            return None, self._refused
        try:
            return compute_worker_timings(self._timestamps(), lockstep=self.spec.in_lockstep), ""
        except InvalidTimestamps as error:
            return None, f"the timestamps {error}"

    def _timestamps(self) -> list[StepTimestamps]:
        """Return the timestamps in the order of the workers' numbers. Raises `InvalidTimestamps`."""
        found: dict[str, StepTimestamps] = {}
        for task, packed in self.packed.items():
            for timestamps in unpack_timestamps(packed):
                self._check(task, timestamps, found)
                found[timestamps.worker] = timestamps
        return sorted(found.values(), key=lambda timestamps: int(timestamps.worker.partition(":")[2]))

    def _check(self, task: str, timestamps: StepTimestamps, found: Collection[str]) -> None:
        if timestamps.worker != task and not self.spec.mode.single_session:
            raise InvalidTimestamps(f"of {task} are those of {timestamps.worker}")
        if timestamps.worker not in self.tasks or not timestamps.worker.startswith("worker:"):
            raise InvalidTimestamps(f"of {task} name {timestamps.worker}, which is no worker of this run")
        if timestamps.worker in found:
            raise InvalidTimestamps(f"of {timestamps.worker} are there twice")
        # All of a coordinator's batches may go to one worker; an external program may make any number of steps.
        most = MOST_STEPS if self.spec.command else self.spec.steps * self.spec.gpus
        if len(timestamps) > most:
            raise InvalidTimestamps(f"of {timestamps.worker} are of {len(timestamps)} steps, there are {most}")


def with_cpu(timings: WorkerTimings | None, cpu_s: Mapping[str, float], steps: int) -> WorkerTimings | None:
    """Return the worker timings with the CPU time that whole tasks report, where timestamps have none.

    They have none for workers on which another task's session computes.

    Args:
        cpu_s: task -> seconds in `steps` measured steps. A worker with batches from a coordinator, or with reported
            steps, has its own number of them: the slower it is, the fewer.
    """
    if timings is None or not steps:
        return timings
    workers = {worker: _with_cpu(timing, cpu_s.get(worker), steps) for worker, timing in timings.workers.items()}
    return replace(timings, workers=workers)


def _with_cpu(timing: WorkerTiming, cpu_s: float | None, steps: int) -> WorkerTiming:
    own_steps = steps if timing.ready_s is not None else timing.steps
    if timing.cpu_s is not None or not cpu_s or not own_steps:
        return timing
    return replace(timing, cpu_s=round(cpu_s / own_steps, 6))


# An event with its arrow takes up to 30 bytes of the file, as a test shows with real traces: no file has 20 MB.
MAX_PERFETTO_EVENTS = 600_000
_LANES = {"operations": 0, "wire": 1000, "waits": 2000}  # the first lane of each


def write_perfetto(file: IO[bytes], traces: Sequence[TaskTrace], clocks: Clocks, most: int = MAX_PERFETTO_EVENTS) -> int:
    """Write traced steps as Chrome trace events for ui.perfetto.dev, and return how many events are missing.

    As many whole steps as fit are written; if not even one fits, its longest events. Events on an unknown clock are missing.
    Each task is a process with lanes for operations, transfers and waits. Arrows connect a send with its arrival. Times are on
    the first trace's clock, from the first event on.
    """
    steps = max(len(trace.steps) for trace in traces)
    left_out, room = 0, most
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6, mtime=0) as packed:
        packed.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        rows, encode = _PerfettoRows(), json.JSONEncoder(separators=(",", ":")).encode
        for number in range(steps):
            stepping = [trace for trace in traces if number < len(trace.steps)]
            left_out += sum(_count_events(trace, number) for trace in stepping)
            if number and sum(_count_events(trace, number) for trace in stepping if clocks.reads(trace.task)) > room:
                continue  # it does not fit: do not make its events
            events = make_cluster_step(stepping, number, clocks).events
            kept = events if len(events) <= room else heapq.nlargest(room, events, key=lambda event: event.end - event.start)
            left_out -= len(kept)
            room -= len(kept)
            made = rows.make_events(kept)
            while several := list(islice(made, 1000)):  # one call for each row would take far longer
                packed.write(encode(several)[1:-1].encode() + b",")
        about = {"ph": "M", "name": "dtfperf", "pid": 0, "args": {"steps": steps, "events left out": left_out}}
        packed.write(json.dumps(about).encode() + b"]}")
    return left_out


def _count_events(trace: TaskTrace, number: int) -> int:
    return len(trace.steps[number].ran) + len(trace.steps[number].received)


class _PerfettoRows:
    """The events of consecutive steps as rows of the format."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._lanes: dict[tuple[str, str], list[tuple[int, int]]] = {}  # task and group -> a heap of lanes by their last end
        self._zero: int | None = None

    def make_events(self, events: Sequence[Event]) -> Iterator[Mapping[str, Any]]:
        ordered = sorted(events, key=lambda event: event.start)
        if self._zero is None and ordered:
            self._zero = ordered[0].start
        for event in ordered:
            for task in dict.fromkeys([event.task, get_task(event.source or event.device)]):
                yield from self._list_names(task)
            yield from self._row(event, self._zero or 0)

    def _list_names(self, task: str) -> Iterator[Mapping[str, Any]]:
        if task not in self._tasks:
            self._tasks[task] = len(self._tasks) + 1
            yield {"ph": "M", "name": "process_name", "pid": self._tasks[task], "args": {"name": task}}

    def _row(self, event: Event, zero: int) -> Iterator[Mapping[str, Any]]:
        group = "wire" if event.source else "waits" if event.kind == WorkKind.WAIT else "operations"
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
        args = {"name": event.name, "variable": event.variable, "bytes": event.size_bytes}
        yield {**row, "name": event.location, "args": args}
        for sent in event.causes:
            arrow = {"name": "sent", "cat": event.kind, "id": f"{event.session} {event.end - zero} {event.name}"}
            yield {"ph": "s", **arrow, "pid": self._tasks[get_task(event.source)], "tid": 0, "ts": sent.end - zero}
            yield {"ph": "f", "bp": "e", **arrow, **at, "ts": event.end - zero}
