"""Train with `mirrored` and `multi_worker_mirrored`: a copy of all variables on each device of one process, or of all."""

from contextlib import suppress

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.all_reduce import parse
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.strategies.base import MirroredTraining


class SingleProcessTraining(MirroredTraining):
    """A training in one process: the mean of the gradients is applied to each copy, so that all stay equal."""

    def build(self) -> None:
        self._make(tf.distribute.MirroredStrategy(get_devices(self._order).towers, cross_device_ops(self._order.spec)))

    def initialise(self) -> None:
        """Do nothing: the variables are made, and no other process needs them."""

    def barrier(self, name: str) -> None:
        """Do nothing: there is no other process."""

    def broadcast(self, value: bool) -> bool:
        return value

    def shut_down(self) -> None:
        """Do nothing: there is no other process."""


def cross_device_ops(spec: Spec) -> tf.distribute.CrossDeviceOps | None:
    """Return how gradients are added; None: TensorFlow's default, NCCL on GPUs, and on the first of several CPUs.

    The names are tf_cnn_benchmarks': nccl; pscpu, on the CPU; psgpu, on the first device; hierarchical_copy, as in a DGX-1.
    """
    if spec.hierarchical_copy:
        return tf.distribute.HierarchicalCopyAllReduce()
    if spec.all_reduce_spec is None:
        return None
    (asked,) = parse(spec.all_reduce_spec)
    if asked.algorithm == "nccl":
        return tf.distribute.NcclAllReduce(num_packs=asked.shards)
    return tf.distribute.ReductionToOneDevice("/device:CPU:0" if asked.algorithm == "pscpu" else None)


class MultiWorkerMirrored(MirroredTraining):
    """A training in several processes: workers add their gradients, and pass barriers, by collective operations."""

    def build(self) -> None:
        """Do nothing: `initialise` makes all, because the strategy's own server must start first and waits for all workers."""

    def initialise(self) -> None:
        order = self._order
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(make_resolver(order), make_communication_options(order.spec))
        self._make(self._strategy)
        self._sum = tf.function(self._sum_over_replicas, autograph=False).get_concrete_function(tf.TensorSpec((), tf.float32))
        self.barrier("initialised")

    def barrier(self, name: str) -> None:
        self.broadcast(False)

    def broadcast(self, value: bool) -> bool:
        """Return whether the sum of all workers' values is positive: only the chief's may be True."""
        return float(self._sum(tf.constant(float(value)))) > 0

    def shut_down(self) -> None:
        """Pass two barriers.

        A worker at the second one needs no other any more, so a slow worker may find others gone there.
        """
        self.barrier("shutdown")
        with suppress(tf.errors.OpError):
            self.barrier("gone")

    def _sum_over_replicas(self, number: tf.Tensor) -> tf.Tensor:
        """Return the sum over all devices of all workers."""
        return self._strategy.reduce(tf.distribute.ReduceOp.SUM, self._strategy.run(lambda: tf.identity(number)), axis=None)


def make_resolver(order: TaskOrder) -> tf.distribute.cluster_resolver.ClusterResolver:
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({"worker": list(order.cluster["worker"])} if order.cluster else {}),
        task_type=order.job,
        task_id=order.index,
        num_accelerators={"GPU": order.num_devices} if order.device == "gpu" else {},
        rpc_layer="grpc",
    )


def make_communication_options(spec: Spec) -> tf.distribute.experimental.CommunicationOptions:
    """Return how gradients are added; by default TensorFlow's choice: NCCL on GPUs, a ring on CPUs."""
    kinds = tf.distribute.experimental.CommunicationImplementation
    implementation = kinds.AUTO
    if spec.all_reduce_spec is not None:
        (asked,) = parse(spec.all_reduce_spec)
        implementation = {"nccl": kinds.NCCL, "xring": kinds.RING}[asked.algorithm]
    return tf.distribute.experimental.CommunicationOptions(implementation=implementation)
