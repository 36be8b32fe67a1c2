"""After every end of a controller, at any time, nothing is left on a host or on this machine."""

import os
import pickle
import re
import select
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.node import boot, processes
from pytest_dtfperf.testing.backends import PATIENCE_S, wait_until
from tests.clusters.ssh.conftest import NewLab
from tests.clusters.ssh.lab import Lab
from tests.clusters.ssh.test_conformance import ROOT
from tests.machines import machine
from tests.node.handheld import TOY
from tests.plugin import zygote

BOOT = "DTFPERF_BOOT"  # in the environment of a host's Python
HANGS = "sleep 876543"
KILL = signal.SIGKILL


class Driver:
    """A controller, and the ssh processes that it has started."""

    def __init__(self, process: zygote.Started, output: IO[bytes]) -> None:
        """Print `output` without a buffer."""
        self.process = process
        self._output = output

    def wait_for(self, word: str) -> None:
        while True:
            assert select.select([self._output], [], [], PATIENCE_S)[0], f"it has not printed {word!r}"
            line = self._output.readline().decode()
            assert line, f"it ended before it printed {word!r}"
            if line.split()[0] == word:
                return

    def lines(self) -> list[int]:
        """Return its ssh processes, which have no other parent while it lives."""
        return [each.pid for each in processes.list_descendants(self.process.pid)]

    def kill_all(self) -> None:
        lines = self.lines()
        self.process.kill()
        for line in lines:
            processes.kill(line)


HOW: dict[str, Callable[[Driver], object]] = {
    "killed": lambda each: each.process.kill(),
    "killed with its ssh": lambda each: each.kill_all(),
    "terminated": lambda each: each.process.terminate(),
    "interrupted": lambda each: each.process.send_signal(signal.SIGINT),
}


@contextmanager
def driver(config: ClusterConfig) -> Iterator[Driver]:
    argv = ["-c", "from tests.clusters.ssh.driver import main; main()", pickle.dumps(config).hex()]
    reader, writer = os.pipe()
    with (
        open(reader, "rb", buffering=0) as output,
        zygote.start(argv, ROOT, {**os.environ, **zygote.SEARCH_PATH}, stdout=writer, leads=True) as process,
    ):
        os.close(writer)
        each = Driver(process, output)
        try:
            yield each
        finally:
            each.kill_all()


def toys(lab: Lab, *setup: str, **keys: object) -> ClusterConfig:
    return lab.config(setup=[f"export PYTHONPATH={ROOT}", *setup], entry=TOY, **keys)


def wait_until_all_is_gone(lab: Lab, lines: list[int]) -> None:
    wait_until("nothing is left on the hosts", lambda: not any(each.sessions() for each in lab.machines))
    wait_until("its ssh processes are gone", lambda: not any(map(processes.inspect, lines)))


@dataclass(frozen=True)
class Fixtures:
    """The machines for a controller's end: two shared ones, as many of its own as it wants, and a folder."""

    lab: Lab
    new_lab: NewLab
    folder: Path


def while_training(given: Fixtures, how: str) -> None:
    """End a controller while tasks train, and check that agents, tasks and daemons of tasks end on all hosts."""
    lab = given.lab
    with driver(toys(lab)) as each:
        each.wait_for("training")
        lines = each.lines()
        assert len(lines) == 2
        assert all(one.processes("node.agent") for one in lab.machines)
        HOW[how](each)
        wait_until_all_is_gone(lab, lines)


def while_a_host_is_prepared(given: Fixtures, how: str) -> None:
    """End a controller during a set-up line, and check that the line ends, too."""
    lab = given.lab
    with driver(toys(lab, HANGS)) as each:
        wait_until("both are prepared", lambda: all(one.processes(HANGS) for one in lab.machines))
        lines = each.lines()
        HOW[how](each)
        wait_until_all_is_gone(lab, lines)


def while_connecting(given: Fixtures, how: str) -> None:
    """End a controller while a host accepts connections and stays silent; both of its ssh processes end."""
    lab = given.lab
    with socket.create_server(("127.0.0.1", 0)) as mute:
        aliases = given.folder / "ssh_config"
        aliases.write_text(f"Host mute\nHostName 127.0.0.1\nPort {mute.getsockname()[1]}\n{lab.ssh_config.read_text()}")
        with driver(toys(lab, hosts=["m1", "mute"], ssh_config=str(aliases))) as each:
            wait_until("the first is reached", lambda: lab["m1"].processes(BOOT))
            wait_until("both are tried", lambda: len(each.lines()) == 2)
            lines = each.lines()
            HOW[how](each)
            mute.close()  # as it is when the machine goes down: ssh gives up after connect_s at the latest
            wait_until_all_is_gone(lab, lines)


def while_the_bundle_is_sent(given: Fixtures, how: str) -> None:
    """End a controller while a bundle is sent: the host keeps no process and no partial file of it."""
    if reason := machine.why_not():
        pytest.skip(f"no link can be made slow: {reason}")
    lab = given.new_lab(1, rate="200kbit")
    with driver(toys(lab)) as each:
        wait_until("it waits for the bundle", lambda: lab["m1"].processes(BOOT))
        lines = each.lines()
        HOW[how](each)
        lab["m1"].shape("1gbit")
        wait_until_all_is_gone(lab, lines)
    for left in lab["m1"].cache.glob("dtfperf/*"):
        assert re.fullmatch("bundle-[0-9a-f]{64}", left.name)
        assert (left / boot._NEXT_FILE).exists()


WHEN: dict[str, Callable[[Fixtures, str], None]] = {
    "while training": while_training,
    "while a host is prepared": while_a_host_is_prepared,
    "while connecting": while_connecting,
    "while the bundle is sent": while_the_bundle_is_sent,
}


@pytest.mark.campaign
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("when", WHEN)
def test_end(lab: Lab, new_lab: NewLab, tmp_path: Path, when: str, how: str) -> None:
    """A controller that ends in any way at any time leaves nothing on a host or on this machine."""
    WHEN[when](Fixtures(lab, new_lab, tmp_path), how)


def test_stopped_ssh_does_not_outlive_its_controller(lab: Lab) -> None:
    """A controller that is killed while its ssh processes stand still leaves neither them nor anything on the hosts."""
    with driver(toys(lab)) as each:
        each.wait_for("training")
        lines = each.lines()
        for line in lines:
            os.kill(line, signal.SIGSTOP)
        each.process.kill()
        wait_until_all_is_gone(lab, lines)
