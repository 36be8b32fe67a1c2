"""What one step leaves for the next."""

from typing import NamedTuple

import tensorflow as tf

v1 = tf.compat.v1


class Staged(NamedTuple):
    """A tensor that is put away in the step that computes it, and taken out in the step after."""

    old: tf.Tensor  # that of the step before, without waiting for this step's
    put: tf.Operation
    fill: tf.Operation  # to be run before the first step, which finds zeros then

    def then(self, value: tf.Tensor) -> tf.Tensor:
        """The value, but not before the new tensor is put away, and so computed: what it is computed from may change then."""
        with v1.device(self.put.device), v1.control_dependencies([self.put]):
            return tf.identity(value)


def stage(tensor: tf.Tensor, device: str, area: str) -> Staged:
    """An area is for one tensor of a device."""
    with v1.device(device):
        fill = tf.raw_ops.Stage(values=[tf.zeros(tensor.shape, tensor.dtype)], shared_name=area)
        put = tf.raw_ops.Stage(values=[tensor], shared_name=area)
        # First in, first out: whichever of the two a step does first, this gets the older one.
        (old,) = tf.raw_ops.Unstage(dtypes=[tensor.dtype], shared_name=area)
        return Staged(tf.ensure_shape(old, tensor.shape), put, fill)
