"""mirrored: `tf.distribute.MirroredStrategy`, one process, a copy of all variables on each of its devices."""

import tensorflow as tf

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.all_reduce import parse
from pytest_dtfperf.training.devices import devices_of
from pytest_dtfperf.training.strategies.base import MirroredTraining


class Mirrored(MirroredTraining):
    """The mean of the gradients is applied to each copy, so that all stay equal."""

    def build(self) -> None:
        self._make(tf.distribute.MirroredStrategy(devices_of(self._order).towers, cross_device_ops(self._order.spec)))

    def initialise(self) -> None:
        """Done when the variables were made: nobody else needs them."""

    def barrier(self, name: str) -> None:
        """There is nobody else."""

    def broadcast(self, value: bool) -> bool:
        return value

    def shut_down(self) -> None:
        """There is nobody else."""


def cross_device_ops(spec: Spec) -> tf.distribute.CrossDeviceOps | None:
    """How gradients are added. None: as TensorFlow chooses, NCCL on GPUs, and on the first of several CPUs.

    tf_cnn_benchmarks' words: nccl; pscpu, on the CPU; psgpu, on the first device; hierarchical_copy, as in a DGX-1.
    """
    if spec.hierarchical_copy:
        return tf.distribute.HierarchicalCopyAllReduce()
    if spec.all_reduce_spec is None:
        return None
    (asked,) = parse(spec.all_reduce_spec)
    if asked.algorithm == "nccl":
        return tf.distribute.NcclAllReduce(num_packs=asked.shards)
    return tf.distribute.ReductionToOneDevice("/device:CPU:0" if asked.algorithm == "pscpu" else None)
