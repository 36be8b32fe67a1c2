"""A producer of images for data=zmq that is no faster than a file allows: an injected slow feeder.

    python feeder.py FILE      # FILE: the least seconds from one batch to the next; none where there is no such file

The file is read before each batch. It needs pyzmq, and speaks what docs/inputs.md says. Hardly anything waits in between: what
is queued would hide from a short run that its images come too slowly.
"""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import zmq

SOCKET_BYTES = 1 << 12


def period_s(file: Path) -> float:
    with suppress(FileNotFoundError, ValueError):  # it is not there, or just being written
        return float(file.read_text())
    return 0.0


def main(file: Path) -> None:
    wanted = json.loads(sys.stdin.readline())
    count, shape = wanted["batch_size"], wanted["image_shape"]
    header = {
        "version": 1,
        "images": {"dtype": "uint8", "shape": [count, *shape]},
        "labels": {"dtype": "int32", "shape": [count]},
    }
    batch = [json.dumps(header).encode(), bytes(count * shape[0] * shape[1] * shape[2]), bytes(4 * count)]
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.set_hwm(1)
        socket.sndbuf = SOCKET_BYTES
        socket.connect(wanted["endpoint"])
        due = time.monotonic()
        while True:
            socket.send_multipart(batch)
            due = max(due + period_s(file), time.monotonic())  # who was kept waiting does not catch up
            time.sleep(max(0.0, due - time.monotonic()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
