"""Any process is killed, stopped or cut off: nothing is left, and the agent reports what happened."""

import os
import signal
import subprocess
import sys

import pytest

from pytest_dtfperf.node import processes
from pytest_dtfperf.testing.backends import wait_until
from tests.node.handheld import HandheldAgent


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_everything(number: signal.Signals) -> None:
    """An agent that receives SIGTERM, SIGINT or SIGHUP ends its zygote, its tasks and their daemons."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="ready", do="daemonise", what="hang")
        agent.expect("task", kind="ready")
        wait_until("zygote, task and daemon are there", lambda: len(agent.list_processes()) == 3)
        agent.process.send_signal(number)
        assert f"ended by {number.name}" in agent.words()
        assert agent.list_processes() == []


def test_end_of_stdin_ends_everything() -> None:
    """An agent with a closed stdin ends everything, also tasks that ignore SIGTERM."""
    with HandheldAgent() as agent:
        agent.start("worker:0", "worker:1", at="ready", do="ignore SIGTERM")
        for _ in range(2):
            agent.expect("task", kind="progress")
        assert agent.process.stdin
        agent.process.stdin.close()
        agent.words()
        assert agent.process.returncode == 0
        assert agent.list_processes() == []


START_AGENT = """
import subprocess, sys
agent = subprocess.Popen([sys.executable, "-m", "pytest_dtfperf.node.agent", "--entry", "tests.node.toy_task:run"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)
agent.stdout.readline()
print(agent.pid, flush=True)
sys.stdin.read()
"""


def test_stopped_agent_does_not_outlive_its_controller() -> None:
    """An agent that is stopped when its controller is killed is continued, reads the end of stdin and exits."""
    environment = {**os.environ, "DTFPERF_HOST_INDEX": "0"}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", START_AGENT], env=environment, stdin=pipe, stdout=pipe) as controller:
        assert controller.stdout
        agent = int(controller.stdout.readline())
        os.kill(agent, signal.SIGSTOP)
        wait_until("it stands still", lambda: (seen := processes.inspect(agent)) and seen.stopped)
        controller.kill()
        wait_until("it is gone", lambda: not processes.inspect(agent))


def test_silence_ends_everything() -> None:
    """No byte for the length of the time-out is as good as the end of the line: a cut network, a stopped controller."""
    with HandheldAgent("--heartbeat-timeout-s", "1") as agent:
        agent.start("worker:0", at="ready", do="hang")
        assert "no message from the controller for 1 s" in agent.words()
        assert agent.list_processes() == []


def test_unread_events_do_not_keep_the_agent() -> None:
    """A controller that neither reads nor writes is given up, though its pipe is full."""
    with HandheldAgent("--heartbeat-timeout-s", "2") as agent:
        agent.start("worker:0", steps=100_000, step_s=0.0)
        agent.notify("go", "worker:0")
        assert "no message from the controller for 2 s" in agent.words()
        assert agent.list_processes() == []


def test_stop_ends_stubborn_tasks_and_daemons() -> None:
    """Stopping a run ends what ignores SIGTERM, what is stopped and what has daemonised; the zygote stays."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="ready", do="daemonise", what="ignore SIGTERM")
        pid = agent.expect("started")["pid"]
        agent.expect("task", kind="progress")
        os.kill(pid, signal.SIGSTOP)
        agent.order("stop", run="r", grace_s=0.1)
        agent.expect("stopped", survivors=[])
        assert len(agent.list_processes()) == 1


def test_stop_overtakes_a_start() -> None:
    """A task of a run that is stopped before the fork does not survive."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="start", do="ignore SIGTERM")  # the zygote is still importing
        agent.order("stop", run="r")
        agent.expect("stopped")
        wait_until("the zygote alone is left", lambda: len(agent.list_processes()) == 1)


def hanging_task(agent: HandheldAgent, run: str) -> int:
    """Start a task, and wait until it hangs. Returns the process id of the zygote it was forked from."""
    agent.start("worker:0", run=run, at="start", do="ignore SIGTERM")
    agent.expect("task", run=run, kind="progress")
    task = processes.inspect(agent.expect("started", run=run)["pid"])
    assert task
    return task.parent


def test_dead_zygote_is_reported_before_its_tasks() -> None:
    """A killed zygote is reported before its tasks, and the next run has a new one."""
    with HandheldAgent() as agent:
        zygote = hanging_task(agent, "r")
        os.kill(zygote, signal.SIGKILL)
        assert agent.expect("zygote_died", run="r")["signal"] == signal.SIGKILL
        assert agent.expect("exit", task="worker:0")["signal"] == signal.SIGKILL
        assert agent.heard.index("zygote_died") < agent.heard.index("exit")
        agent.order("stop", run="r")
        agent.expect("stopped")
        assert hanging_task(agent, "next") != zygote


def test_stopped_zygote_is_replaced() -> None:
    """A zygote that was sent SIGSTOP shows in the beats, and the next run has a new one."""
    with HandheldAgent() as agent:
        zygote = hanging_task(agent, "r")
        os.kill(zygote, signal.SIGSTOP)
        agent.expect("beat", zygote_state="T")
        agent.order("stop", run="r")
        agent.expect("stopped", survivors=[])
        assert processes.inspect(zygote) is None
        assert hanging_task(agent, "next") != zygote


def lines_of(pid: int) -> set[str]:
    """The sockets and pipes that a process holds open."""
    found = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    return {link for link in found if link.startswith(("socket:", "pipe:"))}


def test_zygote_and_tasks_hold_no_line_of_their_agent() -> None:
    """A zygote that is forked while ports are held has no line and no port of its agent, and its task none of its own."""
    with HandheldAgent() as agent:
        os.kill(hanging_task(agent, "r"), signal.SIGKILL)
        agent.expect("zygote_died")
        agent.reserve(run="next", count=2)
        agent.expect("reserved")
        zygote = hanging_task(agent, "next")
        (task,) = (pid for pid in agent.list_processes() if pid != zygote)
        assert lines_of(agent.process.pid).isdisjoint(lines_of(zygote))
        assert lines_of(agent.process.pid).isdisjoint(lines_of(task))
        assert lines_of(zygote).isdisjoint(lines_of(task))


def test_signals_for_its_group_end_a_zygote_at_once() -> None:
    """A zygote has no handlers of its agent's: what a batch system sends to a whole group ends it."""
    with HandheldAgent() as agent:
        zygote = hanging_task(agent, "r")
        os.kill(zygote, signal.SIGTERM)
        assert agent.expect("zygote_died", run="r")["signal"] == signal.SIGTERM


def test_killed_agent_ends_its_tasks() -> None:
    """The kernel ends zygote and tasks of a killed agent; a daemon is found by its session."""
    with HandheldAgent() as agent:
        agent.start("worker:0", at="ready", do="daemonise", what="hang")
        wait_until("zygote, task and daemon are there", lambda: len(agent.list_processes()) == 3)
        agent.process.kill()
        agent.process.wait()
        wait_until("the daemon alone is left", lambda: len(agent.list_processes()) == 1)
