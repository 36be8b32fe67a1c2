"""The parameter servers' side of a step: where variables lie, how gradients become one update there."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.exchanged import servers_of
from pytest_dtfperf.training.optimizers import Update, apply_all, mean_of
from pytest_dtfperf.training.variable_update.wire import Wire

v1 = tf.compat.v1

TURN_BYTES = 1 << 20  # of a gradient: smaller ones are over before it is known that they have come


class Servers:
    """Variables on parameter servers. Everything here is done where a variable is: only values and gradients are on the wire.

    Workers that step together put each gradient into a queue of their own. The chief takes one from each queue as soon as they
    are there, adds them in the workers' order, whoever came first, and applies their mean.
    A queue keeps what it is given as it is, where TensorFlow's accumulators would copy it once and divide it again. Whoever may
    not wait applies each gradient alone.
    """

    def __init__(self, order: TaskOrder, devices: Sequence[str]) -> None:
        self._order = order
        self._devices = devices
        self._servers = servers_of(order, len(devices))
        self.wire = Wire(order)
        # The mean is over workers. One with more devices than others must weigh more.
        self._weight = order.num_devices * order.workers / order.spec.gpus if self.together else 1
        self.variables: dict[str, tf.Variable] = {}

    @property
    def together(self) -> bool:
        """Whether an update is of all workers."""
        return self._order.workers > 1 and self._order.spec.cross_replica_sync

    def hold(self, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Variable:
        """Make a variable on its server."""
        with v1.device(self._devices[self._servers[name]]), v1.name_scope(None):
            self.variables[name] = v1.Variable(initial, name=name, use_resource=True)
        return self.variables[name]

    def read(self, name: str, after: Sequence[tf.Operation] = ()) -> tf.Tensor:
        """A variable's value, on its server."""
        variable = self.variables[name]
        with v1.device(variable.device), v1.control_dependencies(after):
            return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)

    def sent(self, name: str, after: Sequence[tf.Operation] = ()) -> tf.Tensor:
        """A variable's value as it leaves its server; who receives it makes it float32."""
        return self.wire.narrow(self.read(name, after))

    def mean(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        """Of a variable's gradients from each tower of this worker what leaves the current device."""
        mean = mean_of(gradients)
        return self.wire.narrow(mean if self._weight == 1 else mean * self._weight)

    def apply(self, gradients: Mapping[str, tf.Tensor]) -> dict[str, tf.Operation]:
        """One update of each variable, by what `mean` gives."""
        return self._apply_means_of({name: [gradient] for name, gradient in gradients.items()})

    def _apply_means_of(self, gradients: Mapping[str, Sequence[tf.Tensor]]) -> dict[str, tf.Operation]:
        updates = [Update(name, self.variables[name], theirs) for name, theirs in gradients.items()]
        devices = self._order.spec.gpus if self._order.spec.cross_replica_sync else self._order.num_devices
        return dict(zip(gradients, apply_all(self._order.spec, updates, devices=devices), strict=True))

    def push(self, gradients: Mapping[str, tf.Tensor], *, in_turn: bool = False) -> list[tf.Operation]:
        """Bring this worker's gradients, of which each is what `mean` gives, to their servers.

        `in_turn`: to each server one large gradient after another, the last variables' first, whose gradients are known first.
        Several that are on their way at once share the link, and are all there only when the last one is.
        """
        pushes: dict[str, tf.Operation] = {}
        last_large: dict[str, tf.Operation] = {}  # by server
        for name, gradient in reversed(list(gradients.items())):
            server = self.variables[name].device
            is_large = in_turn and gradient.shape.num_elements() * gradient.dtype.size >= TURN_BYTES
            if is_large and server in last_large:
                with v1.device(gradient.device), v1.control_dependencies([last_large[server]]):
                    gradient = tf.identity(gradient)
            with v1.device(server):
                pushes[name] = self._queue(name, self._order.index).enqueue(gradient)
            if is_large:
                last_large[server] = pushes[name]
        return [pushes[name] for name in gradients]

    def apply_means(self) -> dict[str, tf.Operation]:
        """For the chief: one update of each variable, as soon as every worker has pushed its gradient."""
        return self._apply_means_of({name: self._pushed(name) for name in self.variables})

    def _pushed(self, name: str) -> list[tf.Tensor]:
        with v1.device(self.variables[name].device):
            return [self._queue(name, worker).dequeue() for worker in range(self._order.workers)]

    def _queue(self, name: str, worker: int) -> tf.queue.FIFOQueue:
        """A worker's next gradient waits here until the chief has taken its last."""
        shape = self.variables[name].shape
        return v1.FIFOQueue(1, self.wire.dtype, shapes=[shape], shared_name=f"{name}/gradient of worker {worker}")
