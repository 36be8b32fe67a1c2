"""The algorithms' work, done by a graph."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pytest_dtfperf.training.variable_update.wire import Wire, widened

v1 = tf.compat.v1


class GraphWork:
    """Adds operations to the current graph. A tensor that is used on another device is sent there by TensorFlow, once.

    To another task it may be sent in fewer bytes: then whoever has made a mean rounds it for itself, too, so that all have the
    same. Sums stay as they are until they are sent.
    """

    def __init__(self, towers: int, name: str, wire: Wire) -> None:
        self._towers = towers
        self._name = name  # of what NCCL is asked for, the same on all devices
        self._wire = wire
        self._narrow: dict[Any, tf.Tensor] = {}  # what is sent of a tensor, by its reference
        self._fetched: dict[tuple[Any, str], tf.Tensor] = {}

    def fetch(self, value: tf.Tensor, device: str) -> tf.Tensor:
        """The tensor, or on another task's device what comes there of it."""
        if not self._wire.narrows or _task(value.device) == _task(device):
            return value
        key = value.ref()
        if key not in self._narrow:
            self._narrow[key] = self._wire.narrow(value)
        if (key, device) not in self._fetched:
            with v1.device(device):
                self._fetched[key, device] = widened(self._narrow[key])
        return self._fetched[key, device]

    def add(self, values: Sequence[tf.Tensor], device: str) -> tf.Tensor:
        values = [self.fetch(value, device) for value in values]
        with v1.device(device):
            return values[0] if len(values) == 1 else tf.add_n(values)

    def mean(self, total: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return self._wire.rounded(self.fetch(total, device) * (1.0 / self._towers))

    def copy(self, value: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return tf.identity(self.fetch(value, device))

    def cut(self, value: tf.Tensor, parts: int, device: str) -> list[tf.Tensor]:
        with v1.device(device):
            return cut(self.fetch(value, device), parts)

    def join(self, parts: Sequence[tf.Tensor], like: tf.Tensor, device: str) -> tf.Tensor:
        if len(parts) == 1:
            return parts[0]
        parts = [self.fetch(part, device) for part in parts]
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


def _task(device: str) -> tuple[str | None, int | None]:
    found = tf.DeviceSpec.from_string(device)
    return found.job, found.task


def cut(value: tf.Tensor, parts: int) -> list[tf.Tensor]:
    """Flat parts whose sizes differ by one element at most, none of them empty."""
    elements = value.shape.num_elements()
    parts = min(parts, elements)
    if parts <= 1:
        return [value]
    sizes = [elements * (i + 1) // parts - elements * i // parts for i in range(parts)]
    return list(tf.split(tf.reshape(value, [-1]), sizes))
