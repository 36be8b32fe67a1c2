"""Let workers wait for each other, by queues on a device that all of them can reach, and for operations of one device."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder

v1 = tf.compat.v1


@dataclass(frozen=True)
class Broadcast:
    """The tensors that send the chief's value to all workers."""

    sent: tf.Tensor  # fed by the chief
    received: tf.Tensor  # fetched by all


class Barrier:
    """Barriers from queues on the first parameter server or, without any, on the chief's CPU."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        self._workers = order.workers
        self._device = "/job:ps/task:0/device:CPU:0" if order.cluster.get("ps") else "/job:worker/task:0/device:CPU:0"

    def wait(self, name: str) -> tf.Operation:
        """Return an operation that puts a token into every worker's queue, and takes as many from this worker's own."""
        if self._workers == 1:
            return tf.no_op()
        with v1.device(self._device):
            queues = [self.queue(name, worker) for worker in range(self._workers)]
            arrivals = [queue.enqueue(True) for queue in queues]
            return tf.group(*arrivals, queues[self._order.index].dequeue_many(self._workers))

    def broadcast(self) -> Broadcast:
        """Return the tensors of a broadcast.

        The chief puts a value into every worker's queue, and each takes it from its own.
        """
        sent = v1.placeholder_with_default(False, ())
        if self._workers == 1:
            return Broadcast(sent, tf.identity(sent))
        with v1.device(self._device):
            queues = [self.queue("broadcast", worker) for worker in range(self._workers)]
            sends = [queue.enqueue(sent) for queue in queues] if self._order.is_chief else []
            with v1.control_dependencies(sends):
                return Broadcast(sent, queues[self._order.index].dequeue())

    def shutdown(self) -> tf.Operation:
        """Return an operation that lets the chief, which has the queues on its CPU, wait until all others are done."""
        if self._workers == 1:
            return tf.no_op()
        with v1.device(self._device), v1.control_dependencies(self._make_exit_operations()):
            queue = self.queue("shutdown", 0)
            return queue.dequeue_many(self._workers - 1)[0].op if self._order.is_chief else queue.enqueue(True)

    def _make_exit_operations(self) -> list[tf.Operation]:
        """Return the operations that keep workers alive as long as others use their devices.

        Workers that communicate with each other stay until all are done: another one may still fetch a result of one's last
        step.
        """
        mode = self._order.spec.mode
        if not mode.single_session:
            return [self.wait("through")] if mode.workers_communicate else []
        queues = [self.queue("release", worker) for worker in range(self._workers)]
        if self._order.is_chief:
            return [queue.enqueue(True) for queue in queues[1:]]
        return [queues[self._order.index].dequeue().op]

    def queue(self, purpose: str, worker: int) -> tf.queue.FIFOQueue:
        """Return one worker's queue: from a common one, a fast worker would take a slow one's token."""
        with v1.device(self._device):
            return v1.FIFOQueue(self._workers, tf.bool, shapes=[()], shared_name=f"{purpose} of worker {worker}")


def group_by_device(operations: Sequence[tf.Operation]) -> list[tf.Operation]:
    """Return one operation per device that waits for all operations there.

    To wait for each of them from another device would cost a message each.
    """
    by_device: dict[str, list[tf.Operation]] = {}
    for operation in operations:
        by_device.setdefault(operation.device, []).append(operation)
    groups = []
    for device, theirs in by_device.items():
        with v1.device(device), v1.control_dependencies(theirs):
            groups.append(tf.no_op())
    return groups
