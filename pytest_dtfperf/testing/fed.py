"""Print the first two batches of an input for each spec in a list on stdin."""

import json
import sys
from typing import Any

import pytest_dtfperf.training.first_import  # noqa: F401 - before all others

# isort: split
import numpy as np
import tensorflow as tf

from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.models import get_network

v1 = tf.compat.v1
_CPU = "/device:CPU:0"


def main() -> None:
    print(json.dumps([_feed_batches(Spec.from_json(spec)) for spec in json.load(sys.stdin)]))


def _feed_batches(spec: Spec) -> list[dict[str, Any]]:
    order = TaskOrder(run="fed", spec=spec, job="worker", index=0, cluster={}, num_devices=1, device="cpu", threads=1)
    feed: TrainingInput = load(spec.input.implementation)(order, get_network(spec), _CPU)
    with tf.Graph().as_default(), v1.device(_CPU):
        batch = feed.batch(0)
        prepared = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer())
        with v1.Session() as session:
            session.run(prepared)
            feed.start(session)
            return [_describe_batch(*session.run(batch)) for _ in range(2)]


def _describe_batch(images: Any, labels: Any) -> dict[str, Any]:
    return {
        "images": [images.shape, str(images.dtype)],
        "finite": bool(np.isfinite(images).all()),
        "labels_of": [labels.shape, str(labels.dtype)],
        "labels": [int(labels.min()), int(labels.max())],
    }


if __name__ == "__main__":
    main()
