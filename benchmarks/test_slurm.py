"""What a Slurm cluster costs as it grows from 4 to 128 nodes: a job, agents on all its nodes, an order and all answers, a run.

It is a real Slurm, but all its nodes are this machine: what is measured is the sum of what all slurmd, slurmstepd and agents do
on its cores, which on a cluster they do at the same time. The CPU time and the memory of the controller (this process) are
reported separately.
"""

import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.test_launch import HOSTS, TOY, bytecode, wait_for_answers
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.agents import Agents
from pytest_dtfperf.launch.launcher import Launcher
from pytest_dtfperf.spec import Spec
from tests.clusters.slurm.site import Site, why_not

__all__ = ["bytecode"]

ROUNDS = 3
COMMANDS = ("sbatch", "srun", "squeue", "scontrol", "scancel", "sacct")
# The usual way to know a step's processes reads the whole of /proc, here for each of 128 nodes that of all the others, too.
OWN_PROCESSES = "ProctrackType=proctrack/pgid"

medians_of_the_fewest: dict[str, float] = {}  # by measured part: the reference of the growth


class Session:
    """What one pytest would do on the cluster, and how long each part took."""

    def __init__(self, nodes: int, calls: Path, logs: Path) -> None:
        self._nodes = nodes
        self._calls = calls
        self._logs = logs
        self.s: dict[str, float] = {}

    def go(self) -> None:
        backend_keys = {"nodes": self._nodes, "gpus_per_node": 1, "time_limit": 10}
        config = ClusterConfig(
            name="site", backend="slurm", entry=TOY, device="cpu", devices_per_host=1, backend_keys=backend_keys
        )
        resources = Resources(devices=self._nodes)
        spec = Spec(model="trivial", gpus=self._nodes, num_ps=self._nodes, batch_size=32, warmup_steps=0, steps=5)
        allocating = time.perf_counter()
        with named.open_cluster(config).allocate(resources) as allocation:
            self.s["allocate"] = time.perf_counter() - allocating
            with self._part("agents ready"):
                agents = Agents(allocation, config)
            with self._part("order and answers"):
                wait_for_answers(agents, self._nodes)
            with self._part("close"):
                agents.close()
            with Launcher(allocation, config, resources) as launcher:
                asked = self._calls.read_text()
                with self._part("first run"):
                    launcher.run(spec, log_dir=self._logs)
                with self._part("next run"):
                    used = time.process_time()
                    launcher.run(spec, log_dir=self._logs)
                    self.s["controller's CPU in it"] = time.process_time() - used
                assert self._calls.read_text() == asked, "a run on agents that are up costs no call of Slurm"

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.s[name] = time.perf_counter() - began


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each call of one of Slurm's commands; call `login` when the site is up."""
    noted = tmp_path / "calls"
    noted.touch()
    folder = tmp_path / "bin"
    folder.mkdir()
    for command in COMMANDS:
        stand_in = folder / command
        stand_in.write_text(f'#!/bin/sh\necho {command} >>"{noted}"\nPATH=${{PATH#*:}} exec {command} "$@"\n')
        stand_in.chmod(0o755)
    return noted


def login(site: Site, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on the site's login node from now on."""
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{calls.parent / 'bin'}:{os.environ['PATH']}")


def resident_kib() -> int:
    with open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1])


def format_growth(medians: Mapping[str, float], nodes: int) -> dict[str, str]:
    """Each part with its growth: 1 if a node costs as much as it does among the fewest."""
    if nodes == HOSTS[0]:
        medians_of_the_fewest.update(medians)
    shown = {name: f"{s:.3f} s" for name, s in medians.items()}
    for name, fewest_s in medians_of_the_fewest.items():
        shown[name] += f", per node x {medians[name] / nodes * HOSTS[0] / fewest_s:.2f}"
    return shown


@pytest.mark.usefixtures("bytecode")
@pytest.mark.parametrize("nodes", HOSTS)
def test_session(
    benchmark: BenchmarkFixture,
    nodes: int,
    calls: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A job, agents twice, an order and all answers, two runs of a worker and a parameter server per node without a call of
    Slurm; and what the controller's memory grows by."""
    if reason := why_not():
        pytest.skip(reason)
    sessions: list[Session] = []

    def one() -> None:
        sessions.append(Session(nodes, calls, tmp_path / "logs"))
        sessions[-1].go()

    with Site(nodes=nodes, gpus=1, cpus=2, slurm_conf=OWN_PROCESSES) as site:
        login(site, calls, monkeypatch)
        before_kib = resident_kib()
        benchmark.pedantic(one, rounds=ROUNDS)
    medians = {part: statistics.median(session.s[part] for session in sessions) for part in sessions[0].s}
    benchmark.extra_info |= format_growth(medians, nodes)
    after_kib = resident_kib()
    benchmark.extra_info["controller's memory"] = f"{after_kib / 1024:.1f} MiB, {(after_kib - before_kib) / 1024:.1f} more"
    benchmark.extra_info["Slurm's commands"] = len(calls.read_text().splitlines()) // ROUNDS
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{nodes:>5} nodes  {part:28} {text}" for part, text in benchmark.extra_info.items()) + "\n")
