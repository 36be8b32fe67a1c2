"""Place all operations of one step of the cluster on one clock, each with its kind of work and what it waited for.

The differences of hosts' clocks follow from order alone. A task has a value after the other task made it. Work that a session
runs elsewhere begins after the session requested it, and ends before the session has the answer. No task's part of an
all-reduce ends before all have begun theirs. Each of these bounds the difference of two clocks from one side. Together they are
a system of difference constraints, made as tight as possible by shortest paths (Bellman 1958, Floyd 1962). Between the bounds
every difference explains the trace equally well. The mean of the middles over all tasks as a reference is used: it keeps all
constraints, because they are convex, and prefers no task.
"""

import bisect
import heapq
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from pytest_dtfperf.datamodel.step_times import WorkKind
from pytest_dtfperf.traces import FED_QUEUE, KERNEL, NO_BATCH, XLA_MODULE, Operation, TaskTrace, TracedStep

_INPUTS = frozenset(
    {"IteratorGetNext", "IteratorV2", "OneShotIterator", "PyFunc", "EagerPyFunc", "QueueDequeueManyV2", "RemoteCall"}
)
_SYNTHETIC = re.compile(r"/synthetic_")
_FED = re.compile(rf"(^|/){FED_QUEUE}\d+_Dequeue")
_EXCHANGES = ("Collective", "Horovod", "Nccl", "nccl")  # operations, and kernels
_UPDATE = re.compile(r"_inference_update_")  # XLA's name of an update that `training.optimizers` compiles
_BACKWARD = re.compile(r"(^|/)tower\d+/(.*/)?gradients(/|$)")
_TOWER = re.compile(r"(^|/)tower\d+/")


def get_task(device: str) -> str:
    """Return `ps:1` of `ps:1/CPU:0`."""
    return device.partition("/")[0]


def is_server(device: str) -> bool:
    return device.startswith("ps:")


def classify_operation(operation: Operation) -> WorkKind:
    """Return the kind of work of an operation, by its type and name.

    Towers are named `tower0/...` and their gradients `tower0/gradients/...`. All else makes updates of gradients or moves them.
    """
    return _classify(operation.type, operation.name, is_server(operation.device))


@lru_cache(maxsize=1 << 14)  # all workers run operations of the same names, in each step
def _classify(kind: str, name: str, is_of_server: bool) -> WorkKind:
    if kind == "QueueDequeueV2" and _FED.search(name):
        return WorkKind.INPUT
    if kind in ("QueueDequeueV2", NO_BATCH):
        return WorkKind.WAIT
    if kind.startswith(_EXCHANGES):
        return WorkKind.REDUCE
    if kind == KERNEL:
        return WorkKind.UNKNOWN
    if kind.startswith("Memcpy"):
        return WorkKind.COPY
    if kind in ("_Recv", "_HostRecv"):  # _HostRecv: of a GPU, into its host's memory
        return WorkKind.RECEIVE if "ReadVariableOp" in name else WorkKind.WAIT  # else it waits for another task's work
    if kind in ("_Send", "_HostSend"):
        return WorkKind.SEND
    if is_of_server:
        return WorkKind.APPLY
    if kind == XLA_MODULE:
        return WorkKind.APPLY if _UPDATE.search(name) else WorkKind.COMPILED
    if kind == "_XlaRun" or (kind.endswith("PartitionedCall") and _TOWER.search(name)):
        return WorkKind.COMPILED  # forward and backward in one: XLA leaves no names
    if kind in _INPUTS or _SYNTHETIC.search(name):
        return WorkKind.INPUT
    if _BACKWARD.search(name):
        return WorkKind.BACKWARD
    return WorkKind.FORWARD if _TOWER.search(name) else WorkKind.APPLY


def classify_transfer(destination: str) -> WorkKind:
    """Return the kind of a transfer from the workers' view: they send to parameter servers, and receive all else."""
    return WorkKind.SEND if is_server(destination) else WorkKind.RECEIVE


Bounds = Mapping[tuple[str, str], int]  # (a, b) -> the most that a's clock may be ahead of b's, in us
Exchange = Mapping[str, tuple[int, int]]  # task -> begin and end of its part of an all-reduce, on its clock
ClockMatrix = np.ndarray[tuple[int, int], np.dtype[np.int64]]  # the same as `Bounds`, by the numbers of clocks

_FAR = 2**60  # no bound
_FIRST_SLACK_US = 8  # timestamps are rounded, and taken shortly after the event


@dataclass(frozen=True)
class Clocks:
    """The differences of tasks' clocks from that of the first trace's task. Tasks with an unknown difference are absent."""

    ahead_us: Mapping[str, int]
    error_us: Mapping[str, int]  # the largest possible error

    def reads(self, task: str) -> bool:
        """Return whether this task's clock can be converted to the first task's time."""
        return task in self.ahead_us


def align_clocks(traces: Sequence[TaskTrace], known: Bounds | None = None) -> Clocks:
    """Return the offsets of all clocks. `known` has further bounds: 0 in both directions for tasks of one host."""
    bounds, exchanges = _bounds(traces)
    for pair, most in (known or {}).items():
        bounds[pair] = min(bounds.get(pair, _FAR), most)
    tasks = list(dict.fromkeys([*(trace.task for trace in traces), *(task for pair in bounds for task in pair)]))
    clocks = number_clocks(tasks, known or {})
    tight, slack = _tighten_bounds(_make_matrix(clocks, bounds, exchanges))
    near = [i for i in range(len(tight)) if tight[i, 0] < _FAR // 2 and tight[0, i] < _FAR // 2]
    tight, sizes = tight[np.ix_(near, near)], np.bincount(list(clocks.values()))[near]
    middles = ((tight - tight.T) * sizes).sum(axis=1)  # 2n times the differences, with n tasks
    ahead = [int(middle - middles[0]) // (2 * int(sizes.sum())) for middle in middles]
    errors = [max(int(tight[i, 0]) - x, x + int(tight[0, i])) + slack for i, x in enumerate(ahead)]
    ahead_of, error_of = dict(zip(near, ahead, strict=True)), dict(zip(near, errors, strict=True))
    known_tasks = {task: clock for task, clock in clocks.items() if clock in ahead_of}
    return Clocks(
        {task: ahead_of[clock] for task, clock in known_tasks.items()},
        {task: error_of[clock] for task, clock in known_tasks.items()},
    )


def number_clocks(tasks: Sequence[str], known: Bounds) -> Mapping[str, int]:
    """Return the number of each task's clock, from 0 on. Tasks that are known not to differ have one clock."""
    same: dict[str, list[str]] = defaultdict(list)
    for (one, other), most in known.items():
        if most == 0 and known.get((other, one)) == 0:
            same[one].append(other)
    found: dict[str, int] = {}
    numbers = itertools.count()
    for task in tasks:
        number = next((found[other] for other in same[task] if other in found), None)
        found[task] = next(numbers) if number is None else number
    return found


def _bounds(traces: Sequence[TaskTrace]) -> tuple[dict[tuple[str, str], int], list[Exchange]]:
    """Return the bounds of single sessions and transfers, and all exchanges."""
    found: dict[tuple[str, str], int] = {}
    exchanges: list[Exchange] = []
    for of_step in zip(*(trace.steps for trace in traces), strict=False):
        for trace, step in zip(traces, of_step, strict=True):
            for later, earlier, most in (*_order_session(trace, step), *_order_transfers(trace, step)):
                if later != earlier:
                    found[later, earlier] = min(found.get((later, earlier), _FAR), most)
        exchanges += _list_exchanges(traces, of_step)
    return found, exchanges


def _order_session(trace: TaskTrace, step: TracedStep) -> Iterator[tuple[str, str, int]]:
    devices = [get_task(operation.device) for operation in trace.operations]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for ran in step.ran:
        task = devices[ran.operation]
        first[task] = min(first.get(task, ran.start_us), ran.start_us)
        last[task] = max(last.get(task, ran.end_us), ran.end_us)
    for task, began in first.items():
        yield task, trace.task, began - step.called_us
        yield trace.task, task, step.end_us - last[task]


def _order_transfers(trace: TaskTrace, step: TracedStep) -> Iterator[tuple[str, str, int]]:
    ended = {(o.device, o.name): r.end_us for r in step.ran for o in (trace.operations[r.operation],)}
    for received in step.received:
        tensor = trace.tensors[received.tensor]
        if (sent := ended.get((tensor.source, tensor.name))) is not None:
            yield get_task(tensor.destination), get_task(tensor.source), received.end_us - sent


def _list_exchanges(traces: Sequence[TaskTrace], steps: Sequence[TracedStep]) -> list[Exchange]:
    parts: dict[str, dict[str, tuple[int, int]]] = {}
    for trace, step in zip(traces, steps, strict=True):
        for ran in step.ran:
            operation = trace.operations[ran.operation]
            if operation.type.startswith("CollectiveReduce"):
                parts.setdefault(operation.name, {})[get_task(operation.device)] = ran.start_us, ran.end_us
    return list(parts.values())


def _make_matrix(clocks: Mapping[str, int], bounds: Bounds, exchanges: Sequence[Exchange]) -> ClockMatrix:
    """Return the tightest single bound of each pair of clocks."""
    count = 1 + max(clocks.values())
    found = np.full((count, count), _FAR, dtype=np.int64)
    for (later, earlier), most in bounds.items():
        pair = clocks[later], clocks[earlier]
        found[pair] = min(found[pair], most)
    for exchange in exchanges:
        _add_exchange(found, clocks, exchange)
    return found


def _add_exchange(matrix: ClockMatrix, clocks: Mapping[str, int], exchange: Exchange) -> None:
    """Tighten bounds by an exchange, with the first end and the last begin on each clock: there are too many pairs of tasks."""
    of_clock: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for task, part in exchange.items():
        of_clock[clocks[task]].append(part)
    begins = [heapq.nlargest(2, (begin for begin, _ in parts)) for parts in of_clock.values()]
    apart = np.subtract.outer([min(end for _, end in parts) for parts in of_clock.values()], [last for last, *_ in begins])
    own = [  # a part is compared with the others of its clock, and not with itself
        min(end - latest[begin == latest[0]] for begin, end in parts) if len(parts) > 1 else _FAR
        for parts, latest in zip(of_clock.values(), begins, strict=True)
    ]
    np.fill_diagonal(apart, own)
    at = np.ix_([*of_clock], [*of_clock])
    matrix[at] = np.minimum(matrix[at], apart)


def _tighten_bounds(bounds: ClockMatrix) -> tuple[ClockMatrix, int]:
    """Return the bounds of all pairs of clocks, and by how much all were loosened since some contradict (a clock was set)."""
    slack = 0
    while True:
        tight = np.minimum(bounds + slack, _FAR)
        np.fill_diagonal(tight, np.minimum(np.diagonal(tight), 0))
        for through in range(len(tight)):
            np.minimum(tight, tight[:, through, None] + tight[None, through, :], out=tight)
        if not (np.diagonal(tight) < 0).any():
            return tight, slack
        slack = max(_FIRST_SLACK_US, 2 * slack)


_RECEIVED = re.compile(r"(_S|/_)\d+$")  # from another task's device; from another device of the same process
# The name of a queue has the variable of its gradients or values (variable_update/).
_QUEUES = (re.compile(r"(.+)/gradient of worker \d+$"), re.compile(r"(.+) for worker \d+$"))
_UNCHANGED = frozenset({"Identity", "Cast"})  # their result is still the variable's value
_HOPS = 4


@dataclass(slots=True, eq=False)
class Event:
    """An operation, or a transfer. Microseconds on the first trace's clock."""

    session: str  # the worker of the session
    kind: WorkKind
    name: str
    device: str  # of an operation, or the destination of a transfer
    ready: int
    start: int
    end: int
    type: str = ""  # of an operation
    source: str = ""  # of a transfer
    size_bytes: int = 0  # of a transfer
    causes: list["Event"] = field(
        default_factory=list
    )  # the events that it waited for, as far as they are in the session's trace
    partner: "Event | None" = None  # of a dequeue: its enqueue; of an exchange: the last part that another session began
    variable: str | None = None  # the variable that a transfer or queue brings; None: not known

    @property
    def task(self) -> str:
        return get_task(self.device)

    @property
    def location(self) -> str:
        """Return the task; of a transfer, the link."""
        return f"{get_task(self.source)}>{self.task}" if self.source else self.task


@dataclass(frozen=True)
class WorkerStep:
    """One worker's step. Microseconds on the first trace's clock."""

    task: str
    begin: int
    called: int
    end: int
    cpu: int | None  # CPU time of its process in microseconds; None: not known


@dataclass(frozen=True)
class ClusterStep:
    """One step of all workers whose clocks are known."""

    workers: Sequence[WorkerStep]
    events: Sequence[Event]
    blind: frozenset[str]  # sessions with events on an unknown clock

    @property
    def begin(self) -> int:
        return min(worker.begin for worker in self.workers)

    @property
    def last(self) -> WorkerStep:
        """Return the worker that ends last, with its step."""
        return max(self.workers, key=lambda worker: worker.end)


def make_cluster_step(traces: Sequence[TaskTrace], number: int, clocks: Clocks) -> ClusterStep:
    sessions = [_Session(trace, number, clocks) for trace in traces if clocks.reads(trace.task)]
    for session in sessions:
        session.link()
    _link_queues(sessions)
    _link_exchanges(sessions)
    return ClusterStep(
        [session.step for session in sessions],
        [event for session in sessions for event in session.events],
        frozenset(session.step.task for session in sessions if session.blind),
    )


class _Session:
    """The events that one worker's session ran in a step."""

    def __init__(self, trace: TaskTrace, number: int, clocks: Clocks) -> None:
        step, ahead = trace.steps[number], clocks.ahead_us
        own = ahead[trace.task]
        self.step = WorkerStep(trace.task, step.begin_us - own, step.called_us - own, step.end_us - own, step.cpu_us)
        self.queues = trace.queues
        self.blind = False
        self.ran: list[tuple[Operation, Event]] = []
        self._transfers: list[Event] = []
        self._by_location: dict[tuple[str, str], Event] = {}
        self._by_name: dict[str, tuple[Operation, Event]] = {}
        self._arrived: dict[tuple[str, str], Event] = {}
        described = [
            (operation, ahead.get(get_task(operation.device)), classify_operation(operation)) for operation in trace.operations
        ]
        for ran in step.ran:
            operation, by, kind = described[ran.operation]
            if by is None:
                self.blind = True
                continue
            start = ran.start_us - by
            event = Event(trace.task, kind, operation.name, operation.device, ran.ready_us - by, start,
                          max(start, ran.end_us - by), operation.type)  # fmt: skip
            self.ran.append((operation, event))
            self._by_location[operation.device, operation.name] = event
            self._by_name[operation.name] = operation, event
        for received in step.received:
            tensor = trace.tensors[received.tensor]
            by = ahead.get(get_task(tensor.destination))
            if by is None:
                self.blind = True
                continue
            end = received.end_us - by
            start = min(received.start_us - by, end)
            event = Event(trace.task, classify_transfer(tensor.destination), tensor.name, tensor.destination, start, start, end,
                          source=tensor.source, size_bytes=tensor.size_bytes)  # fmt: skip
            self._transfers.append(event)
            self._arrived[tensor.destination, tensor.name] = event

    @property
    def events(self) -> list[Event]:
        return [*(event for _, event in self.ran), *self._transfers]

    def link(self) -> None:
        """Find the events that each event waited for within the session, when transfers began, and their variables."""
        for transfer in self._transfers:
            if sent := self._by_location.get((transfer.source, transfer.name)):
                transfer.causes = [sent]
                transfer.ready = transfer.start = min(sent.end, transfer.end)
            transfer.variable = self._find_variable(transfer)
        for operation, event in self.ran:
            for name in operation.inputs:
                if cause := self._input(event.device, name):
                    event.causes.append(cause)
                    if cause.source and cause.variable is None:
                        cause.variable = self._find_gradient_variable(operation)

    def _input(self, device: str, name: str) -> Event | None:
        if found := self._by_location.get((device, name)):
            return found
        name = _RECEIVED.sub("", name)
        if found := self._arrived.get((device, name)):
            return found
        return self._by_name[name][1] if name in self._by_name else None

    def _find_variable(self, transfer: Event) -> str | None:
        """Return the name of the variable of which a transfer has the value."""
        name = transfer.name
        for _ in range(_HOPS):
            if name not in self._by_name:
                return None
            operation, _ = self._by_name[name]
            if operation.type == "ReadVariableOp" and operation.inputs:
                return operation.inputs[0]
            if operation.type == "QueueDequeueV2" and operation.inputs:
                return self._find_queue_variable(operation.inputs[0])
            if operation.type not in _UNCHANGED or not operation.inputs:
                return None
            name = operation.inputs[0]
        return None

    def _find_gradient_variable(self, operation: Operation) -> str | None:
        """Return the variable of the gradient that this operation takes."""
        if not operation.inputs:
            return None
        if operation.type == "QueueEnqueueV2":
            return self._find_queue_variable(operation.inputs[0])
        return operation.inputs[0] if "Apply" in operation.type else None

    def _find_queue_variable(self, name: str) -> str | None:
        shared = self.queues.get(name, "")
        return next((found[1] for pattern in _QUEUES if (found := pattern.match(shared))), None)


def _link_queues(sessions: Sequence[_Session]) -> None:
    """Link each element taken out of a queue with the operation that put it there; of several, with the last."""
    puts: dict[tuple[str, str], list[Event]] = {}
    for session in sessions:
        for queue, event in _iterate_queue_events(session, "QueueEnqueueV2"):
            puts.setdefault(queue, []).append(event)
    for of_queue in puts.values():
        of_queue.sort(key=lambda put: put.end)
    ends = {queue: [put.end for put in of_queue] for queue, of_queue in puts.items()}
    for session in sessions:
        for queue, event in _iterate_queue_events(session, "QueueDequeueV2"):
            if queue in puts:
                event.partner = puts[queue][max(0, bisect.bisect_right(ends[queue], event.end) - 1)]


def _iterate_queue_events(session: _Session, type_: str) -> Iterator[tuple[tuple[str, str], Event]]:
    for operation, event in session.ran:
        if operation.type == type_ and operation.inputs and (shared := session.queues.get(operation.inputs[0])):
            yield (event.task, shared), event


def _link_exchanges(sessions: Sequence[_Session]) -> None:
    last: dict[str, dict[str, Event]] = {}  # exchange -> session -> its part
    for session in sessions:
        for operation, event in session.ran:
            if operation.type.startswith("CollectiveReduce"):
                last.setdefault(operation.name, {})[event.session] = event
    for parts in last.values():
        latest = sorted(parts.values(), key=lambda part: part.start)[-2:]
        for part in parts.values():
            part.partner = next((other for other in reversed(latest) if other is not part), None)
