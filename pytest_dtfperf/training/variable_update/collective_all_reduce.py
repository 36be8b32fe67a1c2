"""No parameter servers: every device has all variables, and workers add their gradients in a ring."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.all_reduce import parse
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.optimizers import mean_of
from pytest_dtfperf.training.variable_update.all_reduce.collective import Collective
from pytest_dtfperf.training.variable_update.base import one_per_device
from pytest_dtfperf.training.variable_update.copies import Copies
from pytest_dtfperf.training.variable_update.wire import Wire, widened

v1 = tf.compat.v1


class CollectiveAllReduce(Copies):
    """Each worker has a graph of its own, and TensorFlow's collectives join them: all devices apply the same mean.

    A worker's first device adds for all of its devices, and is its place in the ring: what crosses the wire is as much as if
    there were no others.

    In bf16, TensorFlow's ring adds what it sends: the sum so far is rounded wherever it passes.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        (range_,) = parse(order.spec.all_reduce_spec or "collective")
        self._first = devices.towers[0]
        self._wire = Wire(order)
        self._reduce = Collective([self._first], size=order.workers, shards=range_.shards, divides=not self._wire.narrows)
        # The ring's mean counts workers. One with more devices than others must weigh more.
        self._weight = order.num_devices * order.workers / order.spec.gpus

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        means = {name: [self._mean([tower[name] for tower in gradients])] * len(gradients) for name in self._copies}
        return one_per_device(self._apply(means))

    def _mean(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        with v1.device(self._first):
            own = mean_of(gradients)
            weighed = own if self._weight == 1 else own * self._weight
            if not self._wire.narrows:
                return self._reduce([weighed])[0]
            (total,) = self._reduce([self._wire.narrow(weighed)])
            return widened(total) * (1.0 / self._order.workers)
