"""What each optimizer does to a variable, in one of TensorFlow's own operations, and what it keeps beside it.

They lock the variable: asynchronous workers may come at once, and without a lock one of their gradients could be lost.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from pytest_dtfperf.spec import Spec


class Common(NamedTuple):
    """What the updates on one device share."""

    spec: Spec
    rate: float | tf.Tensor
    powers: Sequence[tf.Tensor]


Slots = Mapping[str, tf.Variable]
Apply = Callable[[Common, tf.Variable, tf.Tensor, Slots], tf.Operation]


class Rule(NamedTuple):
    """An optimizer: what it does, and what it keeps."""

    apply: Apply
    slots: Mapping[str, float] = {}  # of each variable, in its shape: their first values
    powers: Sequence[str] = ()  # hyperparameters whose powers it wants, the first before the first step


def sgd(common: Common, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=common.rate, delta=gradient, use_locking=True)


def momentum(common: Common, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Nesterov's, as in tf_cnn_benchmarks."""
    return tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle,
        accum=slots["momentum"].handle,
        lr=common.rate,
        grad=gradient,
        momentum=common.spec.momentum,
        use_nesterov=True,
        use_locking=True,
    )


def rmsprop(common: Common, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Tieleman and Hinton, Coursera "Neural Networks for Machine Learning", lecture 6e, with momentum."""
    return tf.raw_ops.ResourceApplyRMSProp(
        var=variable.handle,
        ms=slots["rmsprop_square"].handle,
        mom=slots["rmsprop_momentum"].handle,
        lr=common.rate,
        rho=common.spec.rmsprop_decay,
        momentum=common.spec.rmsprop_momentum,
        epsilon=common.spec.rmsprop_epsilon,
        grad=gradient,
        use_locking=True,
    )


def adam(common: Common, variable: tf.Variable, gradient: tf.Tensor, slots: Slots) -> tf.Operation:
    """Kingma and Ba, arXiv 1412.6980, algorithm 1."""
    return tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=slots["adam_mean"].handle,
        v=slots["adam_square"].handle,
        beta1_power=common.powers[0],
        beta2_power=common.powers[1],
        lr=common.rate,
        beta1=common.spec.adam_beta1,
        beta2=common.spec.adam_beta2,
        epsilon=common.spec.adam_epsilon,
        grad=gradient,
        use_locking=True,
    )


RULES: Mapping[str, Rule] = {
    "adam": Rule(adam, {"adam_mean": 0.0, "adam_square": 0.0}, powers=("adam_beta1", "adam_beta2")),
    "momentum": Rule(momentum, {"momentum": 0.0}),
    "rmsprop": Rule(rmsprop, {"rmsprop_square": 1.0, "rmsprop_momentum": 0.0}),  # as tf.compat.v1's optimizer starts
    "sgd": Rule(sgd),
}
