"""One process, a copy of all variables on each of its devices."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import optimizers
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.base import mean_of

v1 = tf.compat.v1


class Replicated:
    """Gradients are averaged over the devices, and the same update is applied to each copy, so that all stay equal."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._spec = order.spec
        self._towers = devices.towers
        self._copies: dict[str, list[tf.Variable]] = {}

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return self._copies

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """On the tower itself. The first value follows from the name, so all copies start equal."""
        with v1.device(self._towers[tower]), v1.name_scope(None):
            copy = v1.Variable(initial, name=f"copy{tower}/{name}", use_resource=True)
            self._copies.setdefault(name, []).append(copy)
            return copy.read_value()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        applied = []
        for number, (name, copies) in enumerate(self._copies.items()):
            with v1.device(self._towers[number % len(self._towers)]):  # in turn, so that none has all the adding to do
                mean = mean_of([tower[name] for tower in gradients])
            applied += [optimizers.apply(self._spec.optimizer, copy, mean, self._spec.learning_rate) for copy in copies]
        return [tf.group(*applied)]

    def meet(self, place: str) -> tf.Operation:
        """One process is always together."""
        return tf.no_op()
