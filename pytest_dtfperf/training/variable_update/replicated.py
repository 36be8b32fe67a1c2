"""One process, a copy of all variables on each of its devices."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.all_reduce import Range, parse
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.all_reduce.reduction import HIERARCHICAL_COPY, Reduction
from pytest_dtfperf.training.variable_update.all_reduce.repacking import Towers, repacked
from pytest_dtfperf.training.variable_update.base import one_per_device
from pytest_dtfperf.training.variable_update.copies import Copies
from pytest_dtfperf.training.variable_update.staging import stage


class Replicated(Copies):
    """Gradients are averaged over the devices, and the same update is applied to each copy, so that all stay equal.

    Relaxed, a step applies the gradients of the step before: adding them need not wait for the backward pass. The first step
    has none to apply; weight decay, which is no part of them, it applies.
    """

    def __init__(self, order: TaskOrder, devices: Devices) -> None:
        super().__init__(order, devices)
        self._reduce = Reduction(order, devices, _ranges(order.spec))
        self._fill: list[tf.Operation] = []

    def begin(self) -> tf.Operation:
        return tf.group(*self._fill)

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        towers = [[tower[name] for name in self._copies] for tower in gradients]
        means = (self._late_means if self._spec.variable_consistency == "relaxed" else self._means)(towers)
        return one_per_device(self._apply(dict(zip(self._copies, zip(*means, strict=True), strict=True))))

    def _means(self, towers: Towers) -> Towers:
        return repacked(self._reduce, towers, self._devices.towers, parts=self._spec.gradient_repacking)

    def _late_means(self, towers: Towers) -> Towers:
        """Of the step before. Applied once this step has its own gradients, and so has read the variables."""
        at = zip(self._devices.towers, towers, strict=True)
        staged = [[stage(gradient, device, f"gradient{i}") for i, gradient in enumerate(tower)] for device, tower in at]
        self._fill += [each.fill for tower in staged for each in tower]
        means = self._means([[each.old for each in tower] for tower in staged])
        return [[each.then(mean) for each, mean in zip(*of_tower, strict=True)] for of_tower in zip(staged, means, strict=True)]


def _ranges(spec: Spec) -> Sequence[Range]:
    """Unless an algorithm is named, one device adds for all: the CPU, or the towers' devices in turn."""
    if spec.all_reduce_spec:
        return parse(spec.all_reduce_spec)
    if spec.hierarchical_copy:
        return [Range(HIERARCHICAL_COPY)]
    return [Range({"cpu": "pscpu", "gpu": "psgpu"}[spec.local_parameter_device])]
