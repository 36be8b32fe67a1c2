"""A controlling process to be killed: `main` of FOLDER HEARTBEAT_TIMEOUT_S. Trains toys for an hour."""

import dataclasses
import sys
from pathlib import Path

from tests.launch.stage import CONFIG, start_stage


def main() -> None:
    folder, heartbeat_timeout_s = Path(sys.argv[1]), float(sys.argv[2])
    with start_stage(folder, dataclasses.replace(CONFIG, heartbeat_timeout_s=heartbeat_timeout_s)) as stage:
        stage.script("worker:1", at="start", do="daemonise")
        stage.launcher.run(stage.spec(steps=1_000_000), log_dir=stage.logs, on_progress=lambda *_: print("step", flush=True))
