"""Traces made by hand, and what was traced for real."""

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
def real(mode: str) -> list[TaskTrace]:
    """Three steps of mnist at batch 16 on this project's own machine, each task with a thread of two shared cores."""
    return _stored(REAL / mode)


@cache
def linked(how: str) -> list[TaskTrace]:
    """Likewise at batch 64, each task in a network namespace of its own; "slow": worker:1's has 500 Mbit/s both ways."""
    return _stored(REAL.with_name("links") / how)


@cache
def profiled(mode: str) -> list[TaskTrace]:
    """Four steps of mnist at batch 32 under TensorFlow's profiler, likewise."""
    return _stored(REAL.with_name("profiled") / mode)


def _stored(folder: Path) -> list[TaskTrace]:
    return [TaskTrace.from_json(json.loads(gzip.decompress(path.read_bytes()))) for path in sorted(folder.iterdir())]


class Session:
    """A worker's session, event by event. All steps are alike, one after the other."""

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
        """An operation; returns its name, for those that need it."""
        self._operations.append(Operation(name, kind, f"{on or self.worker}/CPU:0", inputs))
        self._ran.append(OperationRun(len(self._ran), start if ready is None else ready, start, end))
        return name

    def receive(self, name: str, end: int, source: str, destination: str, size: int = 1000) -> str:
        """What `name` has made arrives; returns the input's name there. TensorFlow's idea of its start is worth nothing."""
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
        each = [later(trace, number * (end - begin)).steps[0] for number in range(steps)]
        return dataclasses.replace(trace, steps=each)


@dataclasses.dataclass(frozen=True)
class Times:
    """How long the parts of one worker's step take."""

    python: int = 5
    host: int = 10
    receive: int = 100
    forward: int = 50
    backward: int = 90
    send: int = 80


def parameter_server(workers: Sequence[Times], *, apply: int = 30, token: int = 7, done: int = 3) -> list[TaskTrace]:
    """Synchronous steps on one parameter server: values down, gradients up into queues, the chief's session applies them when
    all are there, and a token ends the step of everybody else.
    """
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
            session.run("told", times.python + times.host, applied + token, step, on="ps:0", kind="QueueDequeueV2")
        traces.append(session.trace())
    return traces


def shifted(trace: TaskTrace, ahead: Mapping[str, int]) -> TaskTrace:
    """The same, had these tasks' clocks been so far ahead."""
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


def later(trace: TaskTrace, us: int) -> TaskTrace:
    """The same at another time."""
    devices = [o.device for o in trace.operations] + [t.destination for t in trace.tensors]
    return shifted(trace, {trace.task: us, **{device.partition("/")[0]: us for device in devices}})


def relabelled(trace: TaskTrace, names: Mapping[str, str]) -> TaskTrace:
    """The same, had these tasks other names."""

    def device(old: str) -> str:
        task, slash, rest = old.partition("/")
        return f"{names.get(task, task)}{slash}{rest}"

    return dataclasses.replace(
        trace,
        task=names.get(trace.task, trace.task),
        operations=[each._replace(device=device(each.device)) for each in trace.operations],
        tensors=[each._replace(source=device(each.source), destination=device(each.destination)) for each in trace.tensors],
    )
