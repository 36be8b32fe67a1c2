"""Train a step as a function: each replica computes gradients, the strategy adds them up, and all copies are updated."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.optimizers import Update, apply_all
from pytest_dtfperf.training.strategies.feeding import Batch, Given
from pytest_dtfperf.training.strategies.variables import Variables
from pytest_dtfperf.training.tower import Tower


class Trained(NamedTuple):
    """The results of a step of all replicas of a process."""

    loss: tf.Tensor  # their mean
    computed: Sequence[tf.Tensor]  # one tensor on each replica's device
    values: Sequence[tf.Tensor]  # of the variables, which they compute with
    gradients: Sequence[tf.Tensor]  # of all replicas; with `forward_only`, their results


class Replicas:
    """The replicas that a strategy runs. Methods are called within a function that is being traced."""

    def __init__(self, order: TaskOrder, strategy: tf.distribute.Strategy, variables: Variables) -> None:
        self._order = order
        self._network = network_of(order.spec)
        self._strategy = strategy
        self._variables = variables

    def train(self, batches: Sequence[Batch]) -> "Trained":
        """Train one step on a batch for each replica of this process."""
        losses, gradients, computed, values = self._strategy.run(self._compute, args=(self._distribute_batches(batches),))
        self._apply(self._variables.cut(gradients))
        local = self._strategy.experimental_local_results
        return Trained(
            loss=tf.add_n(local(losses)) / len(batches),
            computed=list(local(computed)),
            values=[copy for value in values for copy in local(value)],
            gradients=[copy for gradient in (gradients.values() or [computed]) for copy in local(gradient)],
        )

    def _distribute_batches(self, batches: Sequence[Batch]) -> Any:
        """Distribute the batches to the replicas. The replicas of a worker have consecutive numbers."""
        if len(batches) == 1:
            return batches[0]
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: batches[context.replica_id_in_sync_group % len(batches)]
        )

    def _compute(self, batch: Batch) -> tuple[tf.Tensor, dict[str, tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        """Compute one replica's gradients.

        Returns its loss, its gradients by variable, the last tensor computed, and the variables' values.
        """
        number = int(tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group))
        tower = Tower(
            self._order, self._network, Given(batch), self._variables,
            number=number, local=0, device="", average=self._variables.average,
        )  # fmt: skip
        return tower.loss, tower.gradients, tower.computed[-1], list(tower.values)

    def _apply(self, gradients: Mapping[str, tf.Tensor]) -> None:
        local = self._strategy.experimental_local_results
        updates = [
            Update(name, copy, [gradient])
            for name, mean in self._reduce_gradients(gradients).items()
            for copy, gradient in zip(self._variables.copies[name], local(mean), strict=True)
        ]
        if updates:
            apply_all(self._order.spec, updates, devices=self._strategy.num_replicas_in_sync, state=self._variables.state)

    def _reduce_gradients(self, gradients: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the mean gradients over the replicas that train together; the replica's own where it waits for no other."""
        if not gradients or self._strategy.num_replicas_in_sync == 1:
            return gradients
        pairs = [(gradient, self._variables[name]) for name, gradient in gradients.items()]
        return dict(zip(gradients, self._strategy.extended.batch_reduce_to(tf.distribute.ReduceOp.MEAN, pairs), strict=True))
