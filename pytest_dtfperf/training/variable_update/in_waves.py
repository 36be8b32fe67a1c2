"""Values come in about the order in which a worker's forward pass wants them.

A worker asks for all values of a step at once, and which of them a server sends first is chance: the order in which threads of
TensorFlow get hold of requests and of answers. The forward pass would wait for nearly the last one. So servers hold most values
back, and send them in waves, each when what comes before has come. What is in between is sent already: each server's link has
something to do until all of that is there and the servers know of it.
"""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.exchange_plan import Wave, servers_of, sizes_of, waves_of

v1 = tf.compat.v1


class InWaves:
    """What holds a worker's values back on their servers, until those before them have come."""

    def __init__(self, order: TaskOrder, host: str) -> None:
        """`host`: the worker's CPU."""
        # On GPUs the gain was never measured; no step waits for staged values.
        does = order.device == "cpu" and order.is_between_hosts and not order.spec.staged_vars
        servers = order.spec.num_ps if does else 0
        waves = waves_of(sizes_of(order), servers_of(order, servers)) if servers else []
        self._waits = [_Wait(wave, host) for wave in waves]

    def held_back(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """A value, ready to be sent from where it is, when it may go."""
        for wait in self._waits:
            if name in wait.wave.held_back:
                with v1.device(value.device), v1.control_dependencies([wait.over()]):
                    return tf.identity(value, name=value.op.name.rpartition("/")[2])  # traces find received values by it
        return value

    def has_come(self, name: str, value: tf.Tensor) -> None:
        """The value is here."""
        for wait in self._waits:
            if name in wait.wave.awaited:
                wait.come.append(value.op)


class _Wait:
    """For what a wave awaits: all of it is made before anything that it holds back."""

    def __init__(self, wave: Wave, host: str) -> None:
        self.wave = wave
        self.come: list[tf.Operation] = []
        self._host = host
        self._over: tf.Operation | None = None

    def over(self) -> tf.Operation:
        """On the host of the worker: runs when all have come."""
        if self._over is None:
            with v1.device(self._host), v1.control_dependencies(self.come):
                self._over = tf.no_op(name="awaited")
        return self._over
