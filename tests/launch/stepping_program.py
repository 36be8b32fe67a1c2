"""Two workers that train in step, as an external program may: with warm-up, evaluations and checkpoints in the loop. One of
them is slower between its steps. Each prints the seconds of its steps by its own clock.

    python stepping_program.py LATE_S --task_index=... --worker_hosts=...
"""

import json
import random
import socket
import sys
import time

from pytest_dtfperf.steps import Steps

WARMUP, MEASURED, EVERY = 3, 60, 20
BETWEEN_S, WITHIN_S, EVALUATION_S, WARMUP_S = 0.002, 0.02, 0.2, 0.1


def main(late_s: float, *arguments: str) -> None:
    flags = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    index, chief = int(flags["task_index"]), flags["worker_hosts"].split(",")[0].rpartition(":")
    other = _connect_workers(index, (chief[0], int(chief[2])))
    steps, measured_s = Steps(images_per_step=4, warmup=WARMUP), []
    for number in range(WARMUP + MEASURED):
        time.sleep(BETWEEN_S + 0.001 * random.random() + late_s * index)  # reads a batch
        began = time.monotonic()
        with steps:
            time.sleep(WITHIN_S if number >= WARMUP else WARMUP_S)
            _exchange_bytes(other)
        if number >= WARMUP:
            measured_s.append(time.monotonic() - began)
        if number % EVERY == 0:
            time.sleep(EVALUATION_S)  # looks at the test set, and writes a checkpoint
            _exchange_bytes(other)
    print(json.dumps(measured_s))


def _connect_workers(index: int, chief: tuple[str, int]) -> socket.socket:
    if index == 0:
        with socket.create_server(chief) as listening:
            return listening.accept()[0]
    while True:  # until it is there: the tasks of a run start together
        try:
            return socket.create_connection(chief)
        except ConnectionRefusedError:
            time.sleep(0.01)


def _exchange_bytes(other: socket.socket) -> None:
    """Wait for the other worker."""
    other.sendall(b"!")
    other.recv(1)


if __name__ == "__main__":
    main(float(sys.argv[1]), *sys.argv[2:])
