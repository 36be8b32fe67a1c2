"""The interface between a task and its training engine, and the result of a training."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score, StepGraph
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.node.files import replacing
from pytest_dtfperf.stamps import Stamps
from pytest_dtfperf.traces import TaskTrace


class Training(Protocol):
    """One worker's part of a training. Made with its `TaskOrder`; its methods are called in the order of this page."""

    def serve(self) -> None:
        """Bind the task's port, if others talk to it."""

    def build(self) -> None:
        """Make the graph or the functions. No other task need be there yet."""

    def initialise(self) -> None:
        """Give all variables their first values. Returns once every worker has what it needs for its first step."""

    def step(self) -> float:
        """Train one step, and return its loss: cross-entropy, the mean over this worker's towers. The warm-up's steps first."""

    def barrier(self, name: str) -> None:
        """Return in no worker before all have called it. "start" is before the measured steps, "end" after them."""

    def evaluate(self) -> Score:
        """Evaluate on the test set. The chief does, if the spec asks for it; the others wait."""

    def broadcast(self, value: bool) -> bool:
        """The chief's word, for all. Called by every worker when the chief has looked at the test set, to go on together."""

    def save(self, path: Path) -> None:
        """Write the trained variables by name, whole or not at all. Raises `InvalidMeasurement` if copies of one differ."""

    def stamps(self, step_s: Sequence[float]) -> Sequence[Stamps]:
        """When what was there in the last steps, which took so long, in each worker that this one's session computes on. Empty
        where that is not known. Called when all steps are measured.
        """

    def trace(self, patience_s: float, after_each: Callable[[], None]) -> TaskTrace | None:
        """Train `traced_steps` more steps, and return their trace; None where it cannot be recorded. Called by every
        worker, the last before `shut_down`. Raises what TensorFlow raises, and where a step takes longer than `patience_s`:
        then there is no trace, and the training is as it was.
        """

    def shut_down(self) -> None:
        """Leave the training: once it has returned, no other worker needs this one. Called last, by every worker."""

    @property
    def devices(self) -> Sequence[str]:
        """Where the gradients are computed, known after the first step."""

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        """Bytes of trained variables on each device."""

    @property
    def computed(self) -> StepGraph | None:
        """What a step computes; None for a worker with devices that the chief computes on. Takes a tenth of a second."""


def save(
    session: tf.compat.v1.Session, variables: Mapping[str, Sequence[tf.Tensor]], path: Path, sent_as: tf.DType = tf.float32
) -> None:
    """Write what a session holds, as `write` does."""
    write(session.run({name: list(copies) for name, copies in variables.items()}), path, sent_as)


def write(variables: Mapping[str, Sequence[Any]], path: Path, sent_as: tf.DType = tf.float32) -> None:
    """Write variables by name, whole or not at all. `sent_as` is what copies may have been sent in: of these, the first is it.

    Raises `InvalidMeasurement` if copies of one differ.
    """
    values: dict[str, Any] = {}
    for name, copies in variables.items():
        first, *others = (copy.astype(sent_as.as_numpy_dtype, copy=False) for copy in copies)
        if any(not np.array_equal(first, other) for other in others):
            raise InvalidMeasurement(
                f"the copies of variable {name} have drifted apart: its devices trained different networks"
            )
        values[name] = copies[0]
    with replacing(path) as file:
        np.savez(file, **values)


def bytes_by_device(variables: Mapping[str, Sequence[tf.Variable]]) -> dict[str, int]:
    """Return the bytes of trained variables on each device."""
    totals: dict[str, int] = {}
    for variable in (copy for copies in variables.values() for copy in copies):
        totals[variable.device] = totals.get(variable.device, 0) + variable.shape.num_elements() * variable.dtype.size
    return totals
