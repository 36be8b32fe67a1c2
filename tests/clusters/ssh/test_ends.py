"""However and whenever the controller ends, nothing of it is left: neither on a host nor here."""

import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.waiting import PATIENCE_S, wait_until
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.machines import machine
from tests.node.handheld import TOY

BOOT = "DTFPERF_BOOT"  # in the environment of a host's Python
HANGS = "sleep 876543"
KILL = signal.SIGKILL


class Driver:
    """A controller, and the ssh processes that it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def until(self, word: str) -> None:
        assert self.process.stdout
        while True:
            assert select.select([self.process.stdout], [], [], PATIENCE_S)[0], f"it has not said {word!r}"
            line = self.process.stdout.readline().decode()
            assert line, f"it ended before it said {word!r}"
            if line.split()[0] == word:
                return

    def lines(self) -> list[int]:
        """Its ssh processes, which have no other parent while it lives."""
        return [each.pid for each in processes.below(self.process.pid)]

    def kill_all(self) -> None:
        for pid in [self.process.pid, *self.lines()]:
            processes.kill(pid)


HOW: dict[str, Callable[[Driver], object]] = {
    "killed": lambda each: each.process.kill(),
    "killed with its ssh": lambda each: each.kill_all(),
    "terminated": lambda each: each.process.terminate(),
    "interrupted": lambda each: each.process.send_signal(signal.SIGINT),
}


@contextmanager
def driver(config: ClusterConfig) -> Iterator[Driver]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.clusters.ssh.driver"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
        bufsize=0,
    ) as process:
        assert process.stdin
        process.stdin.write(pickle.dumps(config))
        process.stdin.close()
        each = Driver(process)
        try:
            yield each
        finally:
            each.kill_all()


def toys(lab: Lab, *setup: str, **keys: object) -> ClusterConfig:
    return lab.config(setup=[f"export PYTHONPATH={ROOT}", *setup], entry=TOY, **keys)


def wait_until_nothing_is_left(lab: Lab, lines: list[int]) -> None:
    wait_until("nothing is left on the hosts", lambda: not any(each.sessions() for each in lab.machines))
    wait_until("its ssh processes are gone", lambda: not any(map(processes.inspect, lines)))


@pytest.mark.parametrize("how", HOW)
def test_end_while_training(lab: Lab, how: str) -> None:
    """Agents, tasks and what has daemonised are gone from all hosts."""
    with driver(toys(lab)) as each:
        each.until("training")
        lines = each.lines()
        assert len(lines) == 2
        assert all(one.processes("node.agent") for one in lab.machines)
        HOW[how](each)
        wait_until_nothing_is_left(lab, lines)


def test_stopped_ssh_does_not_outlive_its_controller(lab: Lab) -> None:
    """A controller that is killed while its ssh processes stand still leaves neither them nor anything on the hosts."""
    with driver(toys(lab)) as each:
        each.until("training")
        lines = each.lines()
        for line in lines:
            os.kill(line, signal.SIGSTOP)
        each.process.kill()
        wait_until_nothing_is_left(lab, lines)


@pytest.mark.parametrize("how", HOW)
def test_end_while_a_host_is_prepared(lab: Lab, how: str) -> None:
    """A set-up line that is under way is ended, too."""
    with driver(toys(lab, HANGS)) as each:
        wait_until("both are prepared", lambda: all(one.processes(HANGS) for one in lab.machines))
        lines = each.lines()
        HOW[how](each)
        wait_until_nothing_is_left(lab, lines)


@pytest.mark.parametrize("how", HOW)
def test_end_while_connecting(lab: Lab, tmp_path: Path, how: str) -> None:
    """With a host that takes connections and says nothing, the other host's connection and both ssh processes end."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        aliases = tmp_path / "ssh_config"
        aliases.write_text(f"Host mute\nHostName 127.0.0.1\nPort {mute.getsockname()[1]}\n{lab.ssh_config.read_text()}")
        with driver(toys(lab, hosts=["m1", "mute"], ssh_config=str(aliases))) as each:
            wait_until("the first is reached", lambda: lab["m1"].processes(BOOT))
            wait_until("both are tried", lambda: len(each.lines()) == 2)
            lines = each.lines()
            HOW[how](each)
            mute.close()  # as it is when the machine goes down: ssh gives up after connect_s at the latest
            wait_until_nothing_is_left(lab, lines)


@pytest.mark.parametrize("how", HOW)
def test_end_while_the_bundle_is_sent(new_lab: NewLab, how: str) -> None:
    """A host that has got half of it keeps neither a process nor a file."""
    if reason := machine.why_not():
        pytest.skip(f"no link can be made slow: {reason}")
    lab = new_lab(1, rate="200kbit")
    with driver(toys(lab)) as each:
        wait_until("it waits for the bundle", lambda: lab["m1"].processes(BOOT))
        lines = each.lines()
        HOW[how](each)
        lab["m1"].shape("1gbit")
        wait_until_nothing_is_left(lab, lines)
    assert not list(lab["m1"].cache.glob("dtfperf/bundle-*"))
