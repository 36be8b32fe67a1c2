"""A controller that tests kill: `main` of `FOLDER STEPS CLUSTER`; CLUSTER is a pickle in hexadecimal digits.

It allocates two nodes and trains toys on them in runs of STEPS steps, until it is killed. It prints one line of JSON per
event: "waits", "up", "ran", "failed", "interrupted".
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
        print_event("failed", kind=type(failure).__name__, words=str(failure))
    except KeyboardInterrupt:
        print_event("interrupted")


def _train(config: ClusterConfig, folder: Path, steps: int) -> None:
    resources = Resources(devices=2, session=f"driver-{os.getpid()}", on_status=lambda words: print_event("waits", words=words))
    with named.open_cluster(config).allocate(resources) as allocation, Launcher(allocation, config, resources) as launcher:
        print_event("up")
        stage = Stage(launcher, folder)
        while True:
            stage.run(steps=steps)
            print_event("ran")


def print_event(what: str, **more: str) -> None:
    print(json.dumps({"what": what, **more}), flush=True)
