"""A copy of all variables on each tower."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.optimizers import Update, apply_all

v1 = tf.compat.v1


class Copies:
    """What modes have in common whose towers have their own variables. How gradients become updates is for each to say."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._spec = order.spec
        self._devices = devices
        self._copies: dict[str, list[tf.Variable]] = {}

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return self._copies

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """On the tower itself. The first value follows from the name, so all copies start equal, in all workers."""
        with v1.device(self._devices.towers[tower]), v1.name_scope(None):
            collections = [v1.GraphKeys.LOCAL_VARIABLES]
            copy = v1.Variable(initial, name=f"copy{tower}/{name}", use_resource=True, collections=collections)
            self._copies.setdefault(name, []).append(copy)
            return copy.read_value()

    def begin(self) -> tf.Operation:
        return tf.no_op()

    def _apply(self, gradients: Mapping[str, Sequence[tf.Tensor]]) -> list[tf.Operation]:
        """A gradient for each copy."""
        updates = [
            Update(name, copy, [gradient])
            for name, copies in self._copies.items()
            for copy, gradient in zip(copies, gradients[name], strict=True)
        ]
        return apply_all(self._spec, updates)
