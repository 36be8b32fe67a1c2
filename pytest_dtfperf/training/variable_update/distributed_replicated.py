"""Keep variables on parameter servers, and a copy of them on every device of every worker."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.models.tensors import make_variable
from pytest_dtfperf.training.variable_update.parameter_server import Servers, widen_value

v1 = tf.compat.v1


class DistributedReplicated:
    """A synchronous update: towers compute with their own copies, and a step ends when all copies have been updated.

    The mean over a worker's towers is pushed to the variable's server. There the chief applies the mean over the workers, and
    puts the new value into a queue for each worker, which waits for it there. So a value is sent as soon as it is known, while
    gradients of others still arrive. A worker's step ends with the last value, and only one gradient and one value per variable
    are sent. Between hosts large gradients are sent in turn, so that the first values come back meanwhile: a link carries both
    directions at once. A single process is its own parameter server.
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
            copy = make_variable(lambda: tf.zeros(shape), f"copy{tower}/{name}")  # `begin` fetches the first value
            self._copies.setdefault(name, []).append(copy)
            return copy.read_value()

    def begin(self) -> tf.Operation:
        return tf.group(*self._refresh_all({name: self._servers.send_variable(name) for name in self._copies}))

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        own = {}
        for number, name in enumerate(self._copies):
            with v1.device(self._devices.towers[number % len(self._devices.towers)]):  # the towers take turns in adding
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
        """Return operations that send each variable's value into every worker's queue, as soon as it is updated."""
        sends = []
        for name, update in self._servers.apply_means().items():
            value = self._servers.send_variable(name, after=[update])
            sends += [self._queue(name, worker).enqueue(value) for worker in range(self._order.workers)]
        return sends

    def _await(self, name: str) -> tf.Tensor:
        return self._queue(name, self._order.index).dequeue()

    def _queue(self, name: str, worker: int) -> tf.queue.FIFOQueue:
        """Return a worker's queue of new values, on the variable's device.

        A worker's next value cannot come before it has taken this one, and pushed its next gradient.
        """
        variable = self._servers.variables[name]
        with v1.device(variable.device):
            return v1.FIFOQueue(1, self._servers.wire.dtype, shapes=[variable.shape], shared_name=f"{name} for worker {worker}")

    def _refresh_all(self, values: Mapping[str, tf.Tensor]) -> list[tf.Operation]:
        return [op for name, value in values.items() for op in self._refresh(name, value)]

    def _refresh(self, name: str, value: tf.Tensor) -> list[tf.Operation]:
        """Return the updates of all copies by a value, which the worker fetches once and its towers copy from there."""
        if len(self._copies[name]) > 1:
            with v1.device(self._devices.host):
                value = widen_value(tf.identity(value))
        refreshed = []
        for copy in self._copies[name]:
            with v1.device(copy.device):
                refreshed.append(copy.assign(widen_value(value), read_value=False))
        return refreshed
