"""A controlling process to be killed: `main` of `FOLDER STEPS CLUSTER`, of which the last is pickled, in hexadecimal digits.

Lends two nodes and trains toys on them, run after run of so many steps. Says how it goes, a line of JSON each: "waits",
"up", "ran", "failed", "interrupted".
"""

import json
import os
import pickle
import sys
from pathlib import Path

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.launch.launcher import Launcher
from tests.clusters.slurm import scene
from tests.launch.stage import Stage


def main() -> None:
    folder, steps, pickled = sys.argv[1:]
    scene.hurry()
    try:
        _train(pickle.loads(bytes.fromhex(pickled)), Path(folder), int(steps))
    except DtfPerfError as failure:
        say("failed", kind=type(failure).__name__, words=str(failure))
    except KeyboardInterrupt:
        say("interrupted")


def _train(config: ClusterConfig, folder: Path, steps: int) -> None:
    resources = Resources(devices=2, session=f"driver-{os.getpid()}", on_status=lambda words: say("waits", words=words))
    with named.open_cluster(config).allocate(resources) as allocation, Launcher(allocation, config, resources) as launcher:
        say("up")
        stage = Stage(launcher, folder)
        while True:
            stage.run(steps=steps)
            say("ran")


def say(what: str, **more: str) -> None:
    print(json.dumps({"what": what, **more}), flush=True)
