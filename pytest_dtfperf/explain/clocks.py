"""How far hosts' clocks are apart, from what cannot have ended before it began.

Whatever one task has from another, it has after the other made it; what a session runs elsewhere begins after the session was
asked, and ends before it has answered; no task's part of an all-reduce ends before all have begun theirs. Each of these bounds
the difference of two clocks from one side. Together they are a system of difference constraints, made as tight as it gets by
shortest paths (Bellman 1958, Floyd 1962). Between the bounds every difference explains the trace equally well. Taken is the
mean, over all tasks as a reference, of the middles: it keeps all constraints, for they are convex, and prefers no task.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_dtfperf.explain.kinds import task_of
from pytest_dtfperf.traces import TaskTrace, TracedStep

Bounds = Mapping[tuple[str, str], int]  # (a, b) -> the most that a's clock may be ahead of b's, in us

_FAR = 2**60  # no bound
_FIRST_SLACK_US = 8  # stamps are rounded, and taken a moment after what they say


@dataclass(frozen=True)
class Clocks:
    """Tasks' clocks against that of the first trace's task. A task that nothing ties to it is in neither."""

    ahead_us: Mapping[str, int]
    error_us: Mapping[str, int]  # the truth is no farther from it than this

    def reads(self, task: str) -> bool:
        """Whether what this task's clock says can be told in the first one's time."""
        return task in self.ahead_us


def align(traces: Sequence[TaskTrace], known: Bounds | None = None) -> Clocks:
    """`known` holds what else bounds the clocks: both ways 0 for tasks of one host."""
    bounds = _bounds(traces)
    for pair, most in (known or {}).items():
        bounds[pair] = min(bounds.get(pair, _FAR), most)
    tasks = list(dict.fromkeys([*(trace.task for trace in traces), *(task for pair in bounds for task in pair)]))
    tight, slack = _tightened(tasks, bounds)
    near = [i for i in range(len(tasks)) if tight[i, 0] < _FAR // 2 and tight[0, i] < _FAR // 2]
    tight = tight[np.ix_(near, near)]
    middles = (tight - tight.T).sum(axis=1)  # 2n times what is looked for
    ahead = [int(middle - middles[0]) // (2 * len(near)) for middle in middles]
    errors = [max(int(tight[i, 0]) - x, x + int(tight[0, i])) + slack for i, x in enumerate(ahead)]
    names = [tasks[i] for i in near]
    return Clocks(dict(zip(names, ahead, strict=True)), dict(zip(names, errors, strict=True)))


def _bounds(traces: Sequence[TaskTrace]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for of_step in zip(*(trace.steps for trace in traces), strict=False):
        for trace, step in zip(traces, of_step, strict=True):
            for later, earlier, most in (*_of_session(trace, step), *_of_transfers(trace, step)):
                if later != earlier:
                    found[later, earlier] = min(found.get((later, earlier), _FAR), most)
        for later, earlier, most in _of_exchanges(traces, of_step):
            found[later, earlier] = min(found.get((later, earlier), _FAR), most)
    return found


def _of_session(trace: TaskTrace, step: TracedStep) -> Iterator[tuple[str, str, int]]:
    devices = [task_of(operation.device) for operation in trace.operations]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for ran in step.ran:
        task = devices[ran.operation]
        first[task] = min(first.get(task, ran.start_us), ran.start_us)
        last[task] = max(last.get(task, ran.end_us), ran.end_us)
    for task, began in first.items():
        yield task, trace.task, began - step.called_us
        yield trace.task, task, step.end_us - last[task]


def _of_transfers(trace: TaskTrace, step: TracedStep) -> Iterator[tuple[str, str, int]]:
    ended = {(o.device, o.name): r.end_us for r in step.ran for o in (trace.operations[r.operation],)}
    for received in step.received:
        tensor = trace.tensors[received.tensor]
        if (sent := ended.get((tensor.source, tensor.name))) is not None:
            yield task_of(tensor.destination), task_of(tensor.source), received.end_us - sent


def _of_exchanges(traces: Sequence[TaskTrace], steps: Sequence[TracedStep]) -> Iterator[tuple[str, str, int]]:
    parts: dict[str, dict[str, tuple[int, int]]] = {}
    for trace, step in zip(traces, steps, strict=True):
        for ran in step.ran:
            operation = trace.operations[ran.operation]
            if operation.type.startswith("CollectiveReduce"):
                parts.setdefault(operation.name, {})[task_of(operation.device)] = ran.start_us, ran.end_us
    for of_one in parts.values():
        for task, (_, end) in of_one.items():
            for other, (start, _) in of_one.items():
                if other != task:
                    yield task, other, end - start


def _tightened(tasks: Sequence[str], bounds: Bounds) -> tuple["np.ndarray[tuple[int, int], np.dtype[np.int64]]", int]:
    """The bounds of all pairs, and by how much all were loosened since some contradict others: a clock was set, or ran fast."""
    index = {task: i for i, task in enumerate(tasks)}
    slack = 0
    while True:
        tight = np.full((len(tasks), len(tasks)), _FAR, dtype=np.int64)
        np.fill_diagonal(tight, 0)
        for (later, earlier), most in bounds.items():
            tight[index[later], index[earlier]] = most + slack
        for through in range(len(tasks)):
            tight = np.minimum(tight, np.minimum(tight[:, through, None] + tight[None, through, :], _FAR))
        if not (np.diagonal(tight) < 0).any():
            return tight, slack
        slack = max(_FIRST_SLACK_US, 2 * slack)
