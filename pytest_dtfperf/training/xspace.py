"""Convert the profile of a process by TensorFlow's profiler (an `XSpace`) to operations that ran.

Pure: needs the protocol buffers that it is given, but not TensorFlow's run time. Their layout in TensorFlow 2.21:

* a plane `/host:CPU` with a line per thread. An operation is an event `name:Type`; an executor's, the eager runtime's or the
  collectives' own events have other names. Thousands of them are not used here;
* a request for another task's tensor is no event: the executor notes when it began to wait
  (`ExecutorState::ProcessAsync::Start` of a `_Recv`) and when it had it (`...::Done`), with the names in statistics;
* code that XLA has compiled notes its instructions, with the module's name in `hlo_module`;
* a plane `/device:GPU:0` per GPU with a line per stream, `Stream #13(Compute)`: kernels, with their operation in `tf_op`, and
  copies, `MemcpyH2D`. The host's event of such an operation is its launch, and is left out. Other lines repeat these;
* times are from the begin of the profile on, which is in the plane `Task Environment`.

No event has its inputs, nor the time at which it was ready: there are no edges.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from pytest_dtfperf.traces import KERNEL, XLA_MODULE, Operation

MOST_EVENTS = 1_000_000  # of a profile; six steps of the largest network have a tenth of it

# As TensorFlow's own profiler recognises operations (ParseTfOpFullname in its source).
_OPERATION = re.compile(r"^([A-Za-z0-9.][A-Za-z0-9_.\\/>-]*):([A-Z_][A-Za-z0-9_]*)$")
_NO_OPERATIONS = frozenset({"EagerService:Enqueue"})
_EDGE = re.compile(r"/_\d+(:_Send)?$")  # the suffix of a sent tensor's name, from TensorFlow's partitioning
_NEXT_BATCH = "IteratorGetNextOp::DoCompute"
_ASKED, _HAS = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
_GIVEN_BATCH = re.compile(r"^EagerLocalExecute: __inference__train_\d+$")  # `Coordinator._train`, on its worker
_GPU = re.compile(r"^/device:(GPU:\d+)$")
_ONE_RUN_US = 100  # a longer gap between instructions of a module begins another run
_NANOSECONDS_OF_1980 = 315_532_800 * 10**9  # a line's begin that is larger counts from 1970, not from the profile's begin


class Activity(NamedTuple):
    """An operation with the time of its run, in Unix microseconds."""

    operation: Operation
    start_us: int
    end_us: int


class _Event:
    """An event of one thread or stream, in nanoseconds since 1970."""

    def __init__(self, plane: Any, event: Any, base_ns: int) -> None:
        self._plane, self._event = plane, event
        self._kind = plane.event_metadata[event.metadata_id]
        self.name: str = self._kind.name
        self.start_ns: int = base_ns + event.offset_ps // 1000
        self.end_ns: int = self.start_ns + event.duration_ps // 1000

    @cached_property
    def stats(self) -> Mapping[str, Any]:
        """Return the statistics of the event and of its kind, read on first use: most are never used."""
        return {**_read_stats(self._plane, self._kind.stats), **_read_stats(self._plane, self._event.stats)}


class Profile:
    """The operations in an `XSpace`. Raises `ValueError` where it has more events than can be used."""

    def __init__(self, space: Any, task: str) -> None:
        events = sum(len(line.events) for plane in space.planes for line in plane.lines)
        if events > MOST_EVENTS:
            raise ValueError(f"the profile has {events:,} events, {MOST_EVENTS:,} can be used")
        self._space = space
        self._task = task
        self._began_ns = self._begin()

    def activities(self) -> list[Activity]:
        """Return all operations that ran, sorted by their start."""
        on_gpus = [activity for plane in self._space.planes for activity in self._find_on_gpu(plane)]
        launched = {activity.operation.name for activity in on_gpus}
        on_host = [each for each in self._find_on_host() if each.operation.name not in launched]
        return sorted([*on_host, *on_gpus], key=lambda each: (each.start_us, each.end_us))

    def batches(self) -> list[tuple[int, int]]:
        """Return the begin and end of each batch that a coordinator gave this process, in Unix microseconds."""
        found = [(e.start_ns, e.end_ns) for line in self._host_lines() for e in line if _GIVEN_BATCH.match(e.name)]
        return [(start // 1000, end // 1000) for start, end in sorted(found)]

    def _begin(self) -> int:
        """Return the begin of the profile in nanoseconds since 1970."""
        for plane in self._space.planes:
            if plane.name == "Task Environment":
                return int(_read_stats(plane, plane.stats).get("profile_start_time", 0))
        return 0

    def _host_lines(self) -> Iterator[list[_Event]]:
        for plane in self._space.planes:
            if plane.name == "/host:CPU":
                yield from (list(self._events(plane, line)) for line in plane.lines)

    def _events(self, plane: Any, line: Any) -> Iterator[_Event]:
        base_ns = line.timestamp_ns + (self._began_ns if line.timestamp_ns < _NANOSECONDS_OF_1980 else 0)
        return (_Event(plane, event, base_ns) for event in line.events)

    # -- the host

    def _find_on_host(self) -> Iterator[Activity]:
        lines = list(self._host_lines())
        for line in lines:
            yield from self._find_operations(line)
            yield from self._find_compiled_runs(line, "CPU:0")
        yield from self._find_received(lines)

    def _find_operations(self, line: list[_Event]) -> Iterator[Activity]:
        for event in line:
            if event.name == _NEXT_BATCH:
                yield self._make_activity(event, "IteratorGetNext", "IteratorGetNext")
            elif (found := _OPERATION.match(event.name)) and event.name not in _NO_OPERATIONS and not _is_handed_over(event):
                yield self._make_activity(event, found[1], found[2])

    def _find_received(self, lines: list[list[_Event]]) -> Iterator[Activity]:
        """Yield transfers from other tasks, each from when this task began to wait for it.

        Transfers between this task's own devices are left out.
        """
        asked: dict[tuple[Any, Any], int] = {}
        had: dict[tuple[Any, Any], int] = {}
        within = {_EDGE.sub("", event.name) for line in lines for event in line if _is_handed_over(event)}
        for event in (event for line in lines for event in line if event.name in (_ASKED, _HAS)):
            if event.stats.get("kernel_type") == "_Recv" and _EDGE.sub("", str(event.stats.get("name"))) not in within:
                key = event.stats.get("name"), event.stats.get("step_id")
                (asked if event.name == _ASKED else had)[key] = event.start_ns
        for key, start_ns in asked.items():
            if key in had and had[key] >= start_ns:
                operation = Operation(str(key[0]), "_Recv", f"{self._task}/CPU:0", ())
                yield Activity(operation, start_ns // 1000, had[key] // 1000)

    # -- XLA

    def _find_compiled_runs(self, line: list[_Event], device: str) -> Iterator[Activity]:
        """Yield the runs of XLA modules. A run is a series of instructions of one module."""
        run: Activity | None = None
        for event in sorted((e for e in line if e.stats.get("hlo_module")), key=lambda e: e.start_ns):
            module = str(event.stats["hlo_module"])
            start_us, end_us = event.start_ns // 1000, event.end_ns // 1000
            if run and run.operation.name == module and start_us - run.end_us <= _ONE_RUN_US:
                run = run._replace(end_us=max(run.end_us, end_us))
                continue
            if run:
                yield run
            run = Activity(Operation(module, XLA_MODULE, f"{self._task}/{device}", ()), start_us, end_us)
        if run:
            yield run

    # -- GPUs

    def _find_on_gpu(self, plane: Any) -> Iterator[Activity]:
        if not (found := _GPU.match(plane.name)):
            return
        for line in plane.lines:
            if line.name.startswith("Stream"):
                events = list(self._events(plane, line))
                yield from self._find_compiled_runs(events, found[1])
                yield from (self._make_kernel(e, found[1]) for e in events if not e.stats.get("hlo_module"))

    def _make_kernel(self, event: _Event, device: str) -> Activity:
        named = _OPERATION.match(str(event.stats.get("tf_op", "")))
        name = named[1] if named else event.name
        if event.name.startswith(("Memcpy", "nccl")):
            return self._make_activity(event, name, event.name, device)
        return self._make_activity(event, name, named[2] if named else KERNEL, device)

    def _make_activity(self, event: _Event, name: str, kind: str, device: str = "CPU:0") -> Activity:
        operation = Operation(name, kind, f"{self._task}/{device}", ())
        return Activity(operation, event.start_ns // 1000, event.end_ns // 1000)


def _is_handed_over(event: _Event) -> bool:
    """Return whether the event sends to another device of its own task.

    The key of a rendezvous is `source;incarnation;destination;...`.
    """
    if not event.name.endswith(":_Send"):
        return False
    parts = str(event.stats.get("key", "")).split(";")
    return len(parts) > 2 and parts[0].rpartition("/device:")[0] == parts[2].rpartition("/device:")[0]


def _read_stats(plane: Any, stats: Any) -> dict[str, Any]:
    """Return statistics by name. Texts may be references to names, which the plane has once."""
    found = {}
    for stat in stats:
        kind = stat.WhichOneof("value")
        value = getattr(stat, kind) if kind else None
        found[plane.stat_metadata[stat.metadata_id].name] = plane.stat_metadata[value].name if kind == "ref_value" else value
    return found
