"""The batches that inputs deliver to the towers of a worker, without a network: a program of its own, for the tests.

Each line on stdin is a request. A forked process answers it with a line on stdout: the batches of inputs, one input after the
other. Other requests make a data set, or train as a task does.
"""

import hashlib
import json
import os
import signal
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from pytest_dtfperf.extensions import load
from pytest_dtfperf.node.probes import Counters
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.task import run
from tests.training.inputs.sight import Sight

v1 = tf.compat.v1

DEADLINE_S = 120  # of an answer, many times what the longest takes: what hangs shall end, and its test fail

# Out of scope, a session closes itself, and waits for what reads and feeds. The process ends without.
_NEVER_CLOSED: list[tf.compat.v1.Session] = []


def _deliver(request: dict[str, Any]) -> dict[str, Any]:
    """The batches of some steps, tower by tower, or the error that ended one."""
    os.environ.update(request["environment"])
    sys.modules.update(dict.fromkeys(request["missing"]))  # None: it cannot be imported
    order = TaskOrder.from_json(request["order"])
    sight = Sight(tuple(request["image_shape"]), request["classes"])
    towers = [f"/device:CPU:{number}" for number in range(order.num_devices)]  # there is no server that would know the worker's
    made = load(request["input"] or order.spec.input.implementation)
    steps: list[Any] = []
    with tf.Graph().as_default():
        try:
            v1.set_random_seed(order.spec.seed)
            feed: TrainingInput = made(order, sight, "/device:CPU:0")
            wanted = [_feed_on(device, feed, tower) for tower, device in enumerate(towers)]
            if request["test_set"]:
                test = feed.test_set()
                wanted = [(test.images, test.labels)]
            session = v1.Session(config=v1.ConfigProto(device_count={"CPU": len(towers)}))
            session.run([v1.local_variables_initializer(), v1.tables_initializer()])
            if request["test_set"]:
                session.run(test.restart)
            _NEVER_CLOSED.append(session)
            feed.start(session)
            while len(steps) < request["steps"]:
                steps.append([_describe_batch(images, labels) for images, labels in _run(session, wanted, feed)])
        except Exception as exc:  # whatever it was, the test looks at it
            return {"steps": steps, "error": type(exc).__name__, "message": str(exc)}
    return {"steps": steps}


def _feed_on(device: str, feed: TrainingInput, tower: int) -> Any:
    with v1.device(device):
        return feed.batch(tower)


def _run(session: tf.compat.v1.Session, wanted: Any, feed: TrainingInput) -> Any:
    with explain_errors([feed]):
        return session.run(wanted)


def _describe_batch(images: Any, labels: Any) -> dict[str, Any]:
    """Return what tests compare of a batch: each image by a digest, labels, shapes and ranges."""
    return {
        "images": [hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()[:16] for image in images],
        "labels": labels.tolist(),
        "means": [float(image.mean()) for image in images],
        "shape": list(images.shape),
        "dtypes": [images.dtype.name, labels.dtype.name],
        "range": [float(images.min()), float(images.max())],
    }


class Line:
    """The connection of a task, without a wait for others."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}

    def send(self, kind: str, **data: Any) -> None:
        if kind == "report":
            self.report = data

    def wait(self) -> str:
        return "go"

    def counters(self) -> Counters:
        return Counters({}, cpu_s=0.0, peak_rss_bytes=0)


def _train(request: dict[str, Any]) -> dict[str, Any]:
    """A whole task's losses, or what ended it."""
    os.environ.update(request["environment"])
    line = Line()
    try:
        run(request["order"], line)
    except Exception as exc:  # whatever it was, the test looks at it
        return {"error": type(exc).__name__, "message": str(exc)}
    return {"loss": line.report["loss"]}


def _make(wanted: dict[str, Any]) -> str:
    from pytest_dtfperf.training.making import make_data_set

    return make_data_set(**wanted)


def _answer(request: dict[str, Any]) -> Any:
    if "make" in request:
        return _make(request["make"])
    return _train(request) if "train" in request else [_deliver(each) for each in request["deliver"]]


def _fork(request: dict[str, Any]) -> str:
    """A process for each request, which leaves nothing behind in this one."""
    hear, answer_pipe = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(DEADLINE_S)
            os.dup2(2, 1)
            with os.fdopen(answer_pipe, "w") as answer:
                json.dump(_answer(request), answer)
            code = 0
        finally:
            os._exit(code)
    os.close(answer_pipe)
    with os.fdopen(hear) as answer:
        output = answer.read()
    os.waitpid(child, 0)
    return output


if __name__ == "__main__":
    for line in sys.stdin:
        print(_fork(json.loads(line)), flush=True)
