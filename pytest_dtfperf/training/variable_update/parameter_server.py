"""Variables on parameter servers; workers fetch them, and send gradients back."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import optimizers
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.base import mean_of
from pytest_dtfperf.training.variable_update.placement import PLACEMENTS

v1 = tf.compat.v1

# An accumulator drops gradients older than its own count of steps. Here none can be: a worker ends its step only when the
# chief has released it, after the update. So each is stamped as newer than all counts.
NEVER_STALE = tf.int64.max


class ParameterServer:
    """Synchronous: the mean over all devices of all workers is applied once per step. Asynchronous: each applies its own.

    A lone process, without parameter servers, has its variables on its own CPU.

    A synchronous step: every worker reads the variables, and pushes its gradients into one accumulator per variable, on the
    variable's server. The chief takes each mean as soon as it is complete and applies it there; when all are applied, it puts
    a token into each other worker's queue, and that ends their step. Nothing but values, gradients and tokens is on the wire.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._spec = order.spec
        self._devices = devices
        self._workers = len(order.cluster["worker"]) if order.cluster else 1
        self._servers = devices.servers or (devices.host,)
        self._placement = PLACEMENTS[order.spec.variable_placement](len(self._servers))
        self._variables: dict[str, tf.Variable] = {}
        self._values: dict[str, tf.Tensor] = {}

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return {name: [variable] for name, variable in self._variables.items()}

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Fetched once per step and worker; its towers copy from there."""
        if name not in self._variables:
            server = self._servers[self._placement.place(tf.TensorShape(shape).num_elements() * tf.float32.size)]
            with v1.device(server), v1.name_scope(None):
                self._variables[name] = v1.Variable(initial, name=name, use_resource=True)
            with v1.device(self._devices.host):
                self._values[name] = self._variables[name].read_value()
        return self._values[name]

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        with v1.device(self._devices.host):
            own = {name: mean_of([tower[name] for tower in gradients]) for name in self._variables}
        if self._workers == 1 or not self._spec.cross_replica_sync:
            return _one_per_device([self._apply(name, gradient) for name, gradient in own.items()])
        return self._update_together(own)

    def _update_together(self, own: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
        pushes = []
        updates = []
        # The accumulators' mean counts workers. One with more devices than others must weigh more.
        weight = self._order.num_devices * self._workers / self._spec.gpus
        for name, gradient in own.items():
            weighed = gradient if weight == 1 else gradient * weight
            with v1.device(self._variables[name].device):
                accumulator = tf.raw_ops.ResourceConditionalAccumulator(
                    dtype=tf.float32, shape=gradient.shape, shared_name=f"{name}/gradients", reduction_type="MEAN"
                )
                pushes.append(
                    tf.raw_ops.ResourceAccumulatorApplyGradient(handle=accumulator, local_step=NEVER_STALE, gradient=weighed)
                )
                if self._order.is_chief:
                    mean = tf.raw_ops.ResourceAccumulatorTakeGradient(
                        handle=accumulator, num_required=self._workers, dtype=tf.float32
                    )
                    updates.append(self._apply(name, tf.ensure_shape(mean, gradient.shape)))
        return [*_one_per_device(pushes), self._end_of_step(_one_per_device(updates))]

    def _end_of_step(self, updates: Sequence[tf.Operation]) -> tf.Operation:
        with v1.device(self._servers[0]):
            queues = [self._queue("step", worker) for worker in range(self._workers)]
            if not self._order.is_chief:
                return queues[self._order.index].dequeue().op
            with v1.control_dependencies(updates):
                return tf.group(*(queue.enqueue(True) for queue in queues[1:]))

    def _apply(self, name: str, gradient: tf.Tensor) -> tf.Operation:
        return optimizers.apply(self._spec.optimizer, self._variables[name], gradient, self._spec.learning_rate)

    def meet(self, place: str) -> tf.Operation:
        """Each worker puts a token into every worker's queue, and takes as many from its own."""
        if self._workers == 1:
            return tf.no_op()
        with v1.device(self._servers[0]):
            queues = [self._queue(place, worker) for worker in range(self._workers)]
            arrivals = [queue.enqueue(True) for queue in queues]
            return tf.group(*arrivals, queues[self._order.index].dequeue_many(self._workers))

    def _queue(self, purpose: str, worker: int) -> tf.queue.FIFOQueue:
        """A worker's own: from a common one, a fast worker would take a slow one's token."""
        return v1.FIFOQueue(self._workers, tf.bool, shapes=[()], shared_name=f"{purpose} of worker {worker}")


def _one_per_device(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """One operation per device that waits for all there: waiting for each from afar would cost a message apiece."""
    by_device: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    groups = []
    for device, theirs in by_device.items():
        with v1.device(device), v1.control_dependencies(theirs):
            groups.append(tf.no_op())
    return groups
