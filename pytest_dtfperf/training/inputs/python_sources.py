"""Feed images from Python: by threads that fill TensorFlow's queues, by generators through tf.data, and from other processes.

Another process may be written in any language: docs/inputs.md describes its messages.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import cycle
from time import perf_counter
from typing import Any, Self

import numpy as np
import tensorflow as tf

from pytest_dtfperf.errors import InfrastructureError, SpecError, format_exit
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER
from pytest_dtfperf.traces import FED_QUEUE
from pytest_dtfperf.training.inputs import TrainingInput, compute_share
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, convert_format, mark_unconverted, on_host, scale_around_zero
from pytest_dtfperf.training.inputs.zmq_producer import OTHERS_PATH, Batch, make_batches
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1

ENDED = EOFError("it has ended")


class FedInput(TrainingInput):
    """The base of inputs that threads feed: each tower takes its batches from a queue of its own.

    Derived classes define in `feeds` which thread fills which queues. Images are sent to the tower's device as bytes, and
    scaled to numbers from -1 to 1 there.
    """

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host
        self._queues: list[_Queue] = []
        self._failures: list[Failure] = []

    def feeds(self) -> Sequence[tuple[Sequence[int], Callable[[], Iterator[Batch]]]]:
        """Return for each thread its towers, and the function that yields their batches in turn, called in that thread."""
        raise NotImplementedError

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        spec = self._order.spec
        with on_host(self._host):
            queue = _Queue((spec.batch_size, *self._network.image_shape), max(1, spec.datasets_prefetch_buffer_size), tower)
        self._queues.append(queue)
        return convert_format(scale_around_zero(queue.images), spec.data_format), tf.identity(queue.labels)

    def start(self, session: tf.compat.v1.Session) -> None:
        for towers, make in self.feeds():
            queues = [self._queues[tower].open(session) for tower in towers]
            thread = threading.Thread(target=self._fill, args=(queues, make), daemon=True, name=f"feeds towers {towers}")
            thread.start()

    def explain(self, message: str) -> InfrastructureError | None:
        return self._failures[0].make_error(self._order.name) if self._failures else None

    def _fill(self, queues: Sequence["_Queue"], make: Callable[[], Iterator[Batch]]) -> None:
        """Fill the queues until the batches end. They should not: a step that waits for one then fails immediately."""
        delivered = 0
        cause: Exception = ENDED
        try:
            for queue, (images, labels) in zip(cycle(queues), make(), strict=False):
                queue.put(images, labels)
                delivered += 1
        except tf.errors.CancelledError:  # the session has ended
            return
        except Exception as exc:  # any error is reported by the step that waits
            cause = exc
        self._failures.append(Failure(cause, delivered, perf_counter()))
        for queue in queues:
            queue.close()


class Failure:
    """The reason why a producer has stopped, and when it did."""

    def __init__(self, cause: Exception, batches: int, at: float) -> None:
        self._cause = cause
        self._batches = batches
        self._at = at

    def make_error(self, task: str) -> InfrastructureError:
        cause = self._cause if isinstance(self._cause, InfrastructureError) else f"{type(self._cause).__name__}: {self._cause}"
        error = InfrastructureError(
            f"the producer of {task}'s images failed after {self._batches} batches, and the next step that wanted one was "
            f"ended {perf_counter() - self._at:.3f} s later: {cause}"
        )
        error.__cause__ = self._cause
        return error


class _Queue:
    """A queue of batches in the graph, which a thread fills once a session has opened it."""

    put: Callable[..., object]  # images and labels
    _session: tf.compat.v1.Session

    def __init__(self, shape: tuple[int, ...], capacity: int, tower: int) -> None:
        kinds, shapes = [tf.uint8, tf.int32], [shape, shape[:1]]
        queue = v1.FIFOQueue(capacity, kinds, shapes, name=f"{FED_QUEUE}{tower}")
        self._given = [v1.placeholder(kind, shape) for kind, shape in zip(kinds, shapes, strict=True)]
        self._enqueue = queue.enqueue(self._given)
        self._close = queue.close(cancel_pending_enqueues=True)
        self.images, self.labels = queue.dequeue()
        self._dropped = queue.dequeue()[1].op

    def open(self, session: tf.compat.v1.Session) -> Self:
        self._session = session
        self.put = session.make_callable(self._enqueue, feed_list=self._given)
        return self

    def close(self) -> None:
        """Close the queue and discard its batches, so that the very next step fails."""
        self._session.run(self._close)
        with suppress(tf.errors.OutOfRangeError):
            while True:
                self._session.run(self._dropped)


class PythonQueue(FedInput):
    """An input with a thread and a queue per tower; the queue has `datasets_prefetch_buffer_size` batches."""

    def feeds(self) -> Sequence[tuple[Sequence[int], Callable[[], Iterator[Batch]]]]:
        return [([tower], partial(self.batches, tower)) for tower in range(self._order.num_devices)]

    def batches(self, tower: int) -> Iterator[Batch]:
        """Return an endless iterator over a tower's batches."""
        return _make_batches(self._order, self._network, tower)


def _make_batches(order: TaskOrder, network: Network, tower: int) -> Iterator[Batch]:
    return make_batches(compute_share(order, tower), network.image_shape, network.classes, order.spec.seed)


class PythonDataset(PipelineInput):
    """An input from a generator per tower, by `tf.data.Dataset.from_generator`.

    It is `datasets_prefetch_buffer_size` batches ahead.
    """

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        if order.spec.mode.single_session and order.workers > 1:
            raise SpecError(
                f"variable_update={order.spec.variable_update} has one session for all workers, and data=python-dataset a "
                "generator in each worker, which that session could not ask. data=python-queue feeds any worker."
            )
        self._order = order
        self._network = network
        self._host = host
        self._failures: list[Failure] = []

    def dataset(self, tower: int) -> tf.data.Dataset:
        batch_size = self._order.spec.batch_size
        kinds = (
            tf.TensorSpec((batch_size, *self._network.image_shape), tf.uint8),
            tf.TensorSpec((batch_size,), tf.int32),
        )
        return tf.data.Dataset.from_generator(partial(self._check_batches, tower), output_signature=kinds).map(
            self._convert_batch
        )

    def batches(self, tower: int) -> Iterator[Batch]:
        """Return an endless iterator over a tower's batches."""
        return _make_batches(self._order, self._network, tower)

    def explain(self, message: str) -> InfrastructureError | None:
        return self._failures[0].make_error(self._order.name) if self._failures else None

    @mark_unconverted
    def _convert_batch(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return convert_format(scale_around_zero(images), self._order.spec.data_format), labels

    def _check_batches(self, tower: int) -> Iterator[Batch]:
        delivered = 0
        try:
            for batch in self.batches(tower):
                yield batch
                delivered += 1
        except Exception as exc:
            self._failures.append(Failure(exc, delivered, perf_counter()))
            raise
        self._failures.append(Failure(ENDED, delivered, perf_counter()))


PROTOCOL_VERSION = 1  # of the protocol
COMMAND = ZMQ_PRODUCER  # environment variable with the command of another producer
PATIENCE_MS = 100  # for a message, before the producer is checked

# Ending a context waits for zmq's own threads, and hung when the producer was killed at the same time. A
# step would wait with it. The process's end needs none of it.
_NEVER_ENDED: list[Any] = []


class ZmqProducer(FedInput):
    """An input from a producer that the worker starts. It sends batches for all of the worker's towers, and ends with it."""

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        super().__init__(order, network, host)
        try:
            import zmq
        except ModuleNotFoundError as exc:
            raise InfrastructureError(
                f"data=zmq needs pyzmq on every host, and the Python of {order.name}, {sys.executable}, has none: "
                'pip install "pytest-dtfperf[zmq]", or pyzmq alone'
            ) from exc
        self._zmq = zmq

    def feeds(self) -> Sequence[tuple[Sequence[int], Callable[[], Iterator[Batch]]]]:
        return [(range(self._order.num_devices), self._receive_batches)]

    def _receive_batches(self) -> Iterator[Batch]:
        wanted = self._build_request()
        context = self._zmq.Context()
        _NEVER_ENDED.append(context)
        with context.socket(self._zmq.PULL) as socket:
            socket.rcvhwm = max(1, self._order.spec.datasets_prefetch_buffer_size)  # zmq's default, 1000, would fill the memory
            socket.bind(wanted["endpoint"])
            with start_producer(wanted) as producer:
                try:
                    while True:
                        if producer.poll() is not None:
                            raise InfrastructureError(_describe_end(producer))
                        if socket.poll(PATIENCE_MS):
                            yield read_batch(socket.recv_multipart(copy=False), wanted)
                finally:
                    producer.kill()

    def _build_request(self) -> dict[str, Any]:
        """Return the request to the producer: one line of JSON on its stdin."""
        share = compute_share(self._order, 0)
        return {
            "version": PROTOCOL_VERSION,
            "endpoint": f"ipc://@dtfperf-{uuid.uuid4().hex}",  # an abstract address, without a file to remove
            "batch_size": share.batch_size,
            "image_shape": list(self._network.image_shape),
            "classes": self._network.classes,
            "seed": self._order.spec.seed,
            "first_tower": share.tower,
            "towers": self._order.num_devices,
            "towers_of_all": share.towers,
        }


def start_producer(wanted: dict[str, Any]) -> "subprocess.Popen[bytes]":
    """Start a producer, and return its process.

    The kernel ends it with the thread that started it, and so with this process.
    """
    other = shlex.split(os.environ.get(COMMAND, ""))
    if other and shutil.which(other[0]) is None:
        raise InfrastructureError(f"there is no program {other[0]}, which {COMMAND}={shlex.join(other)} names as the producer")
    command = make_module_command(sys.executable, "pytest_dtfperf.training.inputs.zmq_producer", str(os.getpid()), *other)
    ours = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": ours, OTHERS_PATH: os.environ.get("PYTHONPATH", "")}
    producer = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    assert producer.stdin is not None
    producer.stdin.write(f"{json.dumps(wanted)}\n".encode())
    producer.stdin.flush()
    return producer


def read_batch(message: Sequence[Any], wanted: dict[str, Any]) -> Batch:
    """Return the images and labels in a message. Raises `InfrastructureError` if they are not those requested."""
    shape = [wanted["batch_size"], *wanted["image_shape"]]
    right = {
        "version": PROTOCOL_VERSION,
        "images": {"dtype": "uint8", "shape": shape},
        "labels": {"dtype": "int32", "shape": shape[:1]},
    }
    try:
        header, images, labels = message
        header_bytes = json.loads(bytes(header))
    except ValueError as exc:
        raise InfrastructureError(f"it sent a message that is not a header, images and labels: {exc}") from exc
    if header_bytes != right:
        raise InfrastructureError(
            f"it sent a batch with the header {json.dumps(header_bytes)}, but was asked for {json.dumps(right)}"
        )
    try:
        batch = np.frombuffer(images, np.uint8).reshape(shape), np.frombuffer(labels, "<i4").reshape(shape[:1])
    except ValueError as exc:
        raise InfrastructureError(f"it sent a batch with another number of bytes than in its header: {exc}") from exc
    least, most = batch[1].min(), batch[1].max()
    if least < 0 or most >= wanted["classes"]:
        raise InfrastructureError(f"it sent labels from {least} to {most}, outside 0 to {wanted['classes'] - 1}")
    return batch


def _describe_end(producer: "subprocess.Popen[bytes]") -> str:
    how = format_exit(producer.returncode)
    return f"the process {producer.pid} ({os.environ.get(COMMAND, 'ours')}) {how}. Its output is in this task's log."
