"""A launcher over toy tasks, and the tools of its tests: scripts for tasks, their process ids, processes that are left."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters import capacity, named
from pytest_dtfperf.clusters.named import ClusterConfig, Limits
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.testing.backends import wait_until
from tests.node.handheld import TOY

LIMITS = Limits(hello_s=120, ready_s=60, first_step_s=60, progress_s=60, silence_s=4, stop_s=5)
CONFIG = ClusterConfig(name="stage", entry=TOY, device="cpu", devices_per_host=2, limits=LIMITS)
TWO_HOSTS = ClusterConfig(name="stage", entry=TOY, device="cpu", devices_per_host=1, backend_keys={"hosts": 2}, limits=LIMITS)


@dataclass
class Stage:
    """Hold one launcher, and the folder of its tasks' scripts and logs."""

    launcher: Launcher
    folder: Path

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def spec(self, steps: int = 5, gpus: int = 2, num_ps: int = 1, **changes: Any) -> Spec:
        settings = {"model": "trivial", "batch_size": 32, "warmup_steps": 0, "data_dir": str(self.folder), **changes}
        return Spec(gpus=gpus, num_ps=num_ps, steps=steps, **settings)

    def script(self, task: str, **script: Any) -> None:
        """Write the script of a task for the next run, as tests/node/toy_task.py reads it."""
        (self.folder / f"{task.replace(':', '-')}.json").write_text(json.dumps(script))

    def forget(self) -> None:
        for file in (*self.folder.glob("*.json"), *self.folder.glob("*.pid")):
            file.unlink()

    def run(self, **changes: Any) -> Run:
        return self.launcher.run(self.spec(**changes), log_dir=self.logs)

    def pid(self, task: str) -> int:
        """Return a task's process id, once the task runs."""
        return read_pid(self.folder, task)

    def zygote(self) -> int:
        """Return the zygote's process id during a run."""
        return find_parent(self.pid("worker:0"))

    def agent(self) -> int:
        """Return the agent's process id during a run."""
        return find_parent(self.zygote())

    def session(self) -> str:
        """Return the session of the processes of a run."""
        return read_session(self.pid("worker:0"))


def read_pid(folder: Path, task: str) -> int:
    file = folder / f"{task.replace(':', '-')}.pid"
    wait_until(f"{task} lives", file.exists)
    return int(file.read_text())


def find_parent(pid: int) -> int:
    process = processes.inspect(pid)
    assert process
    return process.parent


def read_session(pid: int) -> str:
    with open(f"/proc/{pid}/environ") as file:
        (session,) = (entry for entry in file.read().split("\0") if entry.startswith(f"{sweep.SESSION}="))
    return session.partition("=")[2]


def wait_until_nothing_is_left(session: str) -> None:
    wait_until("no process of the session is left", lambda: sweep.find_left_processes([session]) == [])


@contextmanager
def start_stage(folder: Path, config: ClusterConfig = CONFIG) -> Iterator[Stage]:
    """Start a launcher on this machine."""
    os.makedirs(folder, exist_ok=True)
    resources = Resources(devices=capacity.count_devices(config) or 1, separate_ps_hosts=0 if config.ps_on_worker_hosts else 1)
    with (
        named.open_cluster(config).allocate(resources) as allocation,
        Launcher(allocation, config, resources) as launcher,
    ):
        yield Stage(launcher, folder)
