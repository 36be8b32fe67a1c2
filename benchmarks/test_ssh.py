"""What a cluster of SSH hosts costs as it grows from 4 to 32: agents on all of them, an order and all answers.

Every host has an sshd and a network of its own, but all are this machine: what is measured is the sum of what all of them do on
its cores. So that hosts take their time as real ones do, each has a line of set-up that sleeps. What grows then is what this
process cannot do at once: handshakes are made `parallel` at a time. Its memory is reported separately.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.test_launch import TOY, bytecode, wait_for_answers
from benchmarks.test_slurm import resident_kib
from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.protocol import Resources
from pytest_dtfperf.launch.agents import Agents
from tests.clusters.ssh.lab import Lab, why_not

__all__ = ["bytecode"]

HOSTS = 32
PARALLEL = (4, 8, 16, 32)
ROUNDS = 3
SETUP_S = 1.0


class Session:
    """What one pytest would do on the hosts, and how long each part took."""

    def __init__(self, lab: Lab, hosts: int, parallel: int, setup_s: float) -> None:
        self._config = lab.config(entry=TOY, parallel=parallel, setup=[f"sleep {setup_s}"] if setup_s else None)
        self._resources = Resources(devices=hosts)
        self._hosts = hosts
        self.s: dict[str, float] = {}

    def go(self) -> None:
        began = time.perf_counter()
        with named.open_cluster(self._config).allocate(self._resources) as allocation:
            self.s["hosts have answered"] = time.perf_counter() - began
            agents = Agents(allocation, self._config)
            self.s["agents ready"] = time.perf_counter() - began
            with self._part("order and answers"):
                wait_for_answers(agents, self._hosts)
            with self._part("close"):
                agents.close()

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.s[name] = time.perf_counter() - began


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    if reason := why_not():
        pytest.skip(reason)
    with Lab(HOSTS) as lab:
        yield lab


def medians(sessions: list[Session]) -> dict[str, float]:
    return {part: statistics.median(session.s[part] for session in sessions) for part in sessions[0].s}


@pytest.mark.usefixtures("bytecode")
@pytest.mark.parametrize("hosts", [4, 8, 16, 32])
def test_session(benchmark: BenchmarkFixture, lab: Lab, hosts: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Agents on 4 to 32 hosts, an order and all answers; and what the controller's memory grows by."""
    sessions: list[Session] = []

    def one() -> None:
        sessions.append(Session(lab, hosts, parallel=16, setup_s=0))
        sessions[-1].go()

    before_kib = resident_kib()
    benchmark.pedantic(one, rounds=ROUNDS)
    after_kib = resident_kib()
    benchmark.extra_info |= {part: f"{s:.3f} s" for part, s in medians(sessions).items()}
    benchmark.extra_info["controller's memory"] = f"{after_kib / 1024:.1f} MiB, {(after_kib - before_kib) / 1024:.1f} more"
    with capsys.disabled():
        sys.stdout.write("".join(f"\n{hosts:>5} hosts  {part:22} {text}" for part, text in benchmark.extra_info.items()) + "\n")


@pytest.mark.usefixtures("bytecode")
@pytest.mark.parametrize("parallel", PARALLEL)
def test_parallel(benchmark: BenchmarkFixture, lab: Lab, parallel: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Agents on 32 hosts whose set-up takes a second: as many seconds pass as there are rounds of hosts, and what it takes
    without a set-up."""
    sessions: list[Session] = []

    def one() -> None:
        sessions.append(Session(lab, HOSTS, parallel, setup_s=SETUP_S))
        sessions[-1].go()

    benchmark.pedantic(one, rounds=1)
    rounds = math.ceil(HOSTS / parallel)
    ready_s = medians(sessions)["agents ready"]
    benchmark.extra_info["agents ready"] = f"{ready_s:.2f} s, {rounds} x {SETUP_S:.0f} s of them set-up"
    with capsys.disabled():
        sys.stdout.write(f"\n{HOSTS} hosts, {parallel:>2} at a time: {benchmark.extra_info['agents ready']}\n")
    assert ready_s >= rounds * SETUP_S
