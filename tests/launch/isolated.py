"""A training on this machine, and the answers of its servers: `python -m tests.launch.isolated FOLDER` prints them as JSON.

A program of its own, so that it can be run as anybody.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters import named
from pytest_dtfperf.node import sweep
from tests.launch.stage import CONFIG, Stage, start_stage, wait_until_nothing_is_left
from tests.launch.stranger import call

TRAINING = replace(CONFIG, entry="tests.launch.traced_training:run")
SMALL: dict[str, Any] = {"model": "lenet", "batch_size": 4}
TASKS = ("ps:0", "worker:0", "worker:1")
_ENDLESS = 1_000_000  # steps
_SLEEP_S = 0.2  # in each step: what is looked at are the servers, and looking takes as long on cores that are free


class TrainingInspected(Exception):
    """End a training that was inspected."""


def while_training(stage: Stage, act: Callable[[], object], **changes: Any) -> None:
    """Call `act` in the middle of a training, and end the training."""

    def progress(*_: object) -> None:
        act()
        raise TrainingInspected

    stage.forget()
    try:
        stage.launcher.run(
            stage.spec(**SMALL, steps=_ENDLESS, **changes),
            log_dir=stage.logs,
            injected_slowdowns=dict.fromkeys(TASKS, _SLEEP_S),
            on_progress=progress,
        )
    except TrainingInspected:
        return
    raise AssertionError("it has trained to the end")


def list_server_ports(stage: Stage) -> list[int]:
    """Return the ports of the servers of all tasks of a run."""
    return [port for task in TASKS for port in _list_listening_ports(stage.pid(task))]


def _list_listening_ports(pid: int) -> list[int]:
    """Return the TCP ports that a process listens on, in its own network."""
    inodes = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for file in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]]
    return [int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in inodes]


def main() -> None:
    found: dict[str, Any] = {"warning": named.BACKENDS[TRAINING.backend].find_exposure(TRAINING)}

    def act() -> None:
        ports = list_server_ports(stage)
        found["servers"] = len(ports)
        found["answers"] = sorted({call("127.0.0.1", port) for port in ports})
        status = dict(line.split(":\t") for line in Path(f"/proc/{stage.pid('worker:0')}/status").read_text().splitlines())
        found["user"], found["capabilities"] = int(status["Uid"].split()[0]), int(status["CapEff"], 16)
        found["swept"] = len(sweep.find_left_processes([stage.session()]))

    def kill_agent() -> None:
        found["session"] = stage.session()
        os.kill(stage.agent(), signal.SIGKILL)

    with start_stage(Path(sys.argv[1]), TRAINING) as stage:
        while_training(stage, act)
        run = stage.run(**SMALL, steps=5)
        found["bytes_sent"], found["loss"] = run.bytes_sent, len(run.loss)
        while_training(stage, kill_agent)
        wait_until_nothing_is_left(found["session"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
