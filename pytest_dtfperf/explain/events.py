"""All that happened in one step of the cluster, on one clock, each event with what it had to wait for."""

import bisect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pytest_dtfperf.explain.clocks import Clocks
from pytest_dtfperf.explain.kinds import kind_of, kind_of_transfer, task_of
from pytest_dtfperf.traces import Operation, TaskTrace

_RECEIVED = re.compile(r"(_S|/_)\d+$")  # from another task's device; from another device of the same process
# A queue's name tells the variable whose gradients or values go through it (variable_update/).
_QUEUES = (re.compile(r"(.+)/gradient of worker \d+$"), re.compile(r"(.+) for worker \d+$"))
_UNCHANGED = frozenset({"Identity", "Cast"})  # what they give is still the variable's value
_HOPS = 4


@dataclass(slots=True, eq=False)
class Event:
    """An operation, or a transfer. Microseconds on the first trace's clock."""

    session: str  # whose
    kind: str
    name: str
    device: str  # where; of a transfer, where to
    ready: int
    start: int
    end: int
    type: str = ""  # of an operation
    source: str = ""  # of a transfer
    size_bytes: int = 0  # of a transfer
    causes: list["Event"] = field(default_factory=list)  # what had to end before, as far as the session's trace tells
    partner: "Event | None" = None  # of a dequeue what was put there; of an exchange the last part that another session began
    variable: str | None = None  # that is brought here or there; None: not known

    @property
    def task(self) -> str:
        return task_of(self.device)

    @property
    def location(self) -> str:
        """A task; of a transfer, the link."""
        return f"{task_of(self.source)}>{self.task}" if self.source else self.task


@dataclass(frozen=True)
class WorkerStep:
    """One worker's step. Microseconds on the first trace's clock."""

    task: str
    begin: int
    called: int
    end: int
    cpu: int | None  # used by its process; None: not known


@dataclass(frozen=True)
class ClusterStep:
    """One step of all workers whose clocks are known."""

    workers: Sequence[WorkerStep]
    events: Sequence[Event]
    blind: frozenset[str]  # sessions in which something happened by a clock that is not known

    @property
    def begin(self) -> int:
        return min(worker.begin for worker in self.workers)

    @property
    def last(self) -> WorkerStep:
        """Whose end is the step's."""
        return max(self.workers, key=lambda worker: worker.end)


def cluster_step(traces: Sequence[TaskTrace], number: int, clocks: Clocks) -> ClusterStep:
    """Step `number` of all traces."""
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
    """What one worker's session ran."""

    def __init__(self, trace: TaskTrace, number: int, clocks: Clocks) -> None:
        of, ahead = trace.steps[number], clocks.ahead_us
        own = ahead[trace.task]
        self.step = WorkerStep(trace.task, of.begin_us - own, of.called_us - own, of.end_us - own, of.cpu_us)
        self.queues = trace.queues
        self.blind = False
        self.ran: list[tuple[Operation, Event]] = []
        self._transfers: list[Event] = []
        self._by_location: dict[tuple[str, str], Event] = {}
        self._by_name: dict[str, tuple[Operation, Event]] = {}
        self._arrived: dict[tuple[str, str], Event] = {}
        described = [(operation, ahead.get(task_of(operation.device)), kind_of(operation)) for operation in trace.operations]
        for ran in of.ran:
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
        for received in of.received:
            tensor = trace.tensors[received.tensor]
            by = ahead.get(task_of(tensor.destination))
            if by is None:
                self.blind = True
                continue
            end = received.end_us - by
            start = min(received.start_us - by, end)
            event = Event(trace.task, kind_of_transfer(tensor.destination), tensor.name, tensor.destination, start, start, end,
                          source=tensor.source, size_bytes=tensor.size_bytes)  # fmt: skip
            self._transfers.append(event)
            self._arrived[tensor.destination, tensor.name] = event

    @property
    def events(self) -> list[Event]:
        return [*(event for _, event in self.ran), *self._transfers]

    def link(self) -> None:
        """Find what each event had to wait for within the session, when transfers began, and what they brought."""
        for transfer in self._transfers:
            if sent := self._by_location.get((transfer.source, transfer.name)):
                transfer.causes = [sent]
                transfer.ready = transfer.start = min(sent.end, transfer.end)
            transfer.variable = self._fetched(transfer)
        for operation, event in self.ran:
            for name in operation.inputs:
                if cause := self._input(event.device, name):
                    event.causes.append(cause)
                    if cause.source and cause.variable is None:
                        cause.variable = self._brought_for(operation)

    def _input(self, device: str, name: str) -> Event | None:
        if found := self._by_location.get((device, name)):
            return found
        name = _RECEIVED.sub("", name)
        if found := self._arrived.get((device, name)):
            return found
        return self._by_name[name][1] if name in self._by_name else None

    def _fetched(self, transfer: Event) -> str | None:
        """The variable whose value it is."""
        name = transfer.name
        for _ in range(_HOPS):
            if name not in self._by_name:
                return None
            operation, _ = self._by_name[name]
            if operation.type == "ReadVariableOp" and operation.inputs:
                return operation.inputs[0]
            if operation.type == "QueueDequeueV2" and operation.inputs:
                return self._of_queue(operation.inputs[0])
            if operation.type not in _UNCHANGED or not operation.inputs:
                return None
            name = operation.inputs[0]
        return None

    def _brought_for(self, operation: Operation) -> str | None:
        """The variable whose gradient this operation takes."""
        if not operation.inputs:
            return None
        if operation.type == "QueueEnqueueV2":
            return self._of_queue(operation.inputs[0])
        return operation.inputs[0] if "Apply" in operation.type else None

    def _of_queue(self, name: str) -> str | None:
        shared = self.queues.get(name, "")
        return next((found[1] for pattern in _QUEUES if (found := pattern.match(shared))), None)


def _link_queues(sessions: Sequence[_Session]) -> None:
    """What is taken out of a queue has been put there before, mostly by another session: the last that was, if several were."""
    puts: dict[tuple[str, str], list[Event]] = {}
    for session in sessions:
        for queue, event in _at_queues(session, "QueueEnqueueV2"):
            puts.setdefault(queue, []).append(event)
    for of_queue in puts.values():
        of_queue.sort(key=lambda put: put.end)
    ends = {queue: [put.end for put in of_queue] for queue, of_queue in puts.items()}
    for session in sessions:
        for queue, event in _at_queues(session, "QueueDequeueV2"):
            if queue in puts:
                event.partner = puts[queue][max(0, bisect.bisect_right(ends[queue], event.end) - 1)]


def _at_queues(session: _Session, type_: str) -> Iterator[tuple[tuple[str, str], Event]]:
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
