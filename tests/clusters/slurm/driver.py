"""A controlling process to be killed: `python -m tests.clusters.slurm.driver FOLDER`, with a pickled cluster on stdin.

Lends two nodes and trains toys on them, run after run. Says how it goes, a line of JSON each: "waits",
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
from pytest_dtfperf.launch.run import Launcher
from tests.clusters.slurm import scene
from tests.launch.stage import Stage


def main() -> None:
    config: ClusterConfig = pickle.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    scene.hurry()
    try:
        _train(config, Path(sys.argv[1]))
    except DtfPerfError as failure:
        say("failed", kind=type(failure).__name__, words=str(failure))
    except KeyboardInterrupt:
        say("interrupted")


def _train(config: ClusterConfig, folder: Path) -> None:
    resources = Resources(devices=2, session=f"driver-{os.getpid()}", on_status=lambda words: say("waits", words=words))
    with named.open_cluster(config).allocate(resources) as allocation, Launcher(allocation, config, resources) as launcher:
        say("up")
        stage = Stage(launcher, folder)
        while True:
            stage.run(steps=20)
            say("ran")


def say(what: str, **more: str) -> None:
    print(json.dumps({"what": what, **more}), flush=True)


if __name__ == "__main__":
    main()
