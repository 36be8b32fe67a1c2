"""Updates of large variables, compiled into one pass through memory."""

from collections.abc import Callable, Sequence

import tensorflow as tf

# An update is bound by memory. As operations, weight decay and SGD move eight times what the variable has: 2 to scale it, 3 to
# add, 3 to apply; compiled, they move three. The mean of two gradients takes another 5; compiled, 1. The trivial network, one
# variable of which has 16 MB, takes 1.22 times as many steps so. Compiling costs 0.05 s each, which smaller variables would not
# earn back.
LARGE_BYTES = 4 << 20

Apply = Callable[[Sequence[tf.Tensor]], tf.Operation]  # an update by these gradients


def in_one_pass(variable: tf.Variable, gradients: Sequence[tf.Tensor], apply: Apply) -> tf.Operation:
    """What `apply` does to the variable, as one operation where that is worth it. The current device is the variable's."""
    return _compiled(apply, gradients) if _is_worth_it(variable) else apply(gradients)


def _is_worth_it(variable: tf.Variable) -> bool:
    """On CPUs: GPUs have ten times the bandwidth, and their compiler needs more of CUDA than TensorFlow does."""
    size_bytes = variable.shape.num_elements() * variable.dtype.size
    on_cpu = tf.DeviceSpec.from_string(variable.device).device_type in (None, "CPU")
    return size_bytes >= LARGE_BYTES and on_cpu and bool(tf.test.is_built_with_xla())


def _compiled(apply: Apply, gradients: Sequence[tf.Tensor]) -> tf.Operation:
    """XLA holds the variable's lock from reading it to writing it, as TensorFlow's own operations do with `use_locking`."""

    def update(values: Sequence[tf.Tensor]) -> tf.Tensor:
        with tf.control_dependencies([apply(values)]):
            return tf.constant(True)

    return tf.function(update, jit_compile=True, autograph=False)(list(gradients)).op
