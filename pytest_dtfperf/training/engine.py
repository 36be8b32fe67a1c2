"""Define the interface between a task and its training engine, and write the variables of a training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score, StepGraph
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.traces import StepTimestamps, TaskTrace


class Training(Protocol):
    """One worker's part of a training, made with its `TaskOrder`. Methods are called in the order in which they are defined."""

    def serve(self) -> None:
        """Bind the task's port, if other tasks connect to it."""

    def build(self) -> None:
        """Make the graph or the functions. Other tasks need not have started yet."""

    def initialise(self) -> None:
        """Give all variables their first values, and return once every worker can make its first step."""

    def step(self) -> float:
        """Train one step, and return its loss: the cross-entropy, as the mean over this worker's towers.

        Warm-up steps come first.
        """

    def barrier(self, name: str) -> None:
        """Block until all workers have called this. "start" is before the measured steps, "end" after them."""

    def evaluate(self) -> Score:
        """Return the score on the test set. Only the chief calls this, if the spec asks for it; the other workers wait."""

    def broadcast(self, value: bool) -> bool:
        """Return the chief's value in all workers. Every worker calls this after each evaluation, to go on or stop together."""

    def save(self, path: Path) -> None:
        """Write the trained variables by name, atomically. Raise `InvalidMeasurement` if copies of one variable differ."""

    def timestamps(self, step_s: Sequence[float]) -> Sequence[StepTimestamps]:
        """Return the timestamps of the last steps, for each worker that this one's session computes on.

        Called when all steps are measured. `step_s` are the durations of these steps. The result is empty where they are not
        known.
        """

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace | None:
        """Train `traced_steps` more steps, and return their trace; None where it cannot be recorded.

        Every worker calls this, last before `shut_down`. Raises TensorFlow's errors, also where a step takes longer than
        `patience_s`: then there is no trace, and the training is unchanged.
        """

    def shut_down(self) -> None:
        """Leave the training: once this has returned, no other worker needs this one. Every worker calls it last."""

    @property
    def devices(self) -> Sequence[str]:
        """Return the devices on which gradients are computed, known after the first step."""

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        """Return the bytes of trained variables by device."""

    @property
    def step_graph(self) -> StepGraph | None:
        """Return the computation of a step; None for a worker with devices that the chief computes on. Takes about 0.1 s."""


_AT_SHUTDOWN: list[Callable[[], object]] = []


def add_shutdown_callback(callback: Callable[[], object]) -> None:
    """Have `callback` called when no other task needs this one any more, and before its process ends without cleanup."""
    _AT_SHUTDOWN.append(callback)


def run_at_shutdown() -> None:
    """Call all registered callbacks, the last one first."""
    while _AT_SHUTDOWN:
        _AT_SHUTDOWN.pop()()


def save_variables(
    session: tf.compat.v1.Session, variables: Mapping[str, Sequence[tf.Tensor]], path: Path, sent_as: tf.DType = tf.float32
) -> None:
    """Write the values of variables in a session, as `write_variables` does."""
    write_variables(session.run({name: list(copies) for name, copies in variables.items()}), path, sent_as)


def write_variables(variables: Mapping[str, Sequence[Any]], path: Path, sent_as: tf.DType = tf.float32) -> None:
    """Write the values of variables by name, atomically.

    `sent_as` is the type in which copies may have been sent: then they need only agree in it, and the first one is written.
    Raises `InvalidMeasurement` if copies of one variable differ.
    """
    values: dict[str, Any] = {}
    for name, copies in variables.items():
        first, *others = (copy.astype(sent_as.as_numpy_dtype, copy=False) for copy in copies)
        if any(not np.array_equal(first, other) for other in others):
            raise InvalidMeasurement(
                f"the copies of variable {name} have drifted apart: its devices trained different networks"
            )
        values[name] = copies[0]
    with replace_file(path) as file:
        np.savez(file, **values)


def bytes_by_device(variables: Mapping[str, Sequence[tf.Variable]]) -> dict[str, int]:
    """Return the bytes of trained variables on each device."""
    totals: dict[str, int] = {}
    for variable in (copy for copies in variables.values() for copy in copies):
        totals[variable.device] = totals.get(variable.device, 0) + variable.shape.num_elements() * variable.dtype.size
    return totals
