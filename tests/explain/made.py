"""Traces made by hand, and recorded traces of real trainings."""

import dataclasses
import gzip
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from pytest_dtfperf.traces import Operation, OperationRun, TaskTrace, Tensor, TensorArrival, TracedStep

REAL = Path(__file__).parent / "real"
MODES = sorted(path.name for path in REAL.iterdir())
PROFILED = sorted(path.name for path in REAL.with_name("profiled").iterdir())


@cache
def load_real_traces(mode: str) -> list[TaskTrace]:
    """Return three steps of mnist at batch 16 on this project's own machine, each task with a thread of two shared cores."""
    return _load_traces(REAL / mode)


@cache
def load_linked_traces(how: str) -> list[TaskTrace]:
    """Return likewise steps at batch 64, each task in its own network namespace; in "slow" worker:1's link has 500 Mbit/s both
    ways."""
    return _load_traces(REAL.with_name("links") / how)


@cache
def load_profiled_traces(mode: str) -> list[TaskTrace]:
    """Return four steps of mnist at batch 32 under TensorFlow's profiler on the same machine."""
    return _load_traces(REAL.with_name("profiled") / mode)


def _load_traces(folder: Path) -> list[TaskTrace]:
    return [TaskTrace.from_json(json.loads(gzip.decompress(path.read_bytes()))) for path in sorted(folder.iterdir())]


class Session:
    """Record a worker's session, event by event. All steps are equal, one after the other."""

    def __init__(self, worker: str, *, begin: int, called: int, end: int) -> None:
        self.worker = worker
        self._times = begin, called, end
        self._operations: list[Operation] = []
        self._tensors: list[Tensor] = []
        self._ran: list[OperationRun] = []
        self._received: list[TensorArrival] = []
        self._queues: dict[str, str] = {}

    def run(
        self, name: str, start: int, end: int, *inputs: str, on: str = "", kind: str = "MatMul", ready: int | None = None
    ) -> str:
        """Add an operation, and return its name."""
        self._operations.append(Operation(name, kind, f"{on or self.worker}/CPU:0", inputs))
        self._ran.append(OperationRun(len(self._ran), start if ready is None else ready, start, end))
        return name

    def receive(self, name: str, end: int, source: str, destination: str, size: int = 1000) -> str:
        """Add the arrival of the output of `name`, and return the input's name there. TensorFlow's start of it has no
        meaning."""
        self._tensors.append(Tensor(name, f"{source}/CPU:0", f"{destination}/CPU:0", size))
        self._received.append(TensorArrival(len(self._received), end - 1, end))
        return f"{name}_S{len(self._received)}"

    def queue(self, name: str, shared: str) -> str:
        self._queues[name] = shared
        return name

    def trace(self, steps: int = 2) -> TaskTrace:
        begin, called, end = self._times
        step = TracedStep(begin, called, end, (end - begin) // 2, self._ran, self._received)
        trace = TaskTrace(self.worker, self._operations, self._tensors, [step], self._queues)
        each = [delay_trace(trace, number * (end - begin)).steps[0] for number in range(steps)]
        return dataclasses.replace(trace, steps=each)


@dataclasses.dataclass(frozen=True)
class Times:
    """Hold the durations of the parts of one worker's step."""

    python: int = 5
    host: int = 10
    receive: int = 100
    forward: int = 50
    backward: int = 90
    send: int = 80


def make_training(workers: Sequence[Times], *, apply: int = 30, token: int = 7, done: int = 3) -> list[TaskTrace]:
    """Make traces of synchronous steps on one parameter server: values go down, and gradients go up into queues. The chief's
    session applies them when all are there, and a token ends the steps of the other workers."""
    arrived = [t.python + t.host + t.receive + t.forward + t.backward + t.send for t in workers]
    applied = max(arrived) + apply
    end = applied + token + done
    traces = []
    for number, times in enumerate(workers):
        me = f"worker:{number}"
        session = Session(me, begin=0, called=times.python, end=end)
        at = times.python + times.host
        read = session.run("tower0/read", at - 1, at, "weights", on="ps:0", kind="ReadVariableOp")
        at += times.receive
        value = session.receive(read, at, "ps:0", me, size=4000)
        forward = session.run("tower0/forward", at, at + times.forward, value)
        at += times.forward
        backward = session.run("tower0/gradients/backward", at, at + times.backward, forward)
        at += times.backward + times.send
        gradient = session.receive(backward, at, me, "ps:0", size=4000)
        queue = session.queue("queue", f"weights/gradient of worker {number}")
        session.run("push", at, at, queue, gradient, on="ps:0", kind="QueueEnqueueV2")
        if number == 0:
            taken = []
            for other, there in enumerate(arrived):
                own = session.queue(f"queue{other}", f"weights/gradient of worker {other}")
                asked = times.python + times.host
                taken.append(session.run(f"take{other}", asked, max(asked, there), own, on="ps:0", kind="QueueDequeueV2"))
            update = session.run("update", max(arrived), applied, *taken, on="ps:0", kind="ResourceApplyGradientDescent")
            for other in range(1, len(workers)):
                step = session.queue(f"step{other}", f"step of worker {other}")
                session.run(f"tell{other}", applied, applied + token, step, update, on="ps:0", kind="QueueEnqueueV2")
            if len(workers) == 1:
                session.run("end", applied, applied + token, update, on="ps:0", kind="NoOp")
        else:
            step = session.queue("step", f"step of worker {number}")
            session.run("get_token", times.python + times.host, applied + token, step, on="ps:0", kind="QueueDequeueV2")
        traces.append(session.trace())
    return traces


def shift_clocks(trace: TaskTrace, ahead: Mapping[str, int]) -> TaskTrace:
    """Return the trace as if the clocks of these tasks were so many microseconds ahead."""
    own = ahead.get(trace.task, 0)
    by_operation = [ahead.get(each.device.partition("/")[0], 0) for each in trace.operations]
    by_tensor = [ahead.get(each.destination.partition("/")[0], 0) for each in trace.tensors]
    steps = [
        TracedStep(
            step.begin_us + own,
            step.called_us + own,
            step.end_us + own,
            step.cpu_us,
            [OperationRun(r.operation, *(time + by_operation[r.operation] for time in r[1:])) for r in step.ran],
            [TensorArrival(r.tensor, *(time + by_tensor[r.tensor] for time in r[1:])) for r in step.received],
        )
        for step in trace.steps
    ]
    return dataclasses.replace(trace, steps=steps)


def delay_trace(trace: TaskTrace, us: int) -> TaskTrace:
    """Return the trace as if it was recorded so many microseconds later."""
    devices = [o.device for o in trace.operations] + [t.destination for t in trace.tensors]
    return shift_clocks(trace, {trace.task: us, **{device.partition("/")[0]: us for device in devices}})


def rename_tasks(trace: TaskTrace, names: Mapping[str, str]) -> TaskTrace:
    """Return the trace with other names of tasks."""

    def rename_device(old: str) -> str:
        task, slash, rest = old.partition("/")
        return f"{names.get(task, task)}{slash}{rest}"

    return dataclasses.replace(
        trace,
        task=names.get(trace.task, trace.task),
        operations=[each._replace(device=rename_device(each.device)) for each in trace.operations],
        tensors=[
            each._replace(source=rename_device(each.source), destination=rename_device(each.destination))
            for each in trace.tensors
        ],
    )
