"""What values and gradients are while they travel between tasks.

Who sends makes them shorter, rounding to the nearest, to the even one of two; who receives makes them float32 again.
TensorFlow's own option, `enable_bfloat16_sendrecv`, cuts the lower half off instead: what arrives is always nearer to zero.
"""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder

v1 = tf.compat.v1

DTYPES = {"fp32": tf.float32, "bf16": tf.bfloat16}


class Wire:
    """Where nothing crosses between tasks, nothing is made shorter."""

    def __init__(self, order: TaskOrder) -> None:
        self.dtype: tf.DType = DTYPES[order.spec.wire_precision] if order.cluster else tf.float32

    @property
    def narrows(self) -> bool:
        return bool(self.dtype != tf.float32)

    def narrow(self, value: tf.Tensor) -> tf.Tensor:
        """What is sent in the place of a value, where that is."""
        if value.dtype == self.dtype:
            return value
        with v1.device(value.device):
            # Traces tell what is received by the name of what is sent.
            return tf.cast(value, self.dtype, name=f"{value.op.name.rpartition('/')[2]}_{self.dtype.name}")

    def rounded(self, value: tf.Tensor) -> tf.Tensor:
        """What those that it is sent to have of it, where it is: for who has copies that must stay equal."""
        return widened(self.narrow(value)) if self.narrows else value


def widened(value: tf.Tensor) -> tf.Tensor:
    """What has come over the wire, on the current device."""
    return value if value.dtype == tf.float32 else tf.cast(value, tf.float32)
