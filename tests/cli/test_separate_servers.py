"""Parameter servers on separate hosts: a bisection that is killed, and two sessions at the same time."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.lab import Lab, why_not
from tests.plugin.conftest import ENDS_S, PerfTests, perf_tests_in
from tests.plugin.test_ssh import SETUP, TOY, TRAINING
from tests.plugin.test_together import of_session
from tests.plugin.zygote import Started

MARK = "DTFPERF_SESSION"  # in the environment of agents and of all that they start
SEPARATE = "ps_on_worker_hosts = false"
LOCAL = """
[local]
backend = "local"
dedicated = false
hosts = 3
devices_per_host = 1
device = "cpu"
"""
TESTS = """
import pytest

@pytest.mark.parametrize("batch_size", [10, 20])
def test_training(train, num_ps, batch_size):
    train(model="trivial", gpus=1, num_ps=num_ps, batch_size=batch_size)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Three machines, each with a network of its own."""
    if reason := why_not(namespaces=True):
        pytest.skip(reason)
    with Lab(3, namespaces=True) as machines:
        yield machines


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The folder for temporary files of all machines."""
    return tmp_path / "scratch"


@pytest.fixture
def perf(tmp_path: Path, lab: Lab, scratch: Path) -> PerfTests:
    """Perf tests on the machines and here. Agents there keep the bundle in a temporary folder, because the cache is a file."""
    perf = perf_tests_in(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "dtfperf").touch()
    (tmp_path / "held").mkdir()
    setup = [SETUP, f"export TOY_HOLD={tmp_path / 'held'}"]
    keys = [f'cache_dir = "{tmp_path / "cache"}"', f'scratch_dir = "{scratch}"', f"setup = {json.dumps(setup)}"]
    table = lab.toml(TRAINING, TOY, "connect_s = 300", SEPARATE, "fixed_ports = true", *keys)
    local = "\n".join([LOCAL, TRAINING, TOY, SEPARATE, f'scratch_dir = "{scratch}"'])
    (perf.folder / "perf" / "clusters.toml").write_text(f"{table}\n{local}\n")
    return perf


def wait_until_nothing_is_left(lab: Lab, scratch: Path) -> None:
    wait_until("no session is left on any machine", lambda: not any(each.sessions() for each in lab.machines))
    wait_until("no agent or task is left", lambda: not of_session(scratch.parent))
    assert list(scratch.iterdir()) == []


def terminate(process: subprocess.Popen[str], lab: Lab) -> None:
    process.terminate()


def interrupt_twice(process: subprocess.Popen[str], lab: Lab) -> None:
    """Send Ctrl-C, and again while the agents of a machine do not confirm the end of the training."""
    before = len(lab["m3"].processes(MARK))
    for pid in lab["m1"].processes(MARK):
        os.kill(pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    wait_until("the worker has ended", lambda: len(lab["m3"].processes(MARK)) < before)
    process.send_signal(signal.SIGINT)


def kill(process: subprocess.Popen[str], lab: Lab) -> None:
    process.kill()


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize(
    ("end", "code"),
    [(terminate, 128 + signal.SIGTERM), (interrupt_twice, 130), (kill, -signal.SIGKILL)],
    ids=["SIGTERM", "SIGINT twice", "SIGKILL"],
)
def test_killed_bisection_leaves_nothing_on_any_host(
    perf: PerfTests, lab: Lab, scratch: Path, end: Callable[[subprocess.Popen[str], Lab], None], code: int
) -> None:
    """A bisection that is killed while a candidate with one more host trains leaves no process and no folder on any host.

    Its file has the blocks that were made before, all on the same host for workers, and the candidate is not skipped.
    """
    waits = perf.folder / "waits"
    toys = [f"setup='export TOY_DO=\"wait with 2 servers\" TOY_WAITS={waits} TOY_STEP_S={step_s}'" for step_s in (0.01, 0.02)]
    series = [f"a: num_ps=1 {toys[0]}", f"b: num_ps=2 {toys[0]}", f"c: num_ps=1 {toys[1]}"]
    arguments = [*series, "trivial", "gpus=1", "--seed=1", "--cluster=lab", "--clusters-file=perf/clusters.toml"]
    with perf.start_command("bisect", *arguments) as process:
        wait_until("the candidate with two servers trains", waits.exists, patience_s=ENDS_S)
        (path,) = (perf.folder / "perf_results").glob("*/bisection.json")
        before = json.loads(path.read_text())
        assert all(each.processes(MARK) for each in lab.machines)
        assert len(list(scratch.glob("dtfperf-run-*"))) >= 9, "that of each of three stacks on each machine"
        end(process, lab)
        _, errors = process.communicate(timeout=ENDS_S)
    assert process.returncode == code, errors
    wait_until_nothing_is_left(lab, scratch)
    found = json.loads(path.read_text())
    assert found["blocks"] == before["blocks"]
    assert [each["candidate"] for each in found["blocks"]] == [2, 2]
    runs = [run for block in found["blocks"] for run in block["runs"]]
    assert all(run["task_hosts"] == {"ps:0": "m1", "worker:0": "m3"} for run in runs)
    assert (found["result"], found["broken"]) == ("UNDECIDED", {})


def read_task_hosts(folder: Path) -> list[dict[str, str]]:
    """Return the host of each task, for each run of the only session in a folder."""
    (path,) = folder.glob("*/measurements.jsonl")
    records: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [run["task_hosts"] for record in records for run in record["runs"]]


@pytest.mark.parametrize("cluster", ["lab", "local"])
def test_sessions_with_different_servers_take_turns(perf: PerfTests, lab: Lab, scratch: Path, cluster: str) -> None:
    """Two sessions with one and with two parameter servers take turns on common hosts, and keep their agents there.

    On the machines they use the same ports, so that none trains before the other one's tasks have ended. Neither removes what
    belongs to the agents of the other one, which would have to be started again.
    """
    perf.write(TESTS)
    held = perf.folder / "held"
    (held / "hold").touch()
    outputs = {servers: perf.folder / f"output {servers}" for servers in (1, 2)}

    def start(servers: int) -> Started:
        options = [f"--cluster={cluster}", f"--num-ps={servers}", f"--perf-results=results{servers}"]
        with outputs[servers].open("w") as out:
            return perf.start(*options, variables={"TOY_HOLD": str(held)}, out=out.fileno())

    with start(1) as one:
        wait_until("the first session trains", lambda: any(held.glob("[0-9]*")), patience_s=ENDS_S)
        with start(2) as two:
            waiting = f"waiting for {cluster}: held by process"
            wait_until("the second one waits", lambda: waiting in outputs[2].read_text(), patience_s=ENDS_S)
            (held / "hold").unlink()
            codes = [each.wait(ENDS_S) for each in (one, two)]
    printed = {servers: path.read_text() for servers, path in outputs.items()}
    assert codes == [0, 0], printed
    assert f"waiting for {cluster}: " in printed[1], "its second test comes after the first test of the other session"
    first, second, third = lab.names if cluster == "lab" else [f"{socket.gethostname()}-{number}" for number in range(3)]
    placed = {
        1: {"ps:0": first, "worker:0": second},
        2: {"ps:0": first, "ps:1": second, "worker:0": third},
    }
    for servers, text in printed.items():
        assert "2 passed" in text
        assert "asking for other hosts" not in text
        found = read_task_hosts(perf.folder / f"results{servers}")
        assert len(found) >= 2, "one or more of each test"
        assert all(each == placed[servers] for each in found)
    wait_until_nothing_is_left(lab, scratch)
    assert list((perf.folder / "runtime" / "dtfperf").iterdir()) == [], "no ticket of a session is left"
