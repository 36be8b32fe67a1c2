"""What a variable update is: the one place where replicas of a network differ from a single one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import tensorflow as tf


class UpdateStrategy(Protocol):
    """How the towers of all workers share their variables. One object per task, made with (order, devices).

    A tower is a replica of the network on one device. Everything here builds graph; nothing runs before the session.

    Variables in TensorFlow's collection of global ones are given their first values by the chief, local ones by each worker.
    """

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Every trained variable by name, with all its copies that this task knows."""

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """The value of a variable, to compute with on a tower of this task. Called once per tower and name, in one order."""

    def begin(self) -> tf.Operation:
        """Return what every worker runs once, when the chief has given the shared variables their first values."""

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        """Return what a step runs beside the loss: one gradient per variable from each tower of this task becomes one update.

        Once a worker's step has run, the variables it reads next have seen this step.
        """


def one_per_device(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return one operation per device that waits for all there: waiting for each from afar would cost a message apiece."""
    by_device: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    groups = []
    for device, theirs in by_device.items():
        with tf.compat.v1.device(device), tf.compat.v1.control_dependencies(theirs):
            groups.append(tf.no_op())
    return groups
