"""One training step, as fast as Python can start it."""

from collections.abc import Collection, Iterable
from time import sleep
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.replica import Replica

v1 = tf.compat.v1

XLA_CLUSTER = "_XlaRun"  # the operation that stands for all that XLA has compiled into one


class Step:
    """Call it for a step; returns the loss. The first call also finds out where TensorFlow computes."""

    def __init__(self, session: tf.compat.v1.Session, replica: Replica, order: TaskOrder) -> None:
        self.devices: tuple[str, ...] = ()
        self._session = session
        self._replica = replica
        self._order = order
        self._fetches = [replica.loss, *replica.updates]
        self._run = session.make_callable(self._fetches)  # spares taking the fetches apart in every step

    def __call__(self) -> float:
        if self._order.sleep_s:  # before the work, so that the others of a synchronous step wait for it, in the last step too
            sleep(self._order.sleep_s)
        results = self._run() if self.devices else self._first()
        return float(results[0])

    @property
    def operations(self) -> list[str]:
        """Names of those that a step asks for."""
        return [fetch.name if isinstance(fetch, tf.Operation) else fetch.op.name for fetch in self._fetches]

    def _first(self) -> list[Any]:
        options = v1.RunOptions(output_partition_graphs=True)
        metadata = v1.RunMetadata()
        results: list[Any] = self._session.run(self._fetches, options=options, run_metadata=metadata)
        self.devices = self._placed(metadata)
        return results

    def _placed(self, metadata: tf.compat.v1.RunMetadata) -> tuple[str, ...]:
        """The towers' devices in the graphs TensorFlow runs, one per tower. Raises `InvalidMeasurement` if others."""
        names = {tensor.op.name for tensor in self._replica.computed}
        asked = self._replica.towers
        nodes = [node for graph in metadata.partition_graphs for node in graph.node]
        found = {node.device for node in nodes if node.name in names}
        # A gradient that XLA has compiled has no name any more. Then its tower's device has a cluster.
        found |= {node.device for node in nodes if node.op == XLA_CLUSTER and is_one_of(node.device, asked)}
        return as_asked(self._order.name, found, asked)


def as_asked(task: str, found: Collection[str], asked: Collection[str]) -> tuple[str, ...]:
    """The devices on which gradients are computed, in order. Raises `InvalidMeasurement` if those asked for are others."""
    if len(found) != len(asked) or not all(is_one_of(device, asked) for device in found):
        raise InvalidMeasurement(
            f"{task} was to compute its gradients on {', '.join(sorted(asked))}, "
            f"TensorFlow computes them on {', '.join(sorted(found)) or 'no device it names'}"
        )
    return tuple(sorted(found))


def is_one_of(device: str, asked: Iterable[str]) -> bool:
    """Asked-for names are short: they leave out the replica, and in a lone process the job and the task."""
    have = tf.DeviceSpec.from_string(device)
    wants = [tf.DeviceSpec.from_string(short) for short in asked]
    parts = ("job", "task", "device_type", "device_index")
    return any(all(getattr(want, part) in (None, getattr(have, part)) for part in parts) for want in wants)
