"""One session computes on the devices of all workers, and adds their gradients as `all_reduce_spec` says."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.all_reduce import parse
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.all_reduce.reduction import Reduction
from pytest_dtfperf.training.variable_update.base import one_per_device
from pytest_dtfperf.training.variable_update.copies import Copies


class DistributedAllReduce(Copies):
    """The chief's graph has a tower on every device there is; the other workers lend theirs. Every tower has all variables."""

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._reduce = Reduction(order, devices, parse(order.spec.all_reduce_spec or "xring"))

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        means = {name: self._reduce([tower[name] for tower in gradients]) for name in self._copies}
        return one_per_device(self._apply(means))
