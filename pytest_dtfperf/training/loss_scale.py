"""Scale the loss for float16, which has no numbers below 6e-8: smaller gradients would become zero.

    tower: loss x scale -> gradients in float16 -> float32 / scale      each tower's result is a true gradient, or inf or nan
    where variables are: all finite? -> update; grow the scale now and then. If not -> no update; halve the scale

The decision depends on the gradients that are applied. So it is the same for all towers and workers of one training, in every
mode.
"""

from collections.abc import Iterable

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.models.tensors import make_variable

v1 = tf.compat.v1

DEFAULT = 128.0  # tf_cnn_benchmarks' value for image models
LEAST = 1.0  # below it, even unscaled gradients do not fit into float16

_KEY = "dtfperf_loss_scale"  # the graph's collection of its one dynamic scale


class LossScale:
    """A constant loss scale."""

    def __init__(self, value: float | tf.Tensor) -> None:
        self._value = value

    def scale_loss(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self._value

    def unscale_gradients(self, gradients: Iterable[tf.Tensor]) -> list[tf.Tensor]:
        inverse = 1.0 / self._value
        return [gradient * inverse for gradient in gradients]


class DynamicLossScale(LossScale):
    """A loss scale that adapts, kept in a variable.

    It is on the first parameter server for all workers. Without one each worker has its own, and all of these make the same
    decisions.
    """

    def __init__(self, order: TaskOrder) -> None:
        self._every_n = order.spec.fp16_inc_loss_scale_every_n
        shared = bool(order.cluster.get("ps"))
        self._device = "/job:ps/task:0/device:CPU:0" if shared else _name_host(order)
        self._scale = _make_scale_variable("loss_scale", order.spec.fp16_loss_scale or DEFAULT, self._device, shared=shared)
        self._finite_steps = _make_scale_variable("loss_scale_normal_steps", 0.0, self._device, shared=shared)
        with v1.device(self._device):
            value = self._scale.read_value()
        with v1.device(_name_host(order)):  # a step reads the scale once, to scale and to unscale
            super().__init__(tf.identity(value))

    def are_finite(self, gradients: Iterable[tuple[str, tf.Tensor]]) -> tf.Tensor:
        """Return whether no value of these gradients is inf or nan. Each is checked on its device, given beside it."""
        by_device: dict[str, list[tf.Tensor]] = {}
        for device, gradient in gradients:
            with v1.device(device):
                # A sum is finite if all its parts are, short of 3e38; and it reads them only once.
                by_device.setdefault(device, []).append(tf.math.is_finite(tf.reduce_sum(gradient)))
        there = []
        for device, flags in by_device.items():
            with v1.device(device):
                there.append(tf.reduce_all(flags))
        with v1.device(self._device):
            return tf.reduce_all(there)

    def learn(self, finite: tf.Tensor) -> tf.Operation:
        """Halve the scale after a step that overflowed, and double it after so many consecutive steps that did not."""
        with v1.device(self._device):
            before, scale = self._finite_steps.read_value() + 1.0, self._scale.read_value()
            is_time = before >= self._every_n
            grown = tf.where(is_time, scale * 2.0, scale)
            new_scale = tf.where(finite, grown, tf.maximum(scale / 2.0, LEAST))
            new_steps = tf.where(tf.logical_and(finite, tf.logical_not(is_time)), before, 0.0)
            with v1.control_dependencies([new_scale, new_steps]):
                return tf.group(
                    self._scale.assign(new_scale, read_value=False), self._finite_steps.assign(new_steps, read_value=False)
                )


def loss_scale_of(order: TaskOrder) -> LossScale | None:
    """Return the loss scale of the current graph's towers; None in a precision that needs none."""
    if order.spec.precision != "fp16":
        return None
    if not order.spec.fp16_enable_auto_loss_scale:
        return static_loss_scale(order.spec)
    if not v1.get_collection(_KEY):
        v1.add_to_collection(_KEY, DynamicLossScale(order))
    return dynamic_loss_scale()


def static_loss_scale(spec: Spec) -> LossScale | None:
    value = DEFAULT if spec.fp16_loss_scale is None else spec.fp16_loss_scale
    return None if value == 1.0 else LossScale(value)


def dynamic_loss_scale() -> DynamicLossScale | None:
    """Return the current graph's dynamic loss scale."""
    found: list[DynamicLossScale] = v1.get_collection(_KEY)
    return found[0] if found else None


def _name_host(order: TaskOrder) -> str:
    return f"/job:worker/task:{order.index}/device:CPU:0" if order.cluster else "/device:CPU:0"


def _make_scale_variable(name: str, start: float, device: str, *, shared: bool) -> tf.Variable:
    with v1.device(device), v1.name_scope(None):
        return make_variable(start, name, shared=shared)
