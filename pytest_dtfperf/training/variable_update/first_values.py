"""The values that a worker's forward pass begins with come before the others.

A worker asks for all values of a step at once, and which of them a server sends first is chance: the order in which threads of
TensorFlow get hold of requests and of answers. The forward pass would wait for nearly the last one. So its servers hold most
values back until the first layers' have come. What lies between is sent at once, too: each server's link has something to do
until all of the first are there and the servers know of it.
"""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.awaited import NOTHING, precedence_of
from pytest_dtfperf.training.devices import is_between_hosts
from pytest_dtfperf.training.exchanged import servers_of, sizes_of

v1 = tf.compat.v1


class FirstValues:
    """Of values that come in the network's order."""

    def __init__(self, order: TaskOrder, host: str) -> None:
        """`host`: the worker's CPU."""
        self._host = host
        # On GPUs nobody has measured what is gained; staged values are nobody's to wait for.
        does = order.device == "cpu" and is_between_hosts(order) and not order.spec.staged_vars
        servers = order.spec.num_ps if does else 0
        self._precedence = precedence_of(sizes_of(order), servers_of(order, servers)) if servers else NOTHING
        self._awaited: list[tf.Operation] = []
        self._have_come: tf.Operation | None = None

    def held_back(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """A value, ready to be sent from where it is, when it may go."""
        if name not in self._precedence.held_back:
            return value
        if self._have_come is None:
            with v1.device(self._host), v1.control_dependencies(self._awaited):
                self._have_come = tf.no_op(name="first_values")
        with v1.device(value.device), v1.control_dependencies([self._have_come]):
            return tf.identity(value, name=value.op.name.rpartition("/")[2])  # by which traces tell what is received

    def has_come(self, name: str, value: tf.Tensor) -> None:
        """The value is here."""
        if name in self._precedence.awaited:
            self._awaited.append(value.op)
