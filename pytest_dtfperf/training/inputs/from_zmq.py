"""Receive images from another process, which may be written in any language: docs/inputs.md describes the messages."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytest_dtfperf.errors import InfrastructureError, format_exit
from pytest_dtfperf.node.module_command import make_module_command
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.checks import ZMQ_PRODUCER
from pytest_dtfperf.training.inputs.python_sources import FedInput
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.inputs.zmq_producer import OTHERS_PATH, Batch
from pytest_dtfperf.training.models import Network

VERSION = 1  # of the protocol
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
        share = share_of(self._order, 0)
        return {
            "version": VERSION,
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
    right = {"version": VERSION, "images": {"dtype": "uint8", "shape": shape}, "labels": {"dtype": "int32", "shape": shape[:1]}}
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
