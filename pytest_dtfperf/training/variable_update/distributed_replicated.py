"""Variables on parameter servers, and a copy of them on every device of every worker."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.parameter_server import Servers, widen_value

v1 = tf.compat.v1


class DistributedReplicated:
    """Towers compute with their own copies. A step ends when all copies are those of after the update. Always synchronous.

    The mean over a worker's towers is pushed to the variable's server. There the chief applies the mean over the workers, and
    puts the new value into a queue for each of them, which waits for it there. So a value is on its way as soon as it is
    there, while gradients of others still come; what ends a worker's step are the values themselves; and nothing but one
    gradient and one value per variable is on the wire. Between hosts large gradients go up in turn, so that values of the first
    come down while the others go up: a link carries both at once. A lone process is its own parameter server.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        self._order = order
        self._devices = devices
        self._servers = Servers(order, devices.servers or (devices.host,))
        self._copies: dict[str, list[tf.Variable]] = {}

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        return {name: [self._servers.variables[name], *copies] for name, copies in self._copies.items()}

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self._copies:
            self._servers.hold(name, shape, initial)
        with v1.device(self._devices.towers[tower]), v1.name_scope(None):
            copy = v1.Variable(
                lambda: tf.zeros(shape),  # `begin` fetches the first value
                name=f"copy{tower}/{name}",
                trainable=False,
                use_resource=True,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
            )
            self._copies.setdefault(name, []).append(copy)
            return copy.read_value()

    def begin(self) -> tf.Operation:
        return tf.group(*self._refresh_all({name: self._servers.send_variable(name) for name in self._copies}))

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        own = {}
        for number, name in enumerate(self._copies):
            with v1.device(self._devices.towers[number % len(self._devices.towers)]):  # none has all the adding to do
                own[name] = self._servers.mean([tower[name] for tower in gradients])
        if self._order.workers == 1:
            updated = {
                name: self._servers.send_variable(name, after=[update]) for name, update in self._servers.apply(own).items()
            }
            return self._refresh_all(updated)
        pushes = self._servers.push(own, in_turn=self._order.is_between_hosts)
        sends = self._send() if self._order.is_chief else []
        return [*pushes, *sends, *self._refresh_all({name: self._await(name) for name in self._copies})]

    def _send(self) -> list[tf.Operation]:
        """Send each variable's value into every worker's queue, as soon as it is updated."""
        sends = []
        for name, update in self._servers.apply_means().items():
            value = self._servers.send_variable(name, after=[update])
            sends += [self._queue(name, worker).enqueue(value) for worker in range(self._order.workers)]
        return sends

    def _await(self, name: str) -> tf.Tensor:
        return self._queue(name, self._order.index).dequeue()

    def _queue(self, name: str, worker: int) -> tf.queue.FIFOQueue:
        """Beside the variable. A worker's next value cannot come before it has taken this one, and pushed a gradient of it."""
        variable = self._servers.variables[name]
        with v1.device(variable.device):
            return v1.FIFOQueue(1, self._servers.wire.dtype, shapes=[variable.shape], shared_name=f"{name} for worker {worker}")

    def _refresh_all(self, values: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
        return [op for name, value in values.items() for op in self._refresh(name, value)]

    def _refresh(self, name: str, value: tf.Tensor) -> list[tf.Operation]:
        """Return the value, fetched once by the worker: its towers copy it from there."""
        if len(self._copies[name]) > 1:
            with v1.device(self._devices.host):
                value = widen_value(tf.identity(value))
        refreshed = []
        for copy in self._copies[name]:
            with v1.device(copy.device):
                refreshed.append(copy.assign(widen_value(value), read_value=False))
        return refreshed
