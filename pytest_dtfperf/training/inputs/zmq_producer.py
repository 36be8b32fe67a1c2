"""Produce images in a process beside each worker, as data=zmq starts it: docs/inputs.md describes the messages.

    python -m pytest_dtfperf.training.inputs.zmq_producer PID [COMMAND...]

PID is the worker's: the kernel ends this process with it. The command of another producer replaces this process.
"""

import json
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.node import processes
from pytest_dtfperf.training.inputs import Share, iterate_batches

Batch = tuple[NDArray[np.uint8], NDArray[np.int32]]  # images (batch, height, width, channels), labels (batch,)

IMAGES = 1024  # in a pass
STRIDE = 16  # bytes from one image to the next: all differ, and making one costs a copy


def make_batches(share: Share, image_shape: tuple[int, int, int], classes: int, seed: int) -> Iterator[Batch]:
    """Yield a tower's batches of a random data set, without end. Each image is a window on the same noise."""
    size = int(np.prod(image_shape))
    noise = np.random.default_rng(seed).integers(0, 256, size + STRIDE * IMAGES, np.uint8)
    windows = np.lib.stride_tricks.as_strided(noise, (IMAGES, size), (STRIDE, 1), writeable=False)
    for chosen in iterate_batches(share, IMAGES, seed):
        yield windows[chosen].reshape(-1, *image_shape), np.asarray(chosen, np.int32) % classes


AHEAD = 2  # batches that wait to be taken
OTHERS_PATH = "DTFPERF_OTHERS_PYTHONPATH"  # the PYTHONPATH of the task's own environment


def main(worker: int, command: Sequence[str]) -> None:
    processes.die_with(worker)  # which survives exec
    others_path = os.environ.pop(OTHERS_PATH, "")
    if command:
        _find_modules_in(others_path)
        os.execvp(command[0], list(command))
    produce(json.loads(sys.stdin.readline()))


def _find_modules_in(path: str) -> None:
    """Restore the task's own PYTHONPATH: another producer may need another Python, for which our modules are wrong."""
    if path:
        os.environ["PYTHONPATH"] = path
    else:
        os.environ.pop("PYTHONPATH", None)


def produce(wanted: dict[str, Any]) -> None:
    import zmq

    threading.Thread(target=_leave_with_the_worker, daemon=True).start()
    shape = (wanted["batch_size"], *wanted["image_shape"])
    header = {"version": 1, "images": {"dtype": "uint8", "shape": shape}, "labels": {"dtype": "int32", "shape": shape[:1]}}
    header_bytes = json.dumps(header).encode()
    towers = [
        make_batches(
            Share(wanted["first_tower"] + tower, wanted["towers_of_all"], wanted["batch_size"]),
            tuple(wanted["image_shape"]),
            wanted["classes"],
            wanted["seed"],
        )
        for tower in range(wanted["towers"])
    ]
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.sndhwm = AHEAD
        socket.connect(wanted["endpoint"])
        for tower in cycle(towers):
            images, labels = next(tower)
            socket.send_multipart([header_bytes, images.tobytes(), labels.tobytes()])


def _leave_with_the_worker() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
