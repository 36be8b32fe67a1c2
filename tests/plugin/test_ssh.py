"""Tests of pytest on hosts over ssh: measured rates are simulated, ssh, sshd and the hosts' processes are real."""

import os
import re
import signal
import socket
from pathlib import Path

import pytest

from pytest_dtfperf.testing.backends import wait_until
from tests.clusters.ssh.conftest import lab, shared_lab
from tests.clusters.ssh.lab import Lab
from tests.plugin.conftest import ENDS_S, REPOSITORY, Ended, PerfTests
from tests.plugin.test_verdicts import records

__all__ = ["lab", "shared_lab"]

TRAINING = "training = { repeats = 2, batch_size = 10, warmup_steps = 1, steps = 4, margin = 0.1 }"
TOY = 'entry = "tests.plugin.toy_training:run"'
# The hosts see this machine's files, but of its environment only what every host would.
SETUP = f"export PYTHONPATH={REPOSITORY}"
TWO = """
def test_a(train):
    train(model="trivial", gpus=1)

def test_b(train):
    train(model="trivial", gpus=1, batch_size=3)
"""
NOWHERE = """
[nowhere]
backend = "ssh"
dedicated = false
hosts = "node[01-04].invalid"
port = 2222
devices_per_host = 1
"""


class Laboratory:
    """Perf tests of a user with a cluster `lab` of a lab's hosts."""

    def __init__(self, perf: PerfTests, lab: Lab) -> None:
        self.perf = perf
        self.lab = lab
        self.write_cluster()

    def write_cluster(self, *lines: str, setup: str = SETUP) -> None:
        """Write the cluster's table, with these further lines."""
        site_is_patient = "connect_s = 300"  # these tests are of what happens, not of how soon
        table = self.lab.toml(TRAINING, TOY, site_is_patient, f"setup = ['{setup}']", *lines)
        (self.perf.folder / "perf" / "clusters.toml").write_text(table)

    def run(self, *arguments: str) -> Ended:
        return self.perf.run("--cluster=lab", *arguments)


@pytest.fixture
def laboratory(perf: PerfTests, lab: Lab) -> Laboratory:
    return Laboratory(perf, lab)


def test_hosts_train_and_have_baselines(laboratory: Laboratory) -> None:
    """Tests of one and of two devices train on one and on two hosts, and pass against the baselines from there."""
    accepted = laboratory.run("--gpus=1,2", "--update-baselines")
    assert accepted.code == 0, accepted.out
    accepted.line("dtfperf: cluster lab (ssh, 2 hosts, 2 cpu devices)")
    assert [record["hosts"] for record in records(laboratory.perf)] == [["m1"], ["m1", "m2"]]
    again = laboratory.run("--gpus=1,2")
    assert again.code == 0, again.out
    assert [record["verdict"] for record in records(laboratory.perf)] == ["PASSED", "PASSED"]


def test_untrusted_host_is_an_error(laboratory: Laboratory) -> None:
    """An unknown host key is one error for each test, with the remedy, without a traceback."""
    known = laboratory.perf.folder / "perf" / "known_hosts"
    known.touch()
    laboratory.write_cluster('options = ["UserKnownHostsFile=known_hosts"]')
    laboratory.perf.write(TWO)
    ended = laboratory.run()
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.out
    output = re.findall(r"^(m\d is not trusted yet: no \S+ host key of .*)$", ended.out, re.MULTILINE)
    assert len(output) == 2, ended.out
    assert re.search(rf"answer yes: ssh .*UserKnownHostsFile={known} m\d$", output[0])
    assert "Traceback" not in ended.out + ended.err
    ended.line("2 errors")
    assert known.read_text() == ""


def test_unreachable_host_is_an_error(laboratory: Laboratory, tmp_path: Path) -> None:
    """Of two hosts the unreachable one is named with its address, and no session is left on any."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        off = f"Host m2\n    HostName 127.0.0.1\n    Port {port}\n"
        (tmp_path / "config").write_text(off + laboratory.lab.ssh_config.read_text())
        laboratory.write_cluster(f'ssh_config = "{tmp_path}/config"')
        ended = laboratory.run("--gpus=2")
    assert ended.code == pytest.ExitCode.TESTS_FAILED, ended.out
    ended.line(f"m2 cannot be reached at 127.0.0.1 port {port}: no program listens there. Is sshd running, and on this port?")
    ended.line("1 error")
    wait_until("no session is left", lambda: not any(machine.sessions() for machine in laboratory.lab.machines))


def test_killed_pytest_leaves_nothing_on_the_hosts(laboratory: Laboratory, tmp_path: Path) -> None:
    """When pytest is killed while all hosts train, all processes on them end."""
    (tmp_path / "waits").mkdir()
    waiting = tmp_path / "waits" / "waiting"
    laboratory.write_cluster(setup=f"{SETUP} TOY_DO=wait TOY_WAITS={waiting}")
    out = tmp_path / "out.txt"
    with (
        out.open("w") as file,
        laboratory.perf.start("--cluster=lab", "--gpus=2", out=file.fileno(), leads=True) as process,
    ):
        try:
            wait_until("all train", lambda: waiting.exists() or process.poll() is not None)
            assert process.poll() is None, out.read_text()
            assert all(machine.sessions() for machine in laboratory.lab.machines)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(ENDS_S)
    wait_until("nothing is left", lambda: not any(machine.sessions() for machine in laboratory.lab.machines))


def test_dry_run_shows_commands_of_unreachable_hosts(perf: PerfTests) -> None:
    """--dry-run shows the commands for the hosts of a test, though these do not exist."""
    (perf.folder / "perf" / "clusters.toml").write_text(NOWHERE)
    ended = perf.run("--cluster=nowhere", "--gpus=2", "--dry-run")
    assert ended.code == 0, ended.out
    ended.line("SSH='ssh ", "-o StrictHostKeyChecking=yes ", "-o ConnectTimeout=30'")
    for name in ("node01", "node02"):
        ended.line(f"$SSH -p 2222 -- {name}.invalid 'python3 -P -m pytest_dtfperf.node.agent'")
    assert "node03" not in ended.out


def test_collection_needs_no_hosts(perf: PerfTests) -> None:
    """--collect-only lists the tests for the hosts in the file, though these do not exist."""
    (perf.folder / "perf" / "clusters.toml").write_text(NOWHERE)
    ended = perf.run("--cluster=nowhere", "--collect-only", "-q")
    assert ended.code == 0, ended.out
    assert len(re.findall(r"^perf/test_perf\.py::test_throughput\[", ended.out, re.MULTILINE)) == 3  # 1, 2 and 4 devices


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('hosts = "node[1-"', "perf/clusters.toml: [lab] hosts = 'node[1-' is no list of hosts: "),
        ('hosts = "a"\noptions = ["StrictHostKeyChecking=no"]', "[lab] options must not hold 'StrictHostKeyChecking=no'"),
        ('nodes_file = "nodes"', "perf/nodes, line 2: must be an address and what ssh calls the host"),
    ],
    ids=["hosts", "options", "nodes file"],
)  # fmt: skip
def test_invalid_cluster_file_is_one_line(perf: PerfTests, table: str, words: str) -> None:
    """An invalid cluster file, or file that it names, is an error and exit code 4, without a traceback."""
    (perf.folder / "perf" / "nodes").write_text("10.0.0.1 n1\nn2\n")
    (perf.folder / "perf" / "clusters.toml").write_text(f'[lab]\nbackend = "ssh"\ndevices_per_host = 1\n{table}\n')
    ended = perf.run("--cluster=lab")
    assert ended.code == pytest.ExitCode.USAGE_ERROR, ended.out
    ended.line("ERROR", words)
    assert "Traceback" not in ended.out + ended.err
