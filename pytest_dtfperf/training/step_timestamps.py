"""Record two timestamps in every step's graph, and Python's own around the step: when variables and gradients were there.

A Timestamp operation has no inputs, and runs once the operations before it have run: nothing of the step waits for it, and
nothing that is computed takes its value. It is stateful, so that TensorFlow neither folds it nor merges two of them.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from time import perf_counter, process_time, time

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.traces import StepTimestamps
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.models.tensors import parts_in
from pytest_dtfperf.training.tower import Tower
from pytest_dtfperf.training.variable_update.barrier import group_by_device

v1 = tf.compat.v1

# How much longer or shorter a step may be by the wall clock than by the monotonic clock. Else the wall clock was set, and the
# timestamps are invalid: clocks are slewed by 0.05 % at most, and read within microseconds unless the process loses its core.
_SET_S, _SET_PART = 0.001, 0.001

_FIXED = 5  # further numbers that are noted of each step

Pair = tuple[tf.Tensor | None, tf.Tensor]  # when variables and when gradients were there: seconds since 1970, float64


def add_timestamp(after: Sequence[tf.Operation], device: str) -> tf.Tensor:
    """Return the time at which all of these operations have run, on a CPU. Each other device sends one empty message."""
    with v1.device(device), v1.control_dependencies(after):
        return tf.raw_ops.Timestamp()


def add_worker_timestamps(order: TaskOrder, towers: Sequence[Tower], devices: Devices) -> Mapping[str, Pair]:
    """Return the timestamps of each worker that this task's session computes on; all are on this task's clock.

    Where XLA makes one operation of all that it finds, the values of variables are only known to be there when that is over,
    and there is no timestamp for them.
    """
    found: dict[str, Pair] = {}
    for host, of_host in groupby(zip(devices.hosts, towers, strict=True), key=lambda pair: pair[0]):
        theirs = [tower for _, tower in of_host]
        values = [value for tower in theirs for value in tower.values]
        computed = [tensor for tower in theirs for tensor in tower.computed]
        there = None if order.spec.xla else add_timestamp(_join_tensors(values, host, devices.host), devices.host)
        task = tf.DeviceSpec.from_string(host).task if order.cluster else order.index
        found[f"worker:{task}"] = there, add_timestamp(_join_tensors(computed, host, devices.host), devices.host)
    return found


def _join_tensors(tensors: Sequence[tf.Tensor], host: str, own: str) -> list[tf.Operation]:
    """Return one operation per device; for another worker, one in all."""
    joined = _join_by_device(tensors)
    if host == own:
        return joined
    with v1.device(host), v1.control_dependencies(joined):
        return [tf.no_op()]


def list_fetches(pairs: Mapping[str, Pair]) -> list[tf.Tensor]:
    """Return the tensors that a step fetches for these pairs."""
    return [tensor for pair in pairs.values() for tensor in pair if tensor is not None]


def add_to_function(values: Sequence[tf.Tensor], gradients: Sequence[tf.Tensor], device: str) -> tuple[Pair, Sequence[str]]:
    """Add a pair of timestamps to the function that is being traced, and return it with the names of all added operations.

    They are added last, so that no operation waits for them: TensorFlow runs stateful operations in the order in which they
    were added.
    """
    graph = v1.get_default_graph()
    before = len(graph.get_operations())
    pair = (add_timestamp(_join_by_device(values), device), add_timestamp(_join_by_device(gradients), device))
    return pair, [operation.name for operation in graph.get_operations()[before:]]


def _join_by_device(tensors: Sequence[tf.Tensor]) -> list[tf.Operation]:
    """Return one operation per device that runs when all tensors are there. Joined values count by their parts."""
    return group_by_device(list(dict.fromkeys(_find_maker(part.op) for tensor in tensors for part in parts_in(tensor))))


def _find_maker(operation: tf.Operation) -> tf.Operation:
    """Return the operation that makes a value on this device, before its copies under other names.

    These would be pruned if no operation followed them.
    """
    while operation.type == "Identity" and operation.inputs[0].op.device == operation.device:
        operation = operation.inputs[0].op
    return operation


class TimestampLog:
    """The clocks before and after every step, and its timestamps, noted with as few Python operations as possible."""

    def __init__(self, own: str, pairs: Mapping[str, Pair]) -> None:
        """Make an empty log.

        `own` is this task's name, `pairs` are by the names of all workers that its session computes on.
        """
        self._own = own
        self._have_variables = {worker: variables is not None for worker, (variables, _) in pairs.items()}
        self._width = _FIXED + len(list_fetches(pairs))
        self._noted = array("d")  # of each step the five numbers of `note`, and the fetches

    def note(self, cpu_s: float, called: float, called_s: float, timestamps: Sequence[float]) -> None:
        """Note a step: the CPU time used before it, the times of its call, and the fetched timestamps."""
        self._noted.extend((called, called_s, time(), perf_counter(), process_time() - cpu_s, *timestamps))

    def get_last_steps(self, step_s: Sequence[float]) -> list[StepTimestamps]:
        """Return the timestamps of the last steps, given their whole durations; none where fewer steps were noted."""
        width = self._width
        first = len(self._noted) - width * len(step_s)
        if first < 0 or not step_s:
            return []
        starts = range(first, len(self._noted), width)
        return list(
            self._iterate_workers(
                [_Step(whole_s, self._noted[at : at + width]) for whole_s, at in zip(step_s, starts, strict=True)]
            )
        )

    def _iterate_workers(self, steps: Sequence["_Step"]) -> Iterator[StepTimestamps]:
        columns = iter(range(_FIXED, self._width))
        for worker, has_variables in self._have_variables.items():
            there = next(columns) if has_variables else None
            done = next(columns)
            yield StepTimestamps(
                worker=worker,
                python_us=[step.python_us for step in steps],
                variables_us=[None if there is None else step.get_earliest_us(there, done) for step in steps],
                gradients_us=[step.get_earliest_us(done) for step in steps],
                end_us=[step.end_us for step in steps],
                cpu_us=[step.cpu_us if worker == self._own else None for step in steps],
            )


def convert_batches(worker: str, batches: Sequence[Sequence[float]]) -> StepTimestamps:
    """Return a worker's timestamps of the batches that a coordinator gave it: of each its begin and its pair."""
    unknown = [None] * len(batches)
    variables = [_to_us(there - begun) if begun <= there <= done else None for begun, there, done in batches]
    gradients = [_to_us(done - begun) if begun <= done else None for begun, _, done in batches]
    return StepTimestamps(
        worker=worker, python_us=unknown, variables_us=variables, gradients_us=gradients, end_us=unknown, cpu_us=unknown
    )


class _Step:
    """The numbers that were noted of one step."""

    def __init__(self, whole_s: float, noted: Sequence[float]) -> None:
        self._noted = noted
        self._called, called_s, ended, ended_s, cpu_s = noted[:_FIXED]
        session_s = ended_s - called_s
        self._is_set = abs(ended - self._called - session_s) > _SET_S + _SET_PART * session_s
        self.end_us = _to_us(session_s)
        self.python_us = _to_us(whole_s - session_s)
        self.cpu_us = _to_us(cpu_s)

    def get_earliest_us(self, *columns: int) -> int | None:
        """Return the microseconds from the call to the earliest of these timestamps; None: a clock was set."""
        return None if self._is_set else min(self.end_us, _to_us(min(self._noted[column] for column in columns) - self._called))


def _to_us(seconds: float) -> int:
    return max(0, round(1e6 * seconds))
