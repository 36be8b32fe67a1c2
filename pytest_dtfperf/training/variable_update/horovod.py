"""Horovod averages the gradients (https://horovod.ai): one process per device, each with its own variables.

Horovod is started by us, as every training is, and not by mpirun: see `horovod_start`.
"""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.shutdown import at_shutdown
from pytest_dtfperf.training.variable_update.copies import Copies
from pytest_dtfperf.training.variable_update.horovod_start import start

v1 = tf.compat.v1


class Horovod(Copies):
    """Every gradient is averaged by itself under its variable's name: small ones are put together by Horovod's own fusion."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._horovod = start(order)
        at_shutdown(self._horovod.shutdown)

    def begin(self) -> tf.Operation:
        """All have the chief's first values. They were equal before, but for a user's Horovod, this is where they become so."""
        return tf.group(*(self._broadcast(name, copy) for name, (copy,) in self._copies.items()))

    def _broadcast(self, name: str, copy: tf.Variable) -> tf.Operation:
        with v1.device(copy.device):
            value = self._horovod.broadcast(copy.read_value(), root_rank=0, name=_plain(f"begin/{name}"))
            return copy.assign(tf.ensure_shape(value, copy.shape), read_value=False)

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        (own,) = gradients
        return [tf.group(*self._apply({name: [self._mean(name, own[name])] for name in self._copies}))]

    def _mean(self, name: str, gradient: tf.Tensor) -> tf.Tensor:
        with v1.device(self._devices.towers[0]):
            mean = self._horovod.allreduce(gradient, op=self._horovod.Average, name=_plain(name))
            return tf.ensure_shape(mean, gradient.shape)


def _plain(name: str) -> str:
    """A name of an operation that is nobody's scope. It must be the same in all processes, which Horovod matches by it."""
    return f"horovod_{name.replace('/', '_')}"
