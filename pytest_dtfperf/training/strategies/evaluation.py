"""Evaluate the variables of a strategy on the test set, in a graph of its own that gets their values."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import make_session_config
from pytest_dtfperf.training.evaluation import build_evaluation, compute_score
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import compute_outline
from pytest_dtfperf.training.models.tensors import TensorLayers
from pytest_dtfperf.training.tower import DTYPES

v1 = tf.compat.v1

# Out of scope, a session closes itself, and that takes seconds with tf.data behind it. The process's end needs none of it.
_NEVER_CLOSED: list[tf.compat.v1.Session] = []


class Evaluator:
    """A network without dropout and with batch norm's moving averages, which computes in this process alone."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        self._loads: dict[str, tuple[tf.Tensor, tf.Operation]] = {}
        self._variables: dict[str, tf.Variable] = {}
        with tf.Graph().as_default() as graph:
            network = get_network(order.spec)
            self._feed: TrainingInput = load(order.spec.input.implementation)(order, network, "")
            test_set = self._feed.test_set()
            values: dict[str, tf.Tensor] = {}
            states = {each.name: each for each in compute_outline(network).variables if not each.trainable}

            def read_variable(name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
                values[name] = self._variable(name, shape).read_value()
                return values[name]

            layers = TensorLayers(
                read_variable,
                lambda name, channels, start: self._variable(name, states[name].shape, tf.as_dtype(states[name].dtype)),
                data_format=order.spec.data_format,
                seed=order.spec.seed,
                training=False,
                device=order.device,
                dtype=DTYPES[order.spec.precision],
            )
            self._evaluation = build_evaluation(order.spec, layers.compute_logits(network, test_set.images), test_set, values)
            ready = v1.tables_initializer()
        self._session = v1.Session(graph=graph, config=make_session_config(order))
        _NEVER_CLOSED.append(self._session)
        self._session.run(ready)

    def _variable(self, name: str, shape: Sequence[int], dtype: tf.DType = tf.float32) -> tf.Variable:
        """Return a variable that is never initialised, but loaded before it is read."""
        variable = v1.Variable(lambda: tf.zeros(shape, dtype), name=name, use_resource=True)
        given = v1.placeholder(dtype, shape)
        self._loads[name] = (given, variable.assign(given, read_value=False))
        return variable

    def score(self, values: Mapping[str, Any]) -> Score:
        """Return the score of variables, given as numpy arrays by name, moving averages included."""
        feeds = {given: values[name] for name, (given, _) in self._loads.items()}
        self._session.run([load for _, load in self._loads.values()], feeds)
        with explain_errors([self._feed]):
            return compute_score(self._session, self._evaluation)
