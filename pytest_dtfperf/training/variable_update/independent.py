"""Every device trains alone: what a training would reach if exchanging gradients took no time."""

from collections.abc import Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.training.variable_update.base import one_per_device
from pytest_dtfperf.training.variable_update.copies import Copies


class Independent(Copies):
    """Nothing is exchanged: workers only start and end their measured steps together. Networks drift apart, as is meant."""

    @property
    def variables(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Those of the first tower: the others are other networks."""
        return {name: copies[:1] for name, copies in self._copies.items()}

    def update(self, gradients: Sequence[Mapping[str, tf.Tensor]]) -> list[tf.Operation]:
        return one_per_device(self._apply({name: [tower[name] for tower in gradients] for name in self._copies}))
