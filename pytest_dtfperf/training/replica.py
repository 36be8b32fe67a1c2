"""Build the graph of a worker: one tower per device, and the variable update that joins them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.evaluation import EvaluationTensors
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.load import load
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.packing import pack_small_variables, split_large_variables
from pytest_dtfperf.training.step_timestamps import Pair, add_worker_timestamps
from pytest_dtfperf.training.tower import Tower
from pytest_dtfperf.training.variable_update.barrier import Barrier, Broadcast
from pytest_dtfperf.training.variable_update.base import UpdateStrategy

v1 = tf.compat.v1

BARRIERS = ("initialised", "start", "end")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The operations and tensors that a worker's session runs. Without towers of its own, a worker runs only the barriers."""

    barriers: Mapping[str, tf.Operation]
    broadcast: Broadcast
    shutdown: tf.Operation
    towers: Sequence[str] = ()  # the devices of the towers
    loss: tf.Tensor | None = None  # cross-entropy, mean over the towers of this graph
    updates: Sequence[tf.Operation] = ()  # a step runs these and the loss
    computed: Sequence[tf.Tensor] = ()  # the results of all towers, which show their devices
    variables: Mapping[str, Sequence[tf.Tensor]]  # trained ones by name, with their copies
    held: Mapping[str, Sequence[tf.Variable]]  # the same as stored: small ones in packs, large ones in parts
    initialise_shared: tf.Operation  # by the chief alone
    initialise_own: tf.Operation
    begin: tf.Operation  # run by all, after the two
    evaluation: EvaluationTensors | None = None
    feeds: Sequence[TrainingInput] = ()  # the inputs
    timestamps: Mapping[str, Pair] = field(default_factory=dict)  # by worker


def build(order: TaskOrder, devices: Devices) -> Replica:
    """Add a worker's part of the training to the current graph."""
    spec = order.spec
    v1.set_random_seed(spec.seed)
    mode: UpdateStrategy = load(spec.mode.implementation)(order, devices)
    update = pack_small_variables(split_large_variables(mode, order, devices), order)
    towers = _build_towers(order, devices, update)
    with v1.device(devices.host):
        loss = tf.add_n([tower.loss for tower in towers]) / len(towers)
    updates = [op for tower in towers for op in tower.updates]
    if not spec.forward_only:
        updates = [*update.update([tower.gradients for tower in towers]), *updates]
    evaluation = towers[0].evaluate() if spec.evaluates and order.is_chief else None
    return Replica(
        **_build_barriers(order),
        towers=devices.towers,
        loss=loss,
        updates=updates,
        computed=[tensor for tower in towers for tensor in tower.computed],
        variables=update.variables,
        held=mode.variables,
        initialise_shared=v1.global_variables_initializer(),
        initialise_own=tf.group(v1.local_variables_initializer(), v1.tables_initializer()),
        begin=update.begin(),
        evaluation=evaluation,
        feeds=tuple({id(tower.feed): tower.feed for tower in towers}.values()),
        timestamps=add_worker_timestamps(order, towers, devices)
        if any(order.timestamped)
        else {},  # last, so that the names of all other operations stay
    )


def build_barriers_only(order: TaskOrder, devices: Devices) -> Replica:
    """Return the graph of a worker with devices that the chief's session computes on: it only takes part in barriers."""
    nothing = tf.no_op()
    return Replica(
        **_build_barriers(order), variables={}, held={}, initialise_shared=nothing, initialise_own=nothing, begin=nothing
    )


def _build_barriers(order: TaskOrder) -> dict[str, Any]:
    barrier = Barrier(order)
    return {
        "barriers": {name: barrier.wait(name) for name in BARRIERS},
        "shutdown": barrier.shutdown(),
        "broadcast": barrier.broadcast(),
    }


def _build_towers(order: TaskOrder, devices: Devices, update: UpdateStrategy) -> list[Tower]:
    """Return one tower on each device, fed by the CPU beside it."""
    network = network_of(order.spec)
    feed_class = load(order.spec.input.implementation)
    towers: list[Tower] = []
    for host, of_host in groupby(zip(devices.hosts, devices.towers, strict=True), key=lambda pair: pair[0]):
        there = [device for _, device in of_host]
        worker = tf.DeviceSpec.from_string(host).task if order.cluster else order.index
        feed: TrainingInput = feed_class(replace(order, index=worker, num_devices=len(there)), network, host)
        for local, device in enumerate(there):
            towers.append(Tower(order, network, feed, update, number=len(towers), local=local, device=device))
    return towers
