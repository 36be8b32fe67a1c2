"""The graph a worker runs: one tower per device, and what makes them one training."""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pytest_dtfperf.spec import INPUTS, MODELS, TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.inputs import Input, TestSet
from pytest_dtfperf.training.models import Network
from pytest_dtfperf.training.models.layers import BATCH_NORM, Layers
from pytest_dtfperf.training.variable_update.base import VariableUpdate

v1 = tf.compat.v1

MEETINGS = ("initialised", "start", "end")


@dataclass(frozen=True)
class Evaluation:
    """Counts the right answers on the test set, batch by batch."""

    test_set: TestSet
    right: tf.Tensor  # how many of a batch
    images: tf.Tensor  # how many there were


@dataclass(frozen=True)
class Replica:
    """What a worker's session is asked for."""

    loss: tf.Tensor  # cross-entropy, mean over this worker's towers
    updates: Sequence[tf.Operation]  # a step is these and the loss
    gradients: Sequence[tf.Tensor]  # of all towers, to see where they are computed
    variables: Mapping[str, Sequence[tf.Variable]]  # trained ones by name, with their copies
    initialise_shared: tf.Operation  # by the chief alone
    initialise_own: tf.Operation
    meetings: Mapping[str, tf.Operation]
    evaluation: Evaluation | None


def build(order: TaskOrder, devices: Devices) -> Replica:
    """Add a worker's part of the training to the current graph."""
    spec = order.spec
    v1.set_random_seed(spec.seed)
    network: Network = _load(MODELS[spec.model].implementation)()
    feed: Input = _load(INPUTS[spec.data])(order, network, devices.host)
    update: VariableUpdate = _load(spec.mode.implementation)(order, devices)
    towers = [_Tower(order, network, feed, update, number, device) for number, device in enumerate(devices.towers)]
    with v1.device(devices.host):
        loss = tf.add_n([tower.loss for tower in towers]) / len(towers)
    updates = [*update.update([tower.gradients for tower in towers]), *(op for tower in towers for op in tower.updates)]
    meetings = {place: update.meet(place) for place in MEETINGS}
    evaluation = towers[0].evaluate(feed.test_set(), devices.host) if spec.evaluate and order.is_chief else None
    return Replica(
        loss=loss,
        updates=updates,
        gradients=[gradient for tower in towers for gradient in tower.computed],
        variables=update.variables,
        initialise_shared=v1.global_variables_initializer(),
        initialise_own=tf.group(v1.local_variables_initializer(), v1.tables_initializer()),
        meetings=meetings,
        evaluation=evaluation,
    )


class _Tower:
    """One replica of the network, on one device."""

    def __init__(
        self, order: TaskOrder, network: Network, feed: Input, update: VariableUpdate, number: int, device: str
    ) -> None:
        self._order = order
        self._network = network
        self._update = update
        self._number = number
        self._device = device
        self._values: dict[str, tf.Tensor] = {}
        self._averages: dict[str, tf.Variable] = {}
        with v1.device(device), v1.name_scope(f"tower{number}"):
            images, labels = feed.batch(number)
            net = self._layers(training=True)
            answers = network.logits(net, images)
            self.loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=answers))
            self.computed = tf.gradients(self.loss, list(self._values.values()))
            self.gradients = self._decayed()
        self.updates = net.updates

    def _layers(self, *, training: bool) -> Layers:
        return Layers(
            self._variable,
            self._averages,
            data_format=self._order.spec.data_format,
            seed=self._order.spec.seed,
            tower=f"{self._order.name}/{self._number}",
            training=training,
            native_nchw=self._order.device == "gpu",
        )

    def _variable(self, name: str, shape: Sequence[int], initial: Any) -> tf.Tensor:
        if name not in self._values:
            self._values[name] = self._update.variable(self._number, name, shape, initial)
        return self._values[name]

    def _decayed(self) -> dict[str, tf.Tensor]:
        """With weight decay's gradient added. It is known, so the loss it belongs to, which nobody looks at, is never computed.

        As in tf_cnn_benchmarks, all variables decay but batch norm's.
        """
        decay = self._order.spec.weight_decay
        return {
            name: gradient if decay == 0 or f"/{BATCH_NORM}/" in name else gradient + decay * value
            for (name, value), gradient in zip(self._values.items(), self.computed, strict=True)
        }

    def evaluate(self, test_set: TestSet, host: str) -> Evaluation:
        """The same variables in a second network, without dropout and with batch norm's moving averages."""
        with v1.device(self._device), v1.name_scope("evaluation"):
            logits = self._network.logits(self._layers(training=False), test_set.images)
        with v1.device(host):
            answers = tf.argmax(logits, 1, tf.int32)
            right = tf.reduce_sum(tf.cast(tf.equal(answers, test_set.labels), tf.int32))
            return Evaluation(test_set, right, tf.size(test_set.labels))


def _load(implementation: str) -> Any:
    module, _, name = implementation.partition(":")
    return getattr(importlib.import_module(module), name)
