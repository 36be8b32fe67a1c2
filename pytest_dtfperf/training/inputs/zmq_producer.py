"""A producer of images, as data=zmq starts one beside each worker: docs/inputs.md has what goes over the socket.

    python -m pytest_dtfperf.training.inputs.zmq_producer PID [COMMAND...]

PID is the worker's: the kernel ends this process with it. Another producer's command takes this one's place.
"""

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from pytest_dtfperf.training.inputs.made import made
from pytest_dtfperf.training.inputs.share import Share

AHEAD = 2  # batches that wait to be taken
OTHERS_PATH = "DTFPERF_OTHERS_PYTHONPATH"  # what PYTHONPATH was before it was set to where our modules are


PR_SET_PDEATHSIG = 1  # linux/prctl.h; survives exec


def main(worker: int, command: Sequence[str]) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != worker:  # it was gone before we could ask
        sys.exit(1)
    others_path = os.environ.pop(OTHERS_PATH, "")
    if command:
        _find_modules_in(others_path)
        os.execvp(command[0], list(command))
    produce(json.loads(sys.stdin.readline()))


def _find_modules_in(path: str) -> None:
    """As the task's own environment has it: another program may be of another Python, which ours are not for."""
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
        made(
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
