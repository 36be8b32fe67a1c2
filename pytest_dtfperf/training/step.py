"""One training step, as fast as Python can start it."""

from time import sleep
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.replica import Replica

v1 = tf.compat.v1


class Step:
    """Call it for a step; returns the loss. The first call also finds out where TensorFlow computes the gradients."""

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

    def _first(self) -> list[Any]:
        options = v1.RunOptions(output_partition_graphs=True)
        metadata = v1.RunMetadata()
        results: list[Any] = self._session.run(self._fetches, options=options, run_metadata=metadata)
        self.devices = self._placed(metadata)
        return results

    def _placed(self, metadata: tf.compat.v1.RunMetadata) -> tuple[str, ...]:
        """The gradients' devices in the graphs TensorFlow runs, one per tower. Raises `InvalidMeasurement` if others."""
        asked = {gradient.op.name: gradient.device for gradient in self._replica.gradients}
        nodes = (node for graph in metadata.partition_graphs for node in graph.node if node.name in asked)
        found = sorted({node.device for node in nodes})
        kind = f"/device:{self._order.device.upper()}:"
        if len(found) != self._order.num_devices or not all(kind in device for device in found):
            raise InvalidMeasurement(
                f"{self._order.name} was to compute its gradients on {', '.join(sorted(set(asked.values())))}, "
                f"TensorFlow computes them on {', '.join(found) or 'no device it names'}"
            )
        return tuple(found)
