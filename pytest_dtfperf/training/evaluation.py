"""Compute the accuracy and the loss on the test set: the graph for one batch, and the sums over all batches."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from pytest_dtfperf.datamodel.task_report import Score
from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.inputs import TestSet
from pytest_dtfperf.training.models.layers import has_weight_decay

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
