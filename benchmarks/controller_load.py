"""What a session costs its controller, by the number of simulated hosts: memory, files, messages, sizes and times.

    python -m benchmarks.controller_load                     8, 64, 512 and 1,024 hosts x 24 tests
    python -m benchmarks.controller_load --hosts=8,4096 --tests=3

Each row is a pytest of its own, which runs the real controller against hosts of one device each. The last column is the power
with which the CPU seconds grow from the row above: 1 is linear.
"""

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.clusters.protocol import Allocation, Channel, Cluster, Host, Lost, Resources
from pytest_dtfperf.simulated.backend import SimulatedAllocation, SimulatedBackend

HOSTS, TESTS = "8,64,512,1024", 24
CLUSTER = """
[sim]
backend = "counted"
hosts = {hosts}
gpus_per_host = 1
rates = {{ resnet50 = 219.0 }}
link = "25gbit"
seed = 1
"""
SUITE = """
import pytest

MODES = ("parameter_server", "distributed_replicated", "collective_all_reduce")

@pytest.mark.parametrize("number", range({tests}))
def test_throughput(train, baseline, number):
    mode = MODES[number % 3]
    servers = 0 if mode == "collective_all_reduce" else max(1, {hosts} >> number % 3 + 3)
    training = dict(model="resnet50", batch_size=32 + number, steps=50, warmup_steps=10)
    baseline.check(train(gpus={hosts}, num_ps=servers, variable_update=mode, **training))
"""


class CountedChannel:
    """A channel that counts what it receives."""

    def __init__(self, channel: Channel, counts: dict[str, int]) -> None:
        self._channel, self._counts = channel, counts

    def send(self, line: bytes) -> None:
        self._channel.send(line)

    def receive(self, timeout_s: float) -> tuple[int, bytes | Lost] | None:
        found = self._channel.receive(timeout_s)
        if found and isinstance(found[1], bytes):
            self._counts["messages"] += 1
            self._counts["bytes"] += len(found[1])
        return found

    def explain_silence(self, host: int) -> Lost | None:
        return self._channel.explain_silence(host)

    def close(self) -> None:
        self._channel.close()


class CountedAllocation:
    """An allocation with such channels."""

    def __init__(self, allocation: SimulatedAllocation, counts: dict[str, int]) -> None:
        self._allocation, self._counts = allocation, counts
        self.hosts: Sequence[Host] = allocation.hosts
        self.clock = allocation.clock

    def start(self, argv: Sequence[str]) -> Channel:
        return CountedChannel(self._allocation.start(argv), self._counts)


class CountedBackend(SimulatedBackend):
    """Simulated hosts, the messages of which are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"messages": 0, "bytes": 0}

    def open_cluster(self, config: ClusterConfig) -> Cluster:  # type: ignore[override]  # only `allocate` is needed
        cluster, counts = super().open_cluster(config), self.counts

        class Counted:
            @contextmanager
            def allocate(self, resources: Resources) -> Iterator[Allocation]:
                with cluster.allocate(resources) as allocation:
                    assert isinstance(allocation, SimulatedAllocation)
                    yield CountedAllocation(allocation, counts)

        return Counted()


class _Times:
    """A pytest plugin that notes when the tests have ended, and how many files are open then."""

    tests_ended_s = math.nan
    files = 0

    def pytest_runtest_logfinish(self) -> None:
        self.tests_ended_s = time.monotonic()
        self.files = max(self.files, len(os.listdir("/proc/self/fd")))


def run_session(hosts: int, tests: int) -> dict[str, Any]:
    """Run one session in this process, in the current folder, and return what it has cost."""
    backend, times = CountedBackend(), _Times()
    BACKENDS.data["counted"] = backend
    Path("clusters.toml").write_text(CLUSTER.format(hosts=hosts))
    Path("test_load.py").write_text(SUITE.format(hosts=hosts, tests=tests))
    began_s = time.monotonic()
    code = pytest.main(["-q", "--cluster=sim", "-p", "no:cacheprovider", "--repeats=2", "."], plugins=[times])
    ended_s = time.monotonic()
    (folder,) = Path("perf_results").iterdir()
    return {
        "hosts": hosts,
        "exit_code": int(code),
        "cpu_s": time.process_time(),
        "summary_s": ended_s - times.tests_ended_s,
        "messages": backend.counts["messages"],
        "messages_per_s": backend.counts["messages"] / (times.tests_ended_s - began_s),
        "message_mb": backend.counts["bytes"] / 1e6,
        "memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files": times.files,
        "folder_mb": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6,
        "report_mb": (folder / "report.html").stat().st_size / 1e6,
    }


def _run_apart(hosts: int, tests: int) -> dict[str, Any]:
    """Run a session in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.controller_load", "--one", f"--hosts={hosts}", f"--tests={tests}"]
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": paths, "DTFPERF_HISTORY": str(Path(folder, "history.db"))}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            raise SystemExit(done.stdout + done.stderr)
        found: dict[str, Any] = json.loads(lines[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", default=HOSTS)
    parser.add_argument("--tests", type=int, default=TESTS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = [int(each) for each in given.hosts.split(",")]
    if given.one:
        print(json.dumps(run_session(sizes[0], given.tests)))
        return
    before: dict[str, Any] = {}
    for hosts in sizes:
        row = _run_apart(hosts, given.tests)
        if not before:
            print("".join(f"{name:>15}" for name in (*row, "power")), flush=True)
        power = math.log(row["cpu_s"] / before["cpu_s"]) / math.log(hosts / before["hosts"]) if before else math.nan
        print("".join(f"{value:15.4g}" for value in (*row.values(), power)), flush=True)
        before = row


if __name__ == "__main__":
    main()
