"""The trace of a worker's session in some steps: the time of each operation and transfer, as plain numbers.

Made on the hosts from TensorFlow's step statistics (`training/step_stats.py`), sent as JSON, and analysed in `explain/`.
A session records only its own operations, on all tasks: the traces of all workers together are the whole step.

All times are whole microseconds since 1970, each on the clock of its task.
"""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

MOST_CHARACTERS = 8 << 20  # of a packed trace: half of the maximum of a line
_MOST_BYTES = 32 << 20  # of its JSON: the names and times of 100,000 operations
_MOST = 2**53  # microseconds (until 2255) or bytes: above any clock or tensor


# Types of events that are no operations of a graph.
NO_BATCH = "no batch"  # a worker has received no batch to train
XLA_MODULE = "XLA module"  # part of a program that XLA has compiled; named after the program
KERNEL = "kernel"  # of a GPU, of an unknown operation
FED_QUEUE = "images_of_tower"  # followed by its number: a queue of batches that a program outside of the graph makes


class InvalidTrace(ValueError):
    """The trace is invalid: the text follows "the trace"."""


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


class Ran(NamedTuple):
    """The execution of an operation, on the clock of its device's task."""

    operation: int  # index in `operations`
    ready_us: int  # arrival of its last input
    start_us: int
    end_us: int


class Received(NamedTuple):
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
    ran: Sequence[Ran]
    received: Sequence[Received]


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
        of = _keys(data, "", ("task", "devices", "operations", "tensors", "queues", "steps"), may_have="edges")
        if not isinstance(of.get("edges", True), bool):
            raise InvalidTrace("has edges that are neither true nor false")
        devices = _texts(of["devices"], "devices")
        operations = [
            Operation(*_names(name, kind), _at(devices, number), _texts(inputs, "operations"))
            for name, kind, number, inputs in _rows(of["operations"], "operations", 4)
        ]
        tensors = [
            Tensor(_text(name, "tensors"), _at(devices, source), _at(devices, destination), _whole(size, "tensors"))
            for name, source, destination, size in _rows(of["tensors"], "tensors", 4)
        ]
        if not isinstance(of["queues"], dict):
            raise InvalidTrace("has queues that are no object")
        names = _texts([*of["queues"], *of["queues"].values()], "queues")
        steps = [_step_from_json(step, len(operations), len(tensors)) for step in _list(of["steps"], "steps")]
        half = len(names) // 2
        queues = dict(zip(names[:half], names[half:], strict=True))
        return cls(_text(of["task"], "task"), operations, tensors, steps, queues, of.get("edges", True))


def pack(trace: TaskTrace) -> str:
    """Return a trace as text for a message. Raises `InvalidTrace` if it is too large for one."""
    text = base64.b64encode(zlib.compress(json.dumps(trace.to_json(), separators=(",", ":")).encode())).decode()
    if len(text) > MOST_CHARACTERS:
        raise InvalidTrace(f"is too large to be sent: {len(text) >> 20} MiB")
    return text


def unpack(text: str) -> TaskTrace:
    """Return the packed trace. Raises `InvalidTrace`; a small text cannot expand beyond the limits of a trace."""
    try:
        unzip = zlib.decompressobj()
        data = unzip.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not unzip.eof:
            raise InvalidTrace("is cut off, or too large")
        return TaskTrace.from_json(json.loads(data))
    except InvalidTrace:
        raise
    except (ValueError, zlib.error, RecursionError) as exc:
        raise InvalidTrace("cannot be unpacked") from exc


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
    of = _keys(data, "steps", ("begin_us", "called_us", "end_us", "cpu_us", "ran", "received"))
    begin, called, end = (_whole(of[name], name) for name in ("begin_us", "called_us", "end_us"))
    cpu = None if of["cpu_us"] is None else _whole(of["cpu_us"], "cpu_us")
    ran = [
        Ran(row[0], *(begin + _whole(each, "ran") for each in row[1:]))
        for row in _rows(of["ran"], "ran", 4)
        if _is_index(row[0], operations, "ran")
    ]
    received = [
        Received(row[0], *(begin + _whole(each, "received") for each in row[1:]))
        for row in _rows(of["received"], "received", 3)
        if _is_index(row[0], tensors, "received")
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


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidTrace(f"has {where} with names that are no text")
    return value


def _names(name: Any, kind: Any) -> tuple[str, str]:
    return _text(name, "operations"), _text(kind, "operations")


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_text(each, where) for each in _list(value, where))


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or not -_MOST < value < _MOST:
        raise InvalidTrace(f"has {where} with numbers that are not whole")
    return int(value)


def _is_index(value: Any, length: int, where: str) -> bool:
    if type(value) is not int or not 0 <= value < length:
        raise InvalidTrace(f"has {where} of something that it does not name")
    return True


def _at(devices: Sequence[str], number: Any) -> str:
    _is_index(number, len(devices), "a device")
    return str(devices[number])
