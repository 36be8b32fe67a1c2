"""A network's variables where a strategy wants them, and the optimizer's state beside each of their copies."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.models.outline import Variable, outline
from pytest_dtfperf.training.models.tensors import first_value


class Variables:
    """Made all at once, before the functions that use them. To a `Tower`, this is its variable update."""

    def __init__(self, strategy: tf.distribute.Strategy, spec: Spec) -> None:
        self._strategy = strategy
        self._spec = spec
        self._state: dict[tuple[int, str], tf.Variable] = {}
        with strategy.scope():
            self._made = {variable.name: self._make(variable) for variable in outline(network_of(spec)).variables}
        self._trained = {variable.name for variable in outline(network_of(spec)).trained}

    def _make(self, variable: Variable) -> tf.Variable:
        """Averages of batch norm are each replica's own; they are the mean of all only where nobody asks for one."""
        synchronization, aggregation = tf.VariableSynchronization, tf.VariableAggregation
        return tf.Variable(
            lambda: first_value(variable, self._spec.seed),
            name=variable.name,
            trainable=variable.trainable,
            synchronization=synchronization.AUTO if variable.trainable else synchronization.ON_READ,
            aggregation=aggregation.MEAN,
        )

    @property
    def copies(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Every trained variable by name, with all its copies that this task knows."""
        return {name: self._copies(made) for name, made in self._made.items() if name in self._trained}

    @property
    def values(self) -> dict[str, Any]:
        """Of all variables, moving averages included, as the first replica has them: numpy arrays."""
        return {name: self._copies(made)[0].read_value().numpy() for name, made in self._made.items()}

    def _copies(self, variable: tf.Variable) -> Sequence[tf.Variable]:
        found: Sequence[tf.Variable] = self._strategy.experimental_local_results(variable)
        return found

    def __getitem__(self, name: str) -> tf.Variable:
        return self._made[name]

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """The value on the replica whose function is being traced."""
        return self._made[name].read_value()

    def average(self, name: str, channels: int, start: float) -> tf.Variable:
        return self._made[name]

    def state(self, variable: tf.Variable, name: str, shape: Sequence[int], start: float) -> tf.Variable:
        """The optimizer's, beside one copy. Made in the middle of tracing, so it is lifted out of the function."""
        key = (id(variable), name)
        if key not in self._state:
            with tf.init_scope(), self._beside(variable):
                kind = tf.float32 if isinstance(start, float) else tf.int64
                self._state[key] = tf.Variable(tf.fill(shape, tf.constant(start, kind)), trainable=False, name=name)
        return self._state[key]

    def _beside(self, variable: tf.Variable) -> AbstractContextManager[None]:
        """Where the variable is. A strategy in whose scope a function is traced, as parameter servers' is, obeys no devices."""
        colocated = self._strategy.extended.colocate_vars_with
        where: AbstractContextManager[None] = (
            colocated(variable) if tf.distribute.has_strategy() else tf.device(variable.device)
        )
        return where
