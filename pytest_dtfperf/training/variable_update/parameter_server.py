"""Variables on parameter servers; workers fetch them, and send gradients back."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.barrier import Barrier
from pytest_dtfperf.training.variable_update.base import one_per_device
from pytest_dtfperf.training.variable_update.in_waves import InWaves
from pytest_dtfperf.training.variable_update.local import LocalDevices
from pytest_dtfperf.training.variable_update.servers import Servers
from pytest_dtfperf.training.variable_update.stage import Stage
from pytest_dtfperf.training.variable_update.wire import widened

v1 = tf.compat.v1


class ParameterServer:
    """Synchronous: the mean over all devices of all workers is applied once per step. Asynchronous: each applies its own.

    A synchronous step: every worker reads the variables, and pushes its gradients. When all means are applied, the chief puts
    a token into each other worker's queue, and that ends their step. Nothing but values, gradients and tokens is on the wire.

    A value is fetched once per step and worker, to the host or to one of its towers (`local_parameter_device`), the first
    layers' before the others, and gradients are averaged there. Without parameter servers, in a lone process, the variables
    themselves lie there.

    With `staged_vars` the network computes with values that were fetched while the step before computed, so the variables w
    after step t, of gradients g, are those of delayed gradient descent, the first two steps being from the same variables:

        w[t + 1] = w[t] - learning_rate * g(w[t - 1])        w[-1] = w[0]

    It is exactly so in any synchronous training: an update waits until every worker has read what it replaces. Asynchronous,
    a value is older than all of its own worker's last gradient, and may be younger or older than those of others.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._local = LocalDevices(order, devices)
        self._servers = Servers(order, devices.servers or self._local.all)
        self._first = (devices.servers or self._local.all)[0]
        self._barrier = Barrier(order)
        self._in_waves = InWaves(order, devices.host)
        self._stage = Stage(devices.towers) if order.spec.staged_vars else None
        self._there: dict[str, tf.Tensor] = {}  # the value that a step begins with, on its server
        self._here: dict[str, tf.Tensor] = {}  # the same, fetched

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return {name: [variable] for name, variable in self._servers.variables.items()}

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self._here:
            held = self._servers.hold(name, shape, initial)
            self._there[name] = self._servers.read(name)
            sent = self._in_waves.held_back(name, self._servers.wire.narrow(self._there[name]))
            with v1.device(self._local.place(name, shape, held.device)):
                self._here[name] = widened(tf.identity(sent))
            self._in_waves.has_come(name, self._here[name])
        return self._stage.pass_through(tower, name, self._here[name]) if self._stage else self._here[name]

    def begin(self) -> tf.Operation:
        return tf.group(*self._stage.fill()) if self._stage else tf.no_op()

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        own = {name: self._own_mean(name, [tower[name] for tower in gradients]) for name in self._here}
        staged = self._stage.fill() if self._stage else []
        if not self._servers.together:
            return [*staged, *one_per_device([*self._servers.apply(own).values()])]
        pushes = one_per_device(self._servers.push(own))
        return [*staged, *pushes, self._end_of_step()]

    def _own_mean(self, name: str, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        with v1.device(self._local[name]):
            mean = self._servers.mean(gradients)
        if not self._stage:
            return mean
        # The stage's next value is of before this step's update. Without a stage it is: gradients are computed from it.
        with v1.device(self._servers.variables[name].device), v1.control_dependencies([self._there[name].op]):
            return tf.identity(mean)

    def _end_of_step(self) -> tf.Operation:
        updates = one_per_device([*self._servers.apply_means().values()]) if self._order.is_chief else []
        with v1.device(self._first):
            queues = [self._barrier.queue("step", worker) for worker in range(self._order.workers)]
            if not self._order.is_chief:
                return queues[self._order.index].dequeue().op
            with v1.control_dependencies(updates):
                return tf.group(*(queue.enqueue(True) for queue in queues[1:]))
