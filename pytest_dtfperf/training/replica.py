"""Build the graph of a worker, and run its steps.

The graph has one tower per device, and the variable update that joins them. A step is one call of a session, as fast as Python
can start it.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from time import perf_counter, process_time, sleep, time
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.evaluation import EvaluationTensors
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.packing import pack_small_variables, split_large_variables
from pytest_dtfperf.training.step_timestamps import Pair, TimestampLog, add_worker_timestamps, list_fetches
from pytest_dtfperf.training.tower import Tower
from pytest_dtfperf.training.variable_update import UpdateStrategy
from pytest_dtfperf.training.variable_update.barrier import Barrier, Broadcast

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
    stored: Mapping[str, Sequence[tf.Variable]]  # the same as they are stored: small ones in packs, large ones in parts
    initialise_shared: tf.Operation  # only by the chief
    initialise_own: tf.Operation
    begin: tf.Operation  # by all workers, after both initialisations
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
        stored=mode.variables,
        initialise_shared=v1.global_variables_initializer(),
        initialise_own=tf.group(v1.local_variables_initializer(), v1.tables_initializer()),
        begin=update.begin(),
        evaluation=evaluation,
        feeds=tuple({id(tower.feed): tower.feed for tower in towers}.values()),
        # The last operations, so that the names of all others are the same without them.
        timestamps=add_worker_timestamps(order, towers, devices) if any(order.timestamped) else {},
    )


def build_barriers_only(order: TaskOrder, devices: Devices) -> Replica:
    """Return the graph of a worker with devices that the chief's session computes on: it only takes part in barriers."""
    nothing = tf.no_op()
    return Replica(
        **_build_barriers(order), variables={}, stored={}, initialise_shared=nothing, initialise_own=nothing, begin=nothing
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
    network = get_network(order.spec)
    feed_class = load(order.spec.input.implementation)
    towers: list[Tower] = []
    for host, of_host in groupby(zip(devices.hosts, devices.towers, strict=True), key=lambda pair: pair[0]):
        of_worker = [device for _, device in of_host]
        worker = tf.DeviceSpec.from_string(host).task if order.cluster else order.index
        feed: TrainingInput = feed_class(replace(order, index=worker, num_devices=len(of_worker)), network, host)
        for local, device in enumerate(of_worker):
            towers.append(Tower(order, network, feed, update, number=len(towers), local=local, device=device))
    return towers


XLA_CLUSTER = "_XlaRun"  # the operation that runs a cluster which XLA has compiled


class Step:
    """A callable that trains one step and returns its loss. The first call also finds out where TensorFlow computes."""

    def __init__(self, session: tf.compat.v1.Session, replica: Replica, order: TaskOrder) -> None:
        self.devices: tuple[str, ...] = ()
        self.log = TimestampLog(order.name, replica.timestamps)
        self._timestamps = list_fetches(replica.timestamps)
        self._session = session
        self._replica = replica
        self._order = order
        self._begun = 0
        self._fetches = {True: [replica.loss, *self._timestamps, *replica.updates], False: [replica.loss, *replica.updates]}
        # A callable does not parse its fetches in every step. TensorFlow prunes a graph for each, so only needed ones are made.
        self._runs = {timestamped: session.make_callable(self._fetches[timestamped]) for timestamped in set(order.timestamped)}

    def __call__(self) -> float:
        timestamped = self._order.timestamped[self._begun % len(self._order.timestamped)]
        self._begun += 1
        return self._run_timestamped_step() if timestamped else self._run_plain_step()

    def _run_timestamped_step(self) -> float:
        cpu_s = process_time()
        self._sleep()
        called, called_s = time(), perf_counter()
        results = self._run(timestamped=True)
        self.log.note(cpu_s, called, called_s, results[1 : 1 + len(self._timestamps)])
        return float(results[0])

    def _run_plain_step(self) -> float:
        self._sleep()
        return float(self._run(timestamped=False)[0])

    def _sleep(self) -> None:
        """Sleep before the work, so that the other workers of a synchronous step wait for it, also in the last step."""
        if self._order.sleep_s:
            sleep(self._order.sleep_s)

    def _run(self, *, timestamped: bool) -> list[Any]:
        results: list[Any] = self._runs[timestamped]() if self.devices else self._run_first_step(self._fetches[timestamped])
        return results

    @property
    def operations(self) -> list[str]:
        """Return the names of the operations that a step fetches, without its timestamps, which compute nothing."""
        return [fetch.name if isinstance(fetch, tf.Operation) else fetch.op.name for fetch in self._fetches[False]]

    def _run_first_step(self, fetches: Sequence[Any]) -> list[Any]:
        options = v1.RunOptions(output_partition_graphs=True)
        metadata = v1.RunMetadata()
        results: list[Any] = self._session.run(fetches, options=options, run_metadata=metadata)
        self.devices = self._find_tower_devices(metadata)
        return results

    def _find_tower_devices(self, metadata: tf.compat.v1.RunMetadata) -> tuple[str, ...]:
        """Return the devices of the towers in the graphs that TensorFlow runs.

        Raises `InvalidMeasurement` if they are others.
        """
        names = {tensor.op.name for tensor in self._replica.computed}
        requested = self._replica.towers
        nodes = [node for graph in metadata.partition_graphs for node in graph.node]
        found = {node.device for node in nodes if node.name in names}
        # A gradient that XLA has compiled has no name any more. Then its tower's device has a cluster.
        found |= {node.device for node in nodes if node.op == XLA_CLUSTER and is_one_of(node.device, requested)}
        return check_devices(self._order.name, found, requested)


def check_devices(task: str, found: Collection[str], requested: Collection[str]) -> tuple[str, ...]:
    """Return the devices on which gradients are computed, sorted.

    Raises `InvalidMeasurement` unless they are those requested.
    """
    if len(found) != len(requested) or not all(is_one_of(device, requested) for device in found):
        raise InvalidMeasurement(
            f"{task} was to compute its gradients on {', '.join(sorted(requested))}, "
            f"TensorFlow computes them on {', '.join(sorted(found)) or 'no device it names'}"
        )
    return tuple(sorted(found))


def is_one_of(device: str, requested: Iterable[str]) -> bool:
    """Return whether the device is among the requested ones.

    Their names are short: they leave out the replica, and in a single process the job and the task.
    """
    have = tf.DeviceSpec.from_string(device)
    wants = [tf.DeviceSpec.from_string(short) for short in requested]
    parts = ("job", "task", "device_type", "device_index")
    return any(all(getattr(want, part) in (None, getattr(have, part)) for part in parts) for want in wants)
