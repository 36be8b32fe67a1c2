"""How a gradient changes a variable. All state lies beside its variable, so that an update never crosses the wire."""

from collections.abc import Callable, Mapping

import tensorflow as tf

v1 = tf.compat.v1

Apply = Callable[[tf.Variable, tf.Tensor, float], tf.Operation]  # (variable, gradient, learning rate)

MOMENTUM = 0.9  # tf_cnn_benchmarks' default
BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in the paper (arXiv 1412.6980) and in TensorFlow


def sgd(variable: tf.Variable, gradient: tf.Tensor, rate: float) -> tf.Operation:
    return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)


def momentum(variable: tf.Variable, gradient: tf.Tensor, rate: float) -> tf.Operation:
    velocity = _state(variable, "momentum", variable.shape, 0.0)
    return tf.raw_ops.ResourceApplyMomentum(
        var=variable.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=MOMENTUM
    )


def adam(variable: tf.Variable, gradient: tf.Tensor, rate: float) -> tf.Operation:
    mean, square = (_state(variable, f"adam_{moment}", variable.shape, 0.0) for moment in ("mean", "square"))
    # Each variable counts its own powers of the betas: a shared pair would tie all parameter servers to one of them.
    powers = [_state(variable, f"adam_beta{i}_power", (), beta) for i, beta in ((1, BETA1), (2, BETA2))]
    applied = tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=mean.handle,
        v=square.handle,
        beta1_power=powers[0].read_value(),
        beta2_power=powers[1].read_value(),
        lr=rate,
        beta1=BETA1,
        beta2=BETA2,
        epsilon=EPSILON,
        grad=gradient,
    )
    with tf.control_dependencies([applied]):
        moved = [power.assign(power * beta, read_value=False) for power, beta in zip(powers, (BETA1, BETA2), strict=True)]
        return tf.group(*moved)


OPTIMIZERS: Mapping[str, Apply] = {"adam": adam, "momentum": momentum, "sgd": sgd}


def apply(name: str, variable: tf.Variable, gradient: tf.Tensor, rate: float) -> tf.Operation:
    """One update of one variable, where the variable lives."""
    with v1.device(variable.device):
        return OPTIMIZERS[name](variable, gradient, rate)


def _state(variable: tf.Variable, name: str, shape: tf.TensorShape, start: float) -> tf.Variable:
    with v1.name_scope(None):
        return v1.Variable(lambda: tf.fill(shape, start), name=f"{variable.op.name}/{name}", trainable=False, use_resource=True)
