"""Run the replicas of a strategy: their batches, their variables, and a step as a function.

A replica gets its batches from the input of its worker. The network's variables are made in the strategy's scope, and the
optimizer's state beside each of their copies. In a step each replica computes gradients, the strategy adds them up, and all
copies are updated.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.exchange_plan import assign_servers, compute_parts
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.pipeline import prefetch_batches
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.models.outline import Variable, get_outline
from pytest_dtfperf.training.models.tensors import join_parts, make_first_value
from pytest_dtfperf.training.optimizers import Update, apply_all
from pytest_dtfperf.training.packing import cut_gradients
from pytest_dtfperf.training.tower import Tower

Batch = tuple[tf.Tensor, tf.Tensor]  # images and labels, as `TrainingInput.batch` returns them


class FetchedInput(TrainingInput):
    """An input for a `Tower` that has one batch, which was fetched before."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def batch(self, tower: int) -> Batch:
        return self._batch

    def start(self, session: object) -> None:
        """Do nothing: the batch is there."""


def make_sources(order: TaskOrder, feed: TrainingInput, devices: Devices) -> list[Callable[[], Batch]]:
    """Return for each of a worker's towers a function that returns its next batch, to be called within a `tf.function`."""
    if feed.resident:
        return [_make_resident_source(feed, tower, device) for tower, device in enumerate(devices.towers)]
    with tf.device(devices.host):
        return [_make_pipeline_source(order, feed, tower) for tower in range(len(devices.towers))]


def _make_resident_source(feed: TrainingInput, tower: int, device: str) -> Callable[[], Batch]:
    with tf.device(device):
        batch = feed.batch(tower)
    return lambda: batch


def _make_pipeline_source(order: TaskOrder, feed: TrainingInput, tower: int) -> Callable[[], Batch]:
    iterator = iter(prefetch_batches(feed.dataset(tower), order.spec, order.num_devices))
    return lambda: next(iterator)


def dataset_of_worker(order: TaskOrder, feed: TrainingInput, worker: tf.Tensor) -> tf.data.Dataset:
    """Return a worker's batches, where each worker has one device.

    It is made on the worker, by one function for all workers.
    """
    towers = [feed.dataset(tower) for tower in range(order.spec.gpus)]
    own = tf.data.Dataset.from_tensors(tf.cast(worker, tf.int64)).repeat()
    return prefetch_batches(tf.data.Dataset.choose_from_datasets(towers, own, stop_on_empty_dataset=False), order.spec, 1)


class Variables:
    """All variables of a network, made before the functions that use them. A `Tower` uses this as its variable update.

    On parameter servers, a strategy places variables in turn, unless it gets another one to colocate with. So where the spec's
    placement applies to strategies, there is a number on each server first, and every variable is colocated with one of these.
    """

    def __init__(self, strategy: tf.distribute.Strategy, order: TaskOrder) -> None:
        self._strategy = strategy
        self._spec = order.spec
        self._state: dict[tuple[int, str], tf.Variable] = {}
        placed = order.spec.num_ps and VARIABLE_PLACEMENTS[order.spec.variable_placement].in_strategies
        self._parts = compute_parts(order) if placed else {}
        self._servers = assign_servers(order, order.spec.num_ps) if placed else {}
        network = get_outline(order.spec)
        self._made: dict[str, tf.Variable] = {}  # by the name of a variable or a part
        with strategy.scope():
            self._there = [tf.Variable(0.0, trainable=False) for _ in range(order.spec.num_ps if placed else 0)]
            for variable in network.variables:
                self._made |= self._make_parts(variable) if variable.name in self._parts else self._make_whole(variable)
        self._trained = [part for each in network.trained for part in self._parts.get(each.name, [each.name])]

    def _make_whole(self, variable: Variable) -> dict[str, tf.Variable]:
        return {variable.name: self._make(variable, variable.name, lambda: make_first_value(variable, self._spec.seed))}

    def _make_parts(self, variable: Variable) -> dict[str, tf.Variable]:
        """Make the parts of a variable from a first value that is drawn once, here."""
        parts = self._parts[variable.name]
        firsts = tf.split(make_first_value(variable, self._spec.seed), list(parts.values()))
        return {
            part: self._make(variable, part, partial(tf.identity, first)) for part, first in zip(parts, firsts, strict=True)
        }

    def _make(self, variable: Variable, name: str, first: Callable[[], tf.Tensor]) -> tf.Variable:
        """Make a variable. Moving averages belong to each replica, and their mean is taken only where one is read."""
        synchronization, aggregation = tf.VariableSynchronization, tf.VariableAggregation
        with self._use_server(name):
            return tf.Variable(
                first,
                name=name,
                trainable=variable.trainable,
                synchronization=synchronization.AUTO if variable.trainable else synchronization.ON_READ,
                aggregation=aggregation.MEAN if variable.dtype == "float32" else aggregation.ONLY_FIRST_REPLICA,
            )

    def _use_server(self, name: str) -> AbstractContextManager[None]:
        if name not in self._servers:  # a moving average, or the strategy places all
            return nullcontext()
        beside: AbstractContextManager[None] = self._strategy.extended.colocate_vars_with(self._there[self._servers[name]])
        return beside

    @property
    def copies(self) -> Mapping[str, Sequence[tf.Variable]]:
        """Return all copies known to this task, by the names of trained variables or parts."""
        return {name: self._copies(self._made[name]) for name in self._trained}

    @property
    def trained(self) -> dict[str, list[Any]]:
        """Return the values of all copies as numpy arrays, by the names of trained variables."""
        copies = {name: [copy.numpy() for copy in copies] for name, copies in self.copies.items()}
        whole = {
            name: [np.concatenate(of_copy) for of_copy in zip(*(copies.pop(part) for part in parts), strict=True)]
            for name, parts in self._parts.items()
        }
        return copies | whole

    @property
    def values(self) -> dict[str, Any]:
        """Return the first replica's values of all variables as numpy arrays by name, moving averages included."""
        found = {name: self._copies(made)[0].read_value().numpy() for name, made in self._made.items()}
        whole = {name: np.concatenate([found.pop(part) for part in parts]) for name, parts in self._parts.items()}
        return found | whole

    def cut(self, gradients: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Return the gradients with those of the parts at the position of each variable that is cut."""
        return cut_gradients(gradients, self._parts) if self._parts else gradients

    def _copies(self, variable: tf.Variable) -> Sequence[tf.Variable]:
        found: Sequence[tf.Variable] = self._strategy.experimental_local_results(variable)
        return found

    def __getitem__(self, name: str) -> tf.Variable:
        return self._made[name]

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return the value on the replica for which a function is being traced."""
        if name in self._parts:
            return join_parts([self._made[part].read_value() for part in self._parts[name]])
        return self._made[name].read_value()

    def average(self, name: str, channels: int, start: float) -> tf.Variable:
        return self._made[name]

    def state(self, variable: tf.Variable, name: str, shape: Sequence[int], start: float) -> tf.Variable:
        """Return a variable of the optimizer, beside one copy. It is made while tracing, and lifted out of the function."""
        key = (id(variable), name)
        if key not in self._state:
            with tf.init_scope(), self._colocate(variable):
                kind = tf.float32 if isinstance(start, float) else tf.int64
                self._state[key] = tf.Variable(tf.fill(shape, tf.constant(start, kind)), trainable=False, name=name)
        return self._state[key]

    def _colocate(self, variable: tf.Variable) -> AbstractContextManager[None]:
        """Return the scope of the variable's device. In a strategy's scope, `tf.device` may have no effect."""
        colocated = self._strategy.extended.colocate_vars_with
        where: AbstractContextManager[None] = (
            colocated(variable) if tf.distribute.has_strategy() else tf.device(variable.device)
        )
        return where


class StepResult(NamedTuple):
    """The results of a step of all replicas of a process."""

    loss: tf.Tensor  # their mean
    computed: Sequence[tf.Tensor]  # one tensor on each replica's device
    values: Sequence[tf.Tensor]  # of the variables, which they compute with
    gradients: Sequence[tf.Tensor]  # of all replicas; with `forward_only`, their results


class Replicas:
    """The replicas that a strategy runs. Methods are called within a function that is being traced."""

    def __init__(self, order: TaskOrder, strategy: tf.distribute.Strategy, variables: Variables) -> None:
        self._order = order
        self._network = get_network(order.spec)
        self._strategy = strategy
        self._variables = variables

    def train(self, batches: Sequence[Batch]) -> "StepResult":
        """Train one step on a batch for each replica of this process."""
        losses, gradients, computed, values = self._strategy.run(self._compute, args=(self._distribute_batches(batches),))
        self._apply(self._variables.cut(gradients))
        local = self._strategy.experimental_local_results
        return StepResult(
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
            self._order, self._network, FetchedInput(batch), self._variables,
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
