"""Share variables between the towers of a training: one class per mode, each with the members of `UpdateStrategy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the package has modules without TensorFlow
    import tensorflow as tf


class UpdateStrategy(Protocol):
    """The way in which the towers of all workers share their variables. One object per task, made with (order, devices).

    A tower is a replica of the network on one device. All methods build the graph; nothing runs before the session does.

    The chief initialises variables in TensorFlow's collection of global ones, and each worker its local ones.
    """

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Return all copies known to this task, by the names of trained variables."""

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return the value of a variable on a tower of this task. Called once per tower and name, in the same order."""

    def begin(self) -> tf.Operation:
        """Return the operation that every worker runs once, after the chief has initialised the shared variables."""

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        """Return the operations of a step beside the loss, which make one update of each tower's gradients.

        Once a worker's step has run, the variables it reads next include this step.
        """
