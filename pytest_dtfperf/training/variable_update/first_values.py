"""The values that a worker's forward pass begins with come before the others.

A worker asks for all values of a step at once, and which of them a server sends first is chance: the order in which threads of
TensorFlow get hold of requests and of answers. The forward pass would wait for nearly the last one. So its servers hold most
values back until the first layers' have come. What lies between is sent at once, too: the link has something to do until the
servers know of it.
"""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import is_between_hosts
from pytest_dtfperf.training.models.outline import outline_of

v1 = tf.compat.v1

# Of all bytes, in the network's order: when so many have come ...
AWAITED = 0.08
# ... the values that begin beyond so many are sent. ResNet-50 over 4 servers, 2 workers of one core each: 3.58 s a step, where
# the links allow 3.42, and 3.81 s without any of this.
AT_ONCE = 0.25


class FirstValues:
    """Of values that come in the network's order."""

    def __init__(self, order: TaskOrder, host: str) -> None:
        """`host`: the worker's CPU."""
        self._host = host
        # On GPUs nobody has measured what is gained; staged values are nobody's to wait for.
        does = order.device == "cpu" and is_between_hosts(order) and not order.spec.staged_vars
        self._all = sum(variable.size for variable in outline_of(order.spec).trained) if does else 0
        self._before = 0  # elements of the values before the next one
        self._awaited: list[tf.Operation] = []
        self._have_come: tf.Operation | None = None

    def held_back(self, value: tf.Tensor) -> tf.Tensor:
        """The next value, ready to be sent from where it is, when it may go."""
        begins, self._before = self._before, self._before + value.shape.num_elements()
        if begins < AT_ONCE * self._all or not self._awaited:
            return value
        if self._have_come is None:
            with v1.device(self._host), v1.control_dependencies(self._awaited):
                self._have_come = tf.no_op(name="first_values")
        with v1.device(value.device), v1.control_dependencies([self._have_come]):
            return tf.identity(value, name=value.op.name.rpartition("/")[2])  # by which traces tell what is received

    def has_come(self, value: tf.Tensor) -> None:
        """The value that `held_back` was told of last is here."""
        if self._before <= AWAITED * self._all:
            self._awaited.append(value.op)
