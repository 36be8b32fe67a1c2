"""A supervisor ends everything when the agent, the connection, the time or the supervisor itself ends."""

import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from pytest_dtfperf.node import processes, supervisor, sweep
from pytest_dtfperf.testing.backends import wait_until
from pytest_dtfperf.testing.parrot import DAEMONISE
from tests.node.bare_host import BareHost
from tests.node.test_sweep import SLEEP

# Prints a line when it and its daemon are there.
WITH_DAEMON = (sys.executable, "-c", f"""
import subprocess, time
subprocess.run({DAEMONISE!r}, stdout=subprocess.DEVNULL)
print("up", flush=True)
time.sleep(3600)
""")  # fmt: skip


@pytest.fixture
def session() -> str:
    return uuid.uuid4().hex


def start_daemon(host: BareHost, session: str, *argv: str, **limits: float) -> list[int]:
    """Start it, and return its process and its daemon's."""
    host.wait_until_ready()
    host.run(*(argv or WITH_DAEMON), env={sweep.SESSION: session}, **limits)
    assert host.line() == "up"
    return sweep.find_left_processes([session])


@pytest.mark.parametrize("code", [0, 3])
def test_agent_that_leaves(tmp_path: Path, session: str, code: int) -> None:
    """The agent's exit code is the supervisor's, which reports it; what the agent leaves behind is ended."""
    leave = f"import subprocess, sys; subprocess.run({DAEMONISE!r}, stdout=subprocess.DEVNULL); sys.exit({code})"
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
        host.run(sys.executable, "-c", leave, env={sweep.SESSION: session})
        assert host.wait_for_end() == (code, {"ended": code, "survivors": []})
        assert sweep.find_left_processes([session]) == []


def test_agent_that_is_killed(tmp_path: Path, session: str) -> None:
    """The same holds for an agent that is killed, which can end no process itself."""
    with BareHost(tmp_path) as host:
        agent = min(start_daemon(host, session))
        processes.kill(agent)
        assert host.wait_for_end() == (137, {"ended": -9, "survivors": []})
        assert sweep.find_left_processes([session]) == []


def test_end_of_the_line(tmp_path: Path, session: str) -> None:
    """An agent that does not leave when its line ends is ended."""
    with BareHost(tmp_path) as host:
        assert len(start_daemon(host, session)) == 2
        host.hang_up()
        assert host.wait_for_end() == (1, {"ended": None, "survivors": []})
        assert sweep.find_left_processes([session]) == []


def test_agent_has_the_connection_to_itself(tmp_path: Path, session: str) -> None:
    """The agent gets all input, and one that exits at its end exits in order."""
    with BareHost(tmp_path) as host:
        start_daemon(host, session, "sh", "-c", "echo up; cat")
        host.send(b"some words\n")
        assert host.line() == "some words"
        host.hang_up()
        assert host.wait_for_end() == (0, {"ended": 0, "survivors": []})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_supervisor_that_is_signalled(tmp_path: Path, session: str, number: signal.Signals) -> None:
    """A supervisor that receives SIGTERM, SIGHUP or SIGINT ends everything first."""
    with BareHost(tmp_path) as host:
        start_daemon(host, session)
        host.process.send_signal(number)
        assert host.wait_for_end()[1] == {"ended": None, "survivors": []}
        assert sweep.find_left_processes([session]) == []


def test_supervisor_that_is_killed(tmp_path: Path, session: str) -> None:
    """Killed, it takes the agent with it; what had daemonised is found by its session."""
    with BareHost(tmp_path) as host:
        agent, daemon = sorted(start_daemon(host, session))
        host.process.kill()
        wait_until("the agent is gone", lambda: agent not in sweep.find_left_processes([session]))
        assert sweep.find_left_processes([session]) == [daemon]
        processes.kill(daemon)
        wait_until("the daemon is gone", lambda: sweep.find_left_processes([session]) == [])


def test_stopped_agent_is_ended(tmp_path: Path, session: str) -> None:
    """An agent that is stopped for longer than its time-out cannot see to that, and is ended."""
    with BareHost(tmp_path) as host:
        agent = min(start_daemon(host, session, heartbeat_timeout_s=0.5))
        os.kill(agent, signal.SIGSTOP)
        assert host.wait_for_end()[1] == {"ended": None, "survivors": []}
        assert sweep.find_left_processes([session]) == []


def test_no_such_program(tmp_path: Path) -> None:
    """A program that does not exist is reported before anything is started."""
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
        host.order(run={"argv": ["no-such-program"], "env": {}})
        assert host.next() == {"failed": "program", "program": "no-such-program"}


def test_program_that_is_none(tmp_path: Path) -> None:
    """A file that the kernel does not take for a program is reported on stderr, with the code that shells use."""
    program = tmp_path / "program"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    with BareHost(tmp_path) as host:
        host.wait_until_ready()
        host.run("~/program")
        assert host.wait_for_end()[0] == supervisor.CANNOT_START


def test_no_order_in_time(tmp_path: Path) -> None:
    """A supervisor without orders leaves: its controller may have been cut off."""
    with BareHost(tmp_path) as host:
        host.wait_until_ready(patience_s=0.2)
        assert host.wait_for_end()[1] == {"ended": None, "survivors": []}


def test_survey(tmp_path: Path) -> None:
    """A supervisor reports its addresses and the sessions with processes there, and ends those that it is ordered to."""
    session, mine = uuid.uuid4().hex, uuid.uuid4().hex
    env = {sweep.SESSION: session, supervisor.CONTROLLER: mine}
    with BareHost(tmp_path, SSH_CONNECTION="10.0.0.1 5555 10.0.0.2 22") as dying, BareHost(tmp_path) as host:
        dying.wait_until_ready()
        dying.run(*SLEEP, env=env)
        wait_until("it is there", lambda: len(sweep.find_left_processes([session])) == 1)
        output = host.wait_until_ready(survey=True)
        assert output["left"][mine] == [session]
        assert output["hostname"] == os.uname().nodename
        assert not any(each.startswith("127.") for each in output["addresses"])
        host.order(sweep=[session])
        assert host.next() == {"at": "swept", "survivors": []}
        assert sweep.find_left_processes([session]) == []
    with BareHost(tmp_path, SSH_CONNECTION="10.0.0.1 5555 10.0.0.2 22") as host:
        assert host.wait_until_ready(survey=True)["reached_at"] == "10.0.0.2"
