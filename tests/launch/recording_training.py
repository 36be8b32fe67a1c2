"""Real training that records what TensorFlow uses in `<data_dir>/used.json`."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf

from pytest_dtfperf.training import AgentConnection, task

LEVEL = os.environ.get("TF_CPP_MIN_LOG_LEVEL")  # as it was when this was imported, and TensorFlow with it

v1 = tf.compat.v1


def run(order: Mapping[str, Any], connection: AgentConnection) -> None:
    task.run(order, connection)
    used = {"operations": _list_operations(), "imported at": LEVEL, "cores": len(os.sched_getaffinity(0))}
    Path(order["spec"]["data_dir"], "used.json").write_text(json.dumps(used))


def _list_operations() -> list[str]:
    """Return the operations of a convolution: oneDNN rewrites graphs with its own operations."""
    metadata = v1.RunMetadata()
    with tf.Graph().as_default(), v1.Session() as session:
        images, weights = tf.random.normal([2, 8, 8, 4]), tf.random.normal([3, 3, 4, 4])
        folded = tf.raw_ops.Conv2D(input=images, filter=weights, strides=[1, 1, 1, 1], padding="SAME")
        session.run(folded, options=v1.RunOptions(output_partition_graphs=True), run_metadata=metadata)
    return sorted({node.op for graph in metadata.partition_graphs for node in graph.node})
