"""TensorFlow's own all-reduce: every process' graph has its part of it."""

from collections.abc import Sequence

import tensorflow as tf

from pytest_dtfperf.training.variable_update.all_reduce.subdivisions import subdivisions

v1 = tf.compat.v1

GROUP = 1  # there is one group of devices, and all its members are in it


class Collective:
    """Called for each variable, in the same order by all processes: the number of the call is what they know it by."""

    def __init__(self, devices: Sequence[str], *, size: int, shards: int = 1, divides: bool = True) -> None:
        """The devices of this process, of `size` in all processes. `divides`: the mean is asked for, and not the sum."""
        self._devices = devices
        self._size = size
        self._shards = shards
        self._divides = divides
        self._calls = 0

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The mean of all, or their sum, on each device. It starts as soon as its gradient is there, beside all others."""
        if self._size == 1:
            return list(gradients)
        self._calls += 1
        size_bytes = gradients[0].shape.num_elements() * gradients[0].dtype.size
        rings = subdivisions(size_bytes, self._size, self._shards)
        means = []
        for gradient, device in zip(gradients, self._devices, strict=True):
            with v1.device(device):
                means.append(
                    tf.raw_ops.CollectiveReduce(
                        input=gradient,
                        group_size=self._size,
                        group_key=GROUP,
                        instance_key=self._calls,
                        merge_op="Add",
                        final_op="Div" if self._divides else "Id",
                        subdiv_offsets=[0] * rings,
                    )
                )
        return means
