"""The learning rate in the graph."""

import tensorflow as tf

from pytest_dtfperf.spec.learning_rate import LearningRate


def rate_after(rule: LearningRate, step: tf.Tensor) -> tf.Tensor:
    """What `rule.at` says of so many steps, an int64 scalar: float32, on the current device."""
    rate = tf.constant(rule.values[0])
    for start, value in zip(rule.starts[1:], rule.values[1:], strict=True):
        rate = tf.where(step >= start, tf.constant(value), rate)
    if rule.decay_steps:
        times = tf.cast(step // rule.decay_steps, tf.float32)
        rate = tf.maximum(rate * tf.pow(tf.constant(rule.decay_factor), times), rule.minimum)
    if rule.warmup_steps:
        grown = rule.values[0] / rule.warmup_steps * tf.cast(step, tf.float32)
        rate = tf.where(step < rule.warmup_steps, grown, rate)
    return rate
