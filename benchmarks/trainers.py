"""Who is compared: each trains what a spec says, on this machine, and tells how fast it was."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.cells import cluster_of
from pytest_dtfperf.clusters.local import Local
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.spec import Spec


@dataclass(frozen=True)
class TrainingResult:
    """One whole training, as seen by whoever ordered it."""

    images_per_sec: float  # of all devices together, over the measured steps, on the chief's clock
    start_s: float  # from nothing to the first measured step: starting processes, building, initialising, warming up
    warm_start_s: float  # the same where what can be kept from run to run is there already


Trainer = Callable[[Spec], TrainingResult]


class TrainingFailed(Exception):
    """A training ended without its numbers."""


def this_package(spec: Spec) -> TrainingResult:
    """Through the launcher, as the plugin does it: agents, zygote, tasks, none of which is there before."""
    return _launch(spec, cluster_of(spec))


def in_the_hosts_network(spec: Spec) -> TrainingResult:
    """Without a network of the tasks' own."""
    return _launch(spec, replace(cluster_of(spec), backend_keys={"network": "host"}))


def _launch(spec: Spec, config: ClusterConfig) -> TrainingResult:
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory() as log_dir,
        Local(config).allocate(Resources(devices=spec.gpus)) as allocation,
        Launcher(allocation, config) as launcher,
    ):
        agents_s = time.monotonic() - began
        run = launcher.run(spec, log_dir=Path(log_dir))
    # What is left of the wall time has the workers' reports and exits in it, too: never less than the truth.
    warm_start_s = run.wall_s - run.startup_s["stop"] - run.elapsed_s
    return TrainingResult(run.images_per_sec, agents_s + warm_start_s, warm_start_s)


def in_bf16(spec: Spec) -> TrainingResult:
    return this_package(spec.replace(precision="bf16"))


def placed_by(variable_placement: str) -> Trainer:
    return lambda spec: this_package(spec.replace(variable_placement=variable_placement))
