"""Convert TensorFlow's record of a traced step (`RunMetadata.step_stats`) to a `TaskTrace`.

It reads protocol buffers, and does not import TensorFlow. Their layout in TensorFlow 2.21:

* an operation's kind and inputs are only in its `timeline_label`, `[memory] name = Kind(input, input:1, ^control)`; control
  edges that TensorFlow's own passes have added are missing there, and are in the partition graphs;
* a transfer is an entry of the receiving device, `[12.2MB] [4.6Gb/s] edge_41_NAME from DEVICE to DEVICE`, and its size to the
  byte is that of its output;
* all times are Unix microseconds on the clock of the task that the operation ran in;
* the work of a GPU is under devices without a job: `/device:GPU:0/stream:13` has kernels, named after the operation that
  launched them where TensorFlow knows it, `/device:GPU:0/stream:14<MemcpyH2D>` copies. Other such devices (`stream:all`,
  `memcpy`, `sync`) repeat these. The operation itself ends when its kernels are launched: here it lasts until they are done.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_dtfperf.traces import KERNEL, Operation, OperationRun, TaskTrace, Tensor, TensorArrival, TracedStep

TRANSFERS = frozenset({"RecvTensor", "RecvBuf"})  # of a graph's edge between devices; of an exchange between workers

_STREAM = re.compile(r"^/device:(GPU:\d+)/(?:stream:(\d+)(?:<(Memcpy\w+)>)?|.*)$")
_DEVICE = re.compile(r"/job:(\w+)/replica:\d+/task:(\d+)/device:(.+)")
_OPERATION = re.compile(r"(?:\[.*?\] )?(.+?) = (\w+)\((.*)\)$")
_TRANSFER = re.compile(r"(?:\[.*?\] )*(.+) from (\S+) to (\S+)$")
_EDGE = re.compile(r"^edge_\d+_")


class Tracer:
    """A collector of the traced steps of a worker."""

    def __init__(self, task: str) -> None:
        self._task = task
        self._steps: list[TracedStep] = []
        self._operations: dict[Operation, int] = {}
        self._tensors: dict[Tensor, int] = {}
        self._edges: dict[str, tuple[str, ...]] = {}

    def note_graphs(self, graphs: Sequence[Any]) -> None:
        """Note the edges of `RunMetadata.partition_graphs`. Call it before steps are added."""
        self._edges |= {node.name: tuple(map(_strip_output, node.input)) for graph in graphs for node in graph.node}

    def add(self, step_stats: Any, *, begin_us: int, called_us: int, end_us: int, cpu_us: int) -> None:
        """Add one step. Its times are in Unix microseconds, `cpu_us` in microseconds."""
        ran: list[OperationRun] = []
        received: list[TensorArrival] = []
        kernels = _Kernels(self._task, step_stats.dev_stats)
        for of_device in step_stats.dev_stats:
            if _STREAM.match(of_device.device):
                continue
            device = self._shorten_device(of_device.device)
            for node in of_device.node_stats:
                start, end = node.all_start_micros, node.all_start_micros + node.all_end_rel_micros
                if node.node_name not in TRANSFERS:
                    operation = self._read_operation(node, device)
                    start, end = kernels.find_kernels(device, operation.name) or (start, end)
                    ran.append(OperationRun(self._index(operation), min(node.scheduled_micros or start, start), start, end))
                elif tensor := self._read_tensor(node):
                    received.append(TensorArrival(self._tensors.setdefault(tensor, len(self._tensors)), start, end))
        for device, name, kind, (start, end) in kernels.iterate_other_spans():
            ran.append(OperationRun(self._index(Operation(name, kind, f"{self._task}/{device}", ())), start, start, end))
        self._steps.append(TracedStep(begin_us, called_us, end_us, cpu_us, ran, received))

    def trace(self, queues: Mapping[str, str]) -> TaskTrace:
        """Return the trace of all added steps. `queues` maps each queue's operation to its shared name."""
        return TaskTrace(self._task, list(self._operations), list(self._tensors), self._steps, queues)

    def _index(self, operation: Operation) -> int:
        return self._operations.setdefault(operation, len(self._operations))

    def _read_operation(self, node: Any, device: str) -> Operation:
        match = _OPERATION.match(node.timeline_label)
        if not match:
            return Operation(node.node_name, node.node_name, device, ())
        name, kind, inputs = match.groups()
        named = map(_strip_output, filter(None, inputs.split(", ")))
        return Operation(name, kind, device, tuple(dict.fromkeys([*named, *self._edges.get(name, ())])))

    def _read_tensor(self, node: Any) -> Tensor | None:
        match = _TRANSFER.match(node.timeline_label)
        if not match:
            return None
        name, source, destination = match.groups()
        size = sum(output.tensor_description.allocation_description.requested_bytes for output in node.output)
        return Tensor(_EDGE.sub("", name), self._shorten_device(source), self._shorten_device(destination), size)

    def _shorten_device(self, device: str) -> str:
        """Return the short name of a device, such as `ps:1/CPU:0`. A single process does not know its task's name."""
        match = _DEVICE.match(device)
        if not match:
            return f"{self._task}/{device}"
        job, task, kind = match.groups()
        return f"{self._task if job == 'localhost' else f'{job}:{task}'}/{kind}"


class _Kernels:
    """The kernels that a task's GPUs ran in a step, by device and operation."""

    def __init__(self, task: str, devices: Sequence[Any]) -> None:
        self._task = task
        self._spans: dict[tuple[str, str], tuple[int, int]] = {}  # device, operation -> from its first kernel to its last
        self._others: list[tuple[str, str, str, tuple[int, int]]] = []  # device, name, kind, span
        self._taken: set[tuple[str, str]] = set()
        for of_device in devices:
            if (found := _STREAM.match(of_device.device)) and found[2]:
                for node in of_device.node_stats:
                    self._add_kernel(found[1], found[3], node)

    def _add_kernel(self, device: str, copies: str | None, node: Any) -> None:
        begin, end = node.all_start_micros, node.all_start_micros + node.all_end_rel_micros
        kernel = node.timeline_label.partition(" ")[0]
        if copies or kernel.startswith("nccl"):
            self._others.append((device, node.node_name, copies or kernel, (begin, end)))
            return
        first, last = self._spans.get((device, node.node_name), (begin, end))
        self._spans[device, node.node_name] = min(first, begin), max(last, end)

    def find_kernels(self, device: str, operation: str) -> tuple[int, int] | None:
        """Return when an operation's kernels ran; None where it has none, or ran in another task with streams unknown here."""
        task, _, gpu = device.partition("/")
        if task != self._task:
            return None
        key = gpu, operation
        self._taken.add(key)
        return self._spans.get(key)

    def iterate_other_spans(self) -> Iterator[tuple[str, str, str, tuple[int, int]]]:
        """Yield device, name, kind and span of the kernels that belong to no operation passed to `find_kernels`."""
        yield from self._others
        for key, span in self._spans.items():
            if key not in self._taken:
                yield (*key, KERNEL, span)


def _strip_output(text: str) -> str:
    return re.sub(r":\d+$", "", text.removeprefix("^"))


def iterate_queues(operations: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the queues among a graph's operations, with the names that all workers know them by."""
    for operation in operations:
        if operation.type == "FIFOQueueV2":
            yield operation.name, operation.get_attr("shared_name").decode()
