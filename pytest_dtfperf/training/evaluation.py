"""Compute the accuracy and the loss on the test set: the graph for one batch, and the sums over all batches.

The variables of a strategy are evaluated in a graph of its own that gets their values.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.devices import make_session_config
from pytest_dtfperf.training.inputs import TestSet, TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.layers import has_weight_decay
from pytest_dtfperf.training.models.outline import compute_outline
from pytest_dtfperf.training.models.tensors import DTYPES, TensorLayers

v1 = tf.compat.v1

TOP = 5  # the k of top-k accuracy


@dataclass(frozen=True)
class EvaluationTensors:
    """The tensors that a session fetches, batch by batch, until the test set ends."""

    test_set: TestSet
    sums: tf.Tensor  # float32 (4,): a batch's images, their cross-entropy, right answers, right ones among the best five
    penalty: tf.Tensor  # what weight decay adds to the loss


def build_evaluation(spec: Spec, logits: tf.Tensor, test_set: TestSet, values: Mapping[str, tf.Tensor]) -> EvaluationTensors:
    """Return the tensors of an evaluation.

    `logits` (images, classes) are the network's for a batch of the test set, `values` its variables by name.
    """
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=test_set.labels, logits=logits)
    counts = [tf.ones_like(entropy), entropy, *(tf.cast(_is_right(logits, test_set.labels, k), tf.float32) for k in (1, TOP))]
    squares = [tf.nn.l2_loss(value) for name, value in values.items() if has_weight_decay(name)]
    return EvaluationTensors(test_set, tf.reduce_sum(tf.stack(counts), axis=1), spec.weight_decay * tf.add_n(squares))


def _is_right(logits: tf.Tensor, labels: tf.Tensor, k: int) -> tf.Tensor:
    """Return for each image whether fewer than k other classes have a logit as high as the right one.

    So a network with equal logits for all classes has no right answers.
    """
    of_label = tf.gather(logits, labels, batch_dims=1)
    return tf.reduce_sum(tf.cast(logits >= of_label[:, None], tf.int32), axis=1) <= k


def compute_score(session: tf.compat.v1.Session, evaluation: EvaluationTensors) -> Score:
    """Return the score of the variables as they are now. Raises `InvalidMeasurement` if the loss is not finite."""
    session.run(evaluation.test_set.restart)
    images = entropy = top_1 = top_5 = 0.0
    try:
        while True:
            batch = session.run(evaluation.sums)
            images, entropy, top_1, top_5 = images + batch[0], entropy + batch[1], top_1 + batch[2], top_5 + batch[3]
    except tf.errors.OutOfRangeError:
        penalty = float(session.run(evaluation.penalty))
    return make_score(images=images, entropy=entropy, top_1=top_1, top_5=top_5, penalty=penalty)


def make_score(*, images: float, entropy: float, top_1: float, top_5: float, penalty: float) -> Score:
    """Return the score from sums over the test set."""
    loss = float(entropy / images)
    if not math.isfinite(loss):
        raise InvalidMeasurement(f"the loss on the test set is {loss}: what was trained answers nothing")
    return Score(
        images=int(images), loss=loss, total_loss=loss + penalty, top_1=float(top_1 / images), top_5=float(top_5 / images)
    )


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
