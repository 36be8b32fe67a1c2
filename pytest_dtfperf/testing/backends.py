"""Check that a cluster backend fulfils the contract: a test module derives from `BackendContract` and opens its cluster.

    class TestDesk(BackendContract):
        \"\"\"The desk backend fulfils the contract.\"\"\"

        @pytest.fixture
        def cluster(self):
            config = ClusterConfig(name="desks", backend="desk", backend_keys={"desks": 2}, devices_per_host=1)
            return named.open_cluster(config)

The hosts' processes are found by their session in /proc of this machine, so that its hosts must be on this machine.
"""

import os
import pickle
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_dtfperf.clusters.protocol import Allocation, Channel, Cluster, LossReason, Lost, Resources
from pytest_dtfperf.errors import AllocationError, HostLost
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.node.module_command import make_project_command
from pytest_dtfperf.testing import parrot

PATIENCE_S = 30.0  # long enough for a busy machine: it decides only whether something happens
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
_PAUSES_PER_POLL = 4  # polling Slurm, or all processes, takes time from what is waited for


def wait_until(what: str, true: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Wait until `true()` is true, polling less often if it takes long. Raises `AssertionError` after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        began = time.monotonic()
        if true():
            return
        polled_s = time.monotonic() - began
        assert time.monotonic() < deadline, f"not within {patience_s} s: {what}"
        time.sleep(min(max(_FIRST_PAUSE_S, _PAUSES_PER_POLL * polled_s), _LONGEST_PAUSE_S))


PARROT_COMMAND = (sys.executable, "-P", "-c", Path(parrot.__file__).read_text())
TOO_MANY = 1000
STATES = ("echo well", "deaf", "stop", "daemon", "kill 0")  # of the programs of a channel that is closed
EXPECTED_LOSSES = {
    "exit": Lost(LossReason.ENDED, "the agent left with exit code 3"),
    "kill": Lost(LossReason.ENDED, "the agent was killed by SIGKILL"),
}


class ParrotChannel:
    """A channel to one parrot per host."""

    def __init__(self, channel: Channel, hosts: int) -> None:
        self.channel = channel
        self.hosts = hosts
        assert sorted(self.receive_lines(hosts)) == [(host, b"hello") for host in range(hosts)]

    def receive_lines(self, count: int) -> list[tuple[int, bytes | Lost]]:
        """Return the next lines of any host."""
        received: list[tuple[int, bytes | Lost]] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(received) < count:
            if line := self.channel.receive(0.5):
                received.append(line)
            assert time.monotonic() < deadline, f"only {received}"
        return received

    def receive_answers(self, order: str) -> list[bytes | Lost]:
        """Return the answers of the hosts to an order, in their order."""
        self.channel.send(order.encode())
        return [line for _, line in sorted(self.receive_lines(self.hosts), key=lambda received: received[0])]

    @property
    def session(self) -> str:
        (session,) = {line.decode() for line in self.receive_answers("environment DTFPERF_SESSION") if isinstance(line, bytes)}
        return session


class BackendContract:
    """The tests of a backend. Derive from it, and define `cluster` as a cluster of two hosts with one device each."""

    keeps_secrets = True  # whether hosts get only a part of the environment

    @pytest.fixture
    def cluster(self) -> Cluster:
        raise NotImplementedError

    @pytest.fixture
    def parrots(self, cluster: Cluster) -> Iterator[ParrotChannel]:
        with cluster.allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
            yield parrots

    def list_processes(self, session: str) -> list[int]:
        """Return the processes on the hosts that carry a session's id."""
        return sweep.find_left_processes([session])

    def test_hosts_have_names_and_addresses(self, cluster: Cluster) -> None:
        """As many hosts are allocated as the devices need, with distinct names."""
        with cluster.allocate(Resources(devices=2)) as allocation:
            assert len({host.name for host in allocation.hosts}) == 2
            assert all(host.address for host in allocation.hosts)
        with cluster.allocate(Resources(devices=1)) as allocation:
            assert len(allocation.hosts) == 1
        with cluster.allocate(Resources(devices=1, separate_ps_hosts=1)) as allocation:
            assert len(allocation.hosts) == 2

    def test_too_many_devices_are_refused_with_the_numbers(self, cluster: Cluster) -> None:
        """A request for too many devices is an error with the sizes of the cluster and of the request."""
        with pytest.raises(AllocationError, match=rf"2 host.*{TOO_MANY} device"), cluster.allocate(Resources(devices=TOO_MANY)):
            pass

    def test_every_host_knows_its_index_and_the_session(self, parrots: ParrotChannel) -> None:
        """Each process has the index of its host and the session id in its environment. Without orders, no line is received."""
        assert parrots.receive_answers("environment DTFPERF_HOST_INDEX") == [b"0", b"1"]
        assert parrots.session != "(unset)"
        assert parrots.channel.receive(0.05) is None

    def test_environment_reaches_the_hosts(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """Hosts get the environment of the controller, including blanks and quotes."""
        monkeypatch.setenv("DTFPERF_CONFORMS", value := """it's "so", $HOME; 7 = 7, a comma""")
        with cluster.allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
            assert parrots.receive_answers("environment DTFPERF_CONFORMS") == [value.encode()] * 2

    def test_secrets_are_not_sent_to_hosts(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the backend keeps secrets, hosts get only the requested variables of the controller's environment."""
        monkeypatch.setenv("CANARY_TOKEN", canary := uuid.uuid4().hex)
        with cluster.allocate(Resources(devices=2)) as allocation, start_parrots(allocation) as parrots:
            seen = parrots.receive_answers("environment CANARY_TOKEN")
            assert seen == [b"(unset)" if self.keeps_secrets else canary.encode()] * 2
            if self.keeps_secrets:
                there = [Path(f"/proc/{pid}/environ").read_bytes() for pid in self.list_processes(parrots.session)]
                assert len(there) >= 2
                assert not any(canary.encode() in each for each in there)

    def test_channel_is_opened_again(self, cluster: Cluster) -> None:
        """After a channel is closed, another one can be opened on the same hosts, with new processes."""
        with cluster.allocate(Resources(devices=2)) as allocation:
            with start_parrots(allocation) as parrots:
                first = parrots.session
            with start_parrots(allocation) as parrots:
                assert parrots.session != first
                assert parrots.receive_answers("echo again") == [b"again"] * 2
        assert self.list_processes(first) == []

    def test_program_in_a_folder_with_a_blank(self, cluster: Cluster, tmp_path: Path) -> None:
        """Programs and arguments are passed unchanged, including blanks and quotes."""
        program = tmp_path / "a folder's" / "par rot"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\n[ "$1" = "two words" ] && exec {shlex.join(PARROT_COMMAND)}\n')
        program.chmod(0o755)
        with cluster.allocate(Resources(devices=2)) as allocation:
            channel = allocation.start([str(program), "two words"])
            assert ParrotChannel(channel, 2).receive_answers("echo here") == [b"here"] * 2
            channel.close()

    def test_lines_go_both_ways_whole(self, parrots: ParrotChannel) -> None:
        """Short and very long lines arrive unchanged and in order, on every host."""
        long = "y" * 300_000
        assert parrots.receive_answers(f"echo {long}") == [long.encode()] * 2
        assert parrots.receive_answers("shout 300000") == [b"x" * 300_000] * 2
        for i in range(100):
            parrots.channel.send(f"echo {i}".encode())
        received = parrots.receive_lines(200)
        assert [line for host, line in received if host == 1] == [str(i).encode() for i in range(100)]

    @pytest.mark.parametrize("end", ["exit", "kill"])
    def test_lost_host_is_reported_once(self, parrots: ParrotChannel, end: str) -> None:
        """A host with a process that ends is reported once, after its last output, with the exit status. Others continue."""
        parrots.channel.send(f"{end} 1".encode())
        received = parrots.receive_lines(1)
        while not isinstance(received[-1][1], Lost):
            received += parrots.receive_lines(1)
        assert all(host == 1 for host, _ in received)
        if end == "exit":
            assert (1, b"bye") in received
        assert received[-1] == (1, EXPECTED_LOSSES[end])
        parrots.channel.send(b"echo still here")
        assert parrots.receive_lines(1) == [(0, b"still here")]
        assert parrots.channel.receive(0.05) is None

    def test_sending_without_hosts_is_an_error(self, parrots: ParrotChannel) -> None:
        """If all hosts are lost, sending raises an error with the reason."""
        for host in (0, 1):
            parrots.channel.send(f"kill {host}".encode())
        wait_until("both are lost", lambda: isinstance(parrots.receive_lines(1)[0][1], Lost))
        wait_until("both are lost", lambda: isinstance(parrots.receive_lines(1)[0][1], Lost))
        with pytest.raises(HostLost, match=r"^no agent is left on .+: .+"):
            parrots.channel.send(b"echo hello?")

    @pytest.mark.parametrize("state", STATES)
    def test_close_ends_everything(self, cluster: Cluster, state: str) -> None:
        """Closing ends all processes: those that read, hang, are stopped, have daemonised or have ended."""
        with cluster.allocate(Resources(devices=2)) as allocation:
            channel = allocation.start(PARROT_COMMAND)
            session = ParrotChannel(channel, 2).session
            channel.send(b"daemon")
            wait_until("their daemons are there", lambda: len(self.list_processes(session)) >= 4)
            channel.send(state.encode())
            channel.close()
        wait_until("nothing of the session is left", lambda: self.list_processes(session) == [])

    def test_two_allocations_at_once(self, cluster: Cluster) -> None:
        """Two allocations do not receive lines of each other, and closing one does not affect the other."""
        with (
            cluster.allocate(Resources(devices=2)) as first,
            cluster.allocate(Resources(devices=2)) as second,
            start_parrots(first) as one,
        ):
            with start_parrots(second) as other:
                assert one.session != other.session
                assert one.receive_answers("echo one") == [b"one"] * 2
                assert other.receive_answers("echo other") == [b"other"] * 2
            assert one.receive_answers("echo still") == [b"still"] * 2

    def test_command_that_cannot_start(self, cluster: Cluster) -> None:
        """A missing program is an error with its path."""
        with (
            cluster.allocate(Resources(devices=2)) as allocation,
            pytest.raises(AllocationError, match="/no/such/python"),
        ):
            allocation.start(["/no/such/python"])

    def test_processes_of_a_dead_controller_are_ended(self, cluster: Cluster) -> None:
        """Allocating ends the processes of a session without a controller, and none of a running session."""
        abandoned = leave_daemon(cluster)
        with cluster.allocate(Resources(devices=2)) as living, start_parrots(living) as parrots:
            with cluster.allocate(Resources(devices=1)):
                assert parrots.receive_answers("echo alive") == [b"alive"] * 2
            wait_until("the abandoned daemon is gone", lambda: not processes.inspect(abandoned))


@contextmanager
def start_parrots(allocation: Allocation) -> Iterator[ParrotChannel]:
    channel = allocation.start(PARROT_COMMAND)
    try:
        yield ParrotChannel(channel, len(allocation.hosts))
    finally:
        channel.close()


def leave_daemon(cluster: Cluster) -> int:
    """Return the process id of a daemon that another controller started before it died without closing."""
    command = make_project_command(sys.executable, "pytest_dtfperf.testing.backends")
    return int(subprocess.run(command, input=pickle.dumps(cluster), stdout=subprocess.PIPE, check=True).stdout)


def leave_orphan(kill: Callable[[ParrotChannel, str], object]) -> NoReturn:
    """Die after `kill` has ended the session, except for its daemon, and print the daemon's process id."""
    cluster: Cluster = pickle.load(sys.stdin.buffer)
    with cluster.allocate(Resources(devices=1)) as allocation:
        parrots = ParrotChannel(allocation.start(PARROT_COMMAND), 1)
        session = parrots.session
        assert parrots.receive_answers("daemon") == [b"daemon"]
        kill(parrots, session)
        wait_until("only the daemon is left", lambda: len(sweep.find_left_processes([session])) == 1)
        print(*sweep.find_left_processes([session]), flush=True)
        os._exit(0)


def _kill_session(parrots: ParrotChannel, session: str) -> None:
    if sys.argv[1:] == ["with-all-its-processes"]:
        print(session, flush=True)
        os.killpg(0, signal.SIGKILL)
    parrots.channel.send(b"kill 0")


if __name__ == "__main__":
    leave_orphan(_kill_session)
