"""Batch norm's moving averages: state of a tower, which nobody else reads, so they never cross the wire."""

from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from pytest_dtfperf.training.models.outline import Outline, Variable

v1 = tf.compat.v1


class MovingAverage(Protocol):
    """What a layer needs of one: a TensorFlow variable has it."""

    def read_value(self) -> tf.Tensor:
        """As it was before this step."""

    def assign(self, value: tf.Tensor, read_value: bool) -> tf.Operation | None:
        """Move it. Returns what a step must run for that, if anything. `read_value` is always False."""


Average = Callable[[str, int, float], MovingAverage]  # (name, channels, first value) -> the moving average of this name


class PackedAverages:
    """All of a tower's in one variable.

    InceptionV3 has 188. As variables of their own, they would be a third of its graph's operations: each takes ten to make, to
    initialise, to read and to write. What is not float32, as the state of a random generator of an own model, is one by itself.
    """

    def __init__(self, outline: Outline, host: str = "") -> None:
        """`host`: the CPU beside the tower."""
        self._host = host
        states = [variable for variable in outline.variables if not variable.trainable]
        self._members = [variable for variable in states if variable.dtype == "float32"]
        self._others = {variable.name: variable for variable in states if variable.dtype != "float32"}
        self._values: dict[str, tf.Tensor] = {}
        self._moved: dict[str, tf.Tensor] = {}
        self._made: dict[str, tf.Variable] = {}  # of the others

    def __call__(self, name: str, channels: int, start: float) -> MovingAverage:
        """Made on the device on which the first is asked for."""
        if name in self._others:
            return self._other(self._others[name])
        if not self._values:
            self._make()
        return _Member(self, name)

    def value(self, name: str) -> tf.Tensor:
        return self._values[name]

    def move(self, name: str, value: tf.Tensor) -> tf.Operation | None:
        """All are written at once, with the last of them."""
        self._moved[name] = value
        if len(self._moved) < len(self._members):
            return None
        moved = tf.concat([tf.reshape(self._moved[member.name], [-1]) for member in self._members], 0)
        return self._variable.assign(moved, read_value=False)

    def _make(self) -> None:
        sizes = [member.size for member in self._members]
        self._variable = _local(self._first_values, "averages")
        values = tf.split(self._variable.read_value(), sizes)
        self._values = {
            member.name: tf.reshape(value, member.shape) for member, value in zip(self._members, values, strict=True)
        }

    def _first_values(self) -> tf.Tensor:
        if not any(member.values for member in self._members):
            return tf.repeat([member.start for member in self._members], [member.size for member in self._members])
        return tf.concat([tf.reshape(member.values(), [-1]) for member in self._members if member.values], 0)

    def _other(self, variable: Variable) -> MovingAverage:
        """On the CPU beside its tower: GPUs keep few kinds of whole numbers."""
        if variable.name not in self._made:
            with v1.device(None), v1.device(self._host):
                self._made[variable.name] = _local(variable.values, variable.name)
        found: MovingAverage = self._made[variable.name]
        return found


def _local(first: Callable[[], tf.Tensor] | None, name: str) -> tf.Variable:
    return v1.Variable(first, name=name, trainable=False, use_resource=True, collections=[v1.GraphKeys.LOCAL_VARIABLES])


class _Member:
    """One of them."""

    def __init__(self, pack: PackedAverages, name: str) -> None:
        self._pack = pack
        self._name = name

    def read_value(self) -> tf.Tensor:
        return self._pack.value(self._name)

    def assign(self, value: tf.Tensor, read_value: bool) -> tf.Operation | None:
        return self._pack.move(self._name, value)
