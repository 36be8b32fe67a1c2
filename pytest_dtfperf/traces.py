"""The timestamps and the traces of a worker's steps, as plain numbers. Made on hosts, sent as JSON, analysed in `explain/`.

Timestamps are of every measured step (`training/step_timestamps.py`). All of one worker's step are on one clock:

    begin ---- python ----> called -------> variables there -------> last gradient there -------> end

A trace has the time of each operation and transfer in some steps (`training/step_stats.py`). A session records only its own
operations, on all tasks: the traces of all workers together are the whole step.

All times are whole microseconds: in timestamps within a step, in traces since 1970, each on the clock of its task.
"""

import base64
import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Self

MOST_CHARACTERS = 8 << 20  # of packed timestamps or a packed trace: half of the maximum of a line
_MOST_BYTES = 32 << 20  # of their JSON: five numbers for each of 400,000 steps, or names and times of 100,000 operations
MOST_STEPS = 400_000  # with timestamps, of one worker: as many as a line of a report can hold (`clusters/children.py`)
_MOST_US = 10**13  # of a timestamp: four months, more than any step takes
_MOST = 2**53  # microseconds (until 2255) or bytes in a trace: above any clock or tensor

Column = Sequence[int | None]  # a number for each step; None: unknown


class InvalidTimestamps(ValueError):
    """An error for invalid timestamps: the text follows "the timestamps"."""


@dataclass(frozen=True, kw_only=True)
class StepTimestamps:
    """The timestamps of one worker in the measured steps, in their order. Columns are equally long."""

    worker: str  # "worker:0"
    python_us: Column  # from the step's begin until the call of its session
    variables_us: Column  # from there until all values of its variables had arrived
    gradients_us: Column  # from there, too: until its last gradient was computed
    end_us: Column  # from there, too: until the session returned
    cpu_us: Column  # user and system time of its process in the step
    between_us: Column = ()  # of a program that reports only begin and end: from the previous step's end to its begin

    def __len__(self) -> int:
        return len(self.python_us)

    def to_json(self) -> dict[str, Any]:
        columns = (*COLUMNS, *(["between_us"] if self.between_us else []))
        return {"worker": self.worker, **{name: list(getattr(self, name)) for name in columns}}

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read and validate timestamps, which may come from a broken or malicious host. Raises `InvalidTimestamps`."""
        if not isinstance(data, dict) or set(data) - {"between_us"} != {"worker", *COLUMNS}:
            raise InvalidTimestamps(f"have keys other than worker, {', '.join(COLUMNS)}")
        if not isinstance(data["worker"], str):
            raise InvalidTimestamps("have a worker's name that is no text")
        columns = [name for name in data if name != "worker"]
        found = cls(worker=data["worker"], **{name: _column(data[name], name) for name in columns})
        if len({len(data[name]) for name in columns}) != 1:
            raise InvalidTimestamps("have columns of different lengths")
        for row in zip(found.variables_us, found.gradients_us, found.end_us, strict=True):
            known = [each for each in row if each is not None]
            if known != sorted(known):
                raise InvalidTimestamps("go back in time")
        return found


COLUMNS = ("python_us", "variables_us", "gradients_us", "end_us", "cpu_us")


def _column(value: Any, name: str) -> list[int | None]:
    if not isinstance(value, list) or len(value) > MOST_STEPS:
        raise InvalidTimestamps(f"have {name} that are no list of at most {MOST_STEPS}")
    if not all(each is None or (type(each) is int and 0 <= each <= _MOST_US) for each in value):
        raise InvalidTimestamps(f"have {name} that are no whole microseconds")
    return value


def pack_timestamps(timestamps: Sequence[StepTimestamps]) -> str:
    """Return timestamps as text for a message. Raises `InvalidTimestamps` if they are too large for one."""
    packed = _pack([each.to_json() for each in timestamps])
    if packed is None:
        raise InvalidTimestamps("are too many to be sent")
    return packed


def unpack_timestamps(text: str) -> list[StepTimestamps]:
    """Return the packed timestamps. Raises `InvalidTimestamps`."""
    data = _unpack(text, InvalidTimestamps, "are cut off, or no list")
    if not isinstance(data, list):
        raise InvalidTimestamps("are cut off, or no list")
    return [StepTimestamps.from_json(each) for each in data]


def _pack(data: Any) -> str | None:
    """Return data as text for a message; None if they are too large for one."""
    text = json.dumps(data, separators=(",", ":")).encode()
    packed = base64.b64encode(zlib.compress(text)).decode()
    return packed if len(text) <= _MOST_BYTES and len(packed) <= MOST_CHARACTERS else None


def _unpack(text: str, error: Callable[[str], ValueError], cut_off: str) -> Any:
    """Return the packed data, or raise the error. A small text cannot expand beyond the limit of the data."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if unzip.eof:
            return json.loads(data)
    except (ValueError, zlib.error, RecursionError) as exc:
        raise error("cannot be unpacked") from exc
    raise error(cut_off)


# Types of events that are no operations of a graph.
NO_BATCH = "no batch"  # a worker has received no batch to train
XLA_MODULE = "XLA module"  # part of a program that XLA has compiled; named after the program
KERNEL = "kernel"  # of a GPU, of an unknown operation
FED_QUEUE = "images_of_tower"  # followed by its number: a queue of batches that a program outside of the graph makes


class InvalidTrace(ValueError):
    """An error for an invalid trace: the text follows "the trace"."""


class Operation(NamedTuple):
    """An operation of the graph, as TensorFlow runs it."""

    name: str
    type: str
    device: str  # "ps:1/CPU:0"
    inputs: tuple[str, ...]  # names of operations, control edges among them; "x_S3" or "x/_3" is x, from another device


class Tensor(NamedTuple):
    """A transfer from one device to another in every step."""

    name: str  # the operation that makes it; for an exchange between workers, its key
    source: str  # a device
    destination: str  # a device
    size_bytes: int


class OperationRun(NamedTuple):
    """The execution of an operation, on the clock of its device's task."""

    operation: int  # index in `operations`
    ready_us: int  # arrival of its last input
    start_us: int
    end_us: int


class TensorArrival(NamedTuple):
    """The arrival of a tensor, on the clock of the destination's task."""

    tensor: int  # index in `tensors`
    start_us: int  # from TensorFlow, which uses two clocks: valid only if they agree
    end_us: int  # its arrival


@dataclass(frozen=True)
class TracedStep:
    """One step of one worker. The first three are on its own clock."""

    begin_us: int  # end of the previous step
    called_us: int  # call of the session
    end_us: int  # return of the session
    cpu_us: int | None  # user and system time of the worker's process in between; None: unknown
    ran: Sequence[OperationRun]
    received: Sequence[TensorArrival]


@dataclass(frozen=True)
class TaskTrace:
    """The traced steps of one worker."""

    task: str  # "worker:0"
    operations: Sequence[Operation]
    tensors: Sequence[Tensor]
    steps: Sequence[TracedStep]
    queues: Mapping[str, str] = field(default_factory=dict)  # operation that is a queue -> its name in all workers
    edges: bool = True  # whether it has the inputs of each operation and all arrivals; a profiler's trace does not

    @property
    def tasks(self) -> set[str]:
        """All tasks in the trace."""
        devices = {o.device for o in self.operations} | {d for t in self.tensors for d in (t.source, t.destination)}
        return {self.task, *(device.partition("/")[0] for device in devices)}

    def to_json(self) -> dict[str, Any]:
        """Return JSON with devices by number and times from the step's begin on, which is a third of the size."""
        devices = sorted({o.device for o in self.operations} | {d for t in self.tensors for d in (t.source, t.destination)})
        number = {device: i for i, device in enumerate(devices)}
        return {
            "task": self.task,
            "devices": devices,
            "operations": [[o.name, o.type, number[o.device], list(o.inputs)] for o in self.operations],
            "tensors": [[t.name, number[t.source], number[t.destination], t.size_bytes] for t in self.tensors],
            "queues": dict(self.queues),
            "steps": [_step_to_json(step) for step in self.steps],
            **({} if self.edges else {"edges": False}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """Read and validate a trace, which may come from a broken or malicious host. Raises `InvalidTrace`."""
        fields = _keys(data, "", ("task", "devices", "operations", "tensors", "queues", "steps"), may_have="edges")
        if not isinstance(fields.get("edges", True), bool):
            raise InvalidTrace("has edges that are neither true nor false")
        devices = _read_texts(fields["devices"], "devices")
        operations = [
            Operation(*_names(name, kind), _get_device_name(devices, number), _read_texts(inputs, "operations"))
            for name, kind, number, inputs in _rows(fields["operations"], "operations", 4)
        ]
        tensors = [
            Tensor(
                _read_text(name, "tensors"),
                _get_device_name(devices, source),
                _get_device_name(devices, destination),
                _read_whole(size, "tensors"),
            )
            for name, source, destination, size in _rows(fields["tensors"], "tensors", 4)
        ]
        if not isinstance(fields["queues"], dict):
            raise InvalidTrace("has queues that are no object")
        names = _read_texts([*fields["queues"], *fields["queues"].values()], "queues")
        steps = [_step_from_json(step, len(operations), len(tensors)) for step in _list(fields["steps"], "steps")]
        half = len(names) // 2
        queues = dict(zip(names[:half], names[half:], strict=True))
        return cls(_read_text(fields["task"], "task"), operations, tensors, steps, queues, fields.get("edges", True))


def pack_trace(trace: TaskTrace) -> str:
    """Return a trace as text for a message. Raises `InvalidTrace` if it is too large for one."""
    packed = _pack(trace.to_json())
    if packed is None:
        raise InvalidTrace(f"is too large to be sent: more than {MOST_CHARACTERS >> 20} MiB")
    return packed


def unpack_trace(text: str) -> TaskTrace:
    """Return the packed trace. Raises `InvalidTrace`."""
    return TaskTrace.from_json(_unpack(text, InvalidTrace, "is cut off, or too large"))


def _step_to_json(step: TracedStep) -> dict[str, Any]:
    begin = step.begin_us
    return {
        "begin_us": begin,
        "called_us": step.called_us - begin,
        "end_us": step.end_us - begin,
        "cpu_us": step.cpu_us,
        "ran": [[r.operation, r.ready_us - begin, r.start_us - begin, r.end_us - begin] for r in step.ran],
        "received": [[r.tensor, r.start_us - begin, r.end_us - begin] for r in step.received],
    }


def _step_from_json(data: Any, operations: int, tensors: int) -> TracedStep:
    fields = _keys(data, "steps", ("begin_us", "called_us", "end_us", "cpu_us", "ran", "received"))
    begin, called, end = (_read_whole(fields[name], name) for name in ("begin_us", "called_us", "end_us"))
    cpu = None if fields["cpu_us"] is None else _read_whole(fields["cpu_us"], "cpu_us")
    ran = [
        OperationRun(number, begin + ready, begin + start, begin + last)
        for number, ready, start, last in _read_numbers(fields["ran"], "ran", 4, operations)
    ]
    received = [
        TensorArrival(number, begin + start, begin + last)
        for number, start, last in _read_numbers(fields["received"], "received", 3, tensors)
    ]
    return TracedStep(begin, begin + called, begin + end, cpu, ran, received)


def _keys(data: Any, where: str, keys: Sequence[str], may_have: str = "") -> Mapping[str, Any]:
    if not isinstance(data, dict) or set(data) - {may_have} != set(keys):
        raise InvalidTrace(f"has {where or 'keys'} other than {', '.join(keys)}")
    return data


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidTrace(f"has {where} that are no list")
    return value


def _rows(value: Any, where: str, columns: int) -> list[list[Any]]:
    rows = _list(value, where)
    if not all(isinstance(row, list) and len(row) == columns for row in rows):
        raise InvalidTrace(f"has {where} that are no rows of {columns}")
    return rows


def _read_numbers(value: Any, where: str, columns: int, length: int) -> list[list[int]]:
    """Return rows of an index below `length` and whole numbers. They are checked together, as there are millions of them."""
    rows = _rows(value, where, columns)
    numbers = list(chain.from_iterable(rows))
    if not {int}.issuperset(map(type, numbers)) or not -_MOST < min(numbers, default=0) <= max(numbers, default=0) < _MOST:
        raise InvalidTrace(f"has {where} with numbers that are not whole")
    if min(numbers[::columns], default=0) < 0 or max(numbers[::columns], default=-1) >= length:
        raise InvalidTrace(f"has {where} of something that it does not name")
    return rows


def _read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidTrace(f"has {where} with names that are no text")
    return value


def _names(name: Any, kind: Any) -> tuple[str, str]:
    return _read_text(name, "operations"), _read_text(kind, "operations")


def _read_texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_read_text(each, where) for each in _list(value, where))


def _read_whole(value: Any, where: str) -> int:
    if type(value) is not int or not -_MOST < value < _MOST:
        raise InvalidTrace(f"has {where} with numbers that are not whole")
    return int(value)


def _is_index(value: Any, length: int, where: str) -> bool:
    if type(value) is not int or not 0 <= value < length:
        raise InvalidTrace(f"has {where} of something that it does not name")
    return True


def _get_device_name(devices: Sequence[str], number: Any) -> str:
    _is_index(number, len(devices), "a device")
    return str(devices[number])


CLOCK_SET_NS = 1_000_000  # both clocks are slewed alike, and their difference stays; no step of a clock is so small


class WallClock:
    """The difference between the wall clock and the monotonic clock, which is never set, since this object was made."""

    def __init__(self, wall_ns: Callable[[], int] = time.time_ns, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._before = self._bound_clock_offset()

    def check(self) -> None:
        """Raise `InvalidTrace` if the wall clock was set since this object was made."""
        (least, most), (now_least, now_most) = self._before, self._bound_clock_offset()
        if now_least > most + CLOCK_SET_NS or now_most < least - CLOCK_SET_NS:
            by_s = (now_least + now_most - least - most) / 2e9
            raise InvalidTrace(
                f"its host's clock was set by {by_s:+.3g} s while steps were traced, so that where their time went is not known"
            )

    def _bound_clock_offset(self) -> tuple[int, int]:
        """Return by how many nanoseconds the wall clock is ahead: a lower and an upper bound, as reading both takes time."""
        before = self._monotonic_ns()
        wall = self._wall_ns()
        return wall - self._monotonic_ns(), wall - before
