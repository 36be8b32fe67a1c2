"""Run one training step: the call of a session, as fast as Python can start it."""

from collections.abc import Collection, Iterable, Sequence
from time import perf_counter, process_time, sleep, time
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.replica import Replica
from pytest_dtfperf.training.step_timestamps import TimestampLog, list_fetches

v1 = tf.compat.v1

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
        asked = self._replica.towers
        nodes = [node for graph in metadata.partition_graphs for node in graph.node]
        found = {node.device for node in nodes if node.name in names}
        # A gradient that XLA has compiled has no name any more. Then its tower's device has a cluster.
        found |= {node.device for node in nodes if node.op == XLA_CLUSTER and is_one_of(node.device, asked)}
        return check_devices(self._order.name, found, asked)


def check_devices(task: str, found: Collection[str], asked: Collection[str]) -> tuple[str, ...]:
    """Return the devices on which gradients are computed, sorted.

    Raises `InvalidMeasurement` unless they are those requested.
    """
    if len(found) != len(asked) or not all(is_one_of(device, asked) for device in found):
        raise InvalidMeasurement(
            f"{task} was to compute its gradients on {', '.join(sorted(asked))}, "
            f"TensorFlow computes them on {', '.join(sorted(found)) or 'no device it names'}"
        )
    return tuple(sorted(found))


def is_one_of(device: str, asked: Iterable[str]) -> bool:
    """Return whether the device is among the requested ones.

    Their names are short: they leave out the replica, and in a single process the job and the task.
    """
    have = tf.DeviceSpec.from_string(device)
    wants = [tf.DeviceSpec.from_string(short) for short in asked]
    parts = ("job", "task", "device_type", "device_index")
    return any(all(getattr(want, part) in (None, getattr(have, part)) for part in parts) for want in wants)
