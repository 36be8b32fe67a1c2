"""The algorithms' work, done by a graph."""

from collections.abc import Sequence

import tensorflow as tf

v1 = tf.compat.v1


class GraphWork:
    """Adds operations to the current graph. A tensor that is used on another device is sent there by TensorFlow, once."""

    def __init__(self, towers: int, name: str) -> None:
        self._towers = towers
        self._name = name  # of what NCCL is asked for, the same on all devices

    def add(self, values: Sequence[tf.Tensor], device: str) -> tf.Tensor:
        with v1.device(device):
            return values[0] if len(values) == 1 else tf.add_n(values)

    def mean(self, total: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return total * (1.0 / self._towers)

    def copy(self, value: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return tf.identity(value)

    def cut(self, value: tf.Tensor, parts: int, device: str) -> list[tf.Tensor]:
        with v1.device(device):
            return cut(value, parts)

    def join(self, parts: Sequence[tf.Tensor], like: tf.Tensor, device: str) -> tf.Tensor:
        if len(parts) == 1:
            return parts[0]
        with v1.device(device):
            return tf.reshape(tf.concat(parts, 0), like.shape)

    def nccl(self, values: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
        sums = []
        for value, device in zip(values, devices, strict=True):
            with v1.device(device):
                sums.append(
                    tf.raw_ops.NcclAllReduce(input=value, reduction="sum", num_devices=len(devices), shared_name=self._name)
                )
        return sums


def cut(value: tf.Tensor, parts: int) -> list[tf.Tensor]:
    """Flat parts whose sizes differ by one element at most, none of them empty."""
    elements = value.shape.num_elements()
    parts = min(parts, elements)
    if parts <= 1:
        return [value]
    sizes = [elements * (i + 1) // parts - elements * i // parts for i in range(parts)]
    return list(tf.split(tf.reshape(value, [-1]), sizes))
