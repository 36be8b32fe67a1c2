"""Tests of killed and stopped processes: the run ends on all tasks, one process is named, and nothing is left."""

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.children import ChildrenChannel
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.errors import DtfPerfError, HostLost, TaskFailed, TaskStopped
from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.testing.backends import wait_until
from tests.launch.stage import TWO_HOSTS, Stage, find_parent, read_pid, read_session, start_stage, wait_until_nothing_is_left
from tests.plugin import zygote

ENDLESS = 1_000_000  # steps

# whom, with what, and what is said
DEATHS: dict[str, tuple[Callable[[Stage], int], signal.Signals, type[DtfPerfError], str]] = {
    "worker killed": (lambda s: s.pid("worker:1"), signal.SIGKILL, TaskFailed, "worker:1 on .* was killed by SIGKILL"),
    "worker stopped": (lambda s: s.pid("worker:1"), signal.SIGSTOP, TaskStopped, r"worker:1 on .* is stopped \(state T\)"),
    "chief killed": (lambda s: s.pid("worker:0"), signal.SIGKILL, TaskFailed, "worker:0 on .* was killed by SIGKILL"),
    "ps killed": (lambda s: s.pid("ps:0"), signal.SIGKILL, TaskFailed, "ps:0 on .* was killed by SIGKILL"),
    "ps stopped": (lambda s: s.pid("ps:0"), signal.SIGSTOP, TaskStopped, r"ps:0 on .* is stopped \(state T\)"),
    "zygote killed": (Stage.zygote, signal.SIGKILL, HostLost, "the zygote on .* was killed by SIGKILL"),
    "zygote stopped": (Stage.zygote, signal.SIGSTOP, HostLost, "the zygote on .* is stopped"),
    "agent killed": (Stage.agent, signal.SIGKILL, HostLost, r"(?s)the agent on .* is gone.*killed by SIGKILL"),
    "agent stopped": (Stage.agent, signal.SIGSTOP, HostLost, r"the agent on .* has given no sign of life for \d+ s"),
    "agent asked to leave": (Stage.agent, signal.SIGTERM, HostLost, r"(?s)the agent on .* is gone.*ended by SIGTERM"),
}


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with start_stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(shared_stage: Stage) -> Stage:
    """Return a launcher that has been through the failures of the tests before."""
    shared_stage.forget()
    return shared_stage


class Strike:
    """Call a function once, at the first step of the first worker, and keep the run's session."""

    def __init__(self, stage: Stage, blow: Callable[[Stage], object]) -> None:
        self.session = ""
        self._stage = stage
        self._blow = blow

    def __call__(self, *_: object) -> None:
        if not self.session:
            self.session = self._stage.session()
            self._blow(self._stage)


@pytest.mark.parametrize("death", DEATHS)
def test_run_ends_and_names_the_culprit(stage: Stage, death: str) -> None:
    """The run ends on all tasks, the message names the process, no task is left, and the next run succeeds."""
    find, number, error, words = DEATHS[death]
    strike = Strike(stage, lambda stage: os.kill(find(stage), number))
    with pytest.raises(error, match=words):
        stage.launcher.run(stage.spec(steps=ENDLESS), log_dir=stage.logs, on_progress=strike)
    tasks = {stage.pid(task) for task in ("ps:0", "worker:0", "worker:1")}
    assert tasks.isdisjoint(sweep.find_left_processes([strike.session]))
    if "agent" in death:
        assert sweep.find_left_processes([strike.session]) == []
    stage.forget()
    assert len(stage.run(steps=2).step_s) == 2


def test_silent_host_has_the_reason_of_its_cluster(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that the cluster has taken back is lost with the cluster's reason instead of its silence."""
    taken_back = Lost(LossReason.TAKEN_BACK, "Slurm job 17 was cancelled")
    monkeypatch.setattr(ChildrenChannel, "explain_silence", lambda channel, host: taken_back)
    strike = Strike(stage, lambda stage: os.kill(stage.agent(), signal.SIGSTOP))
    with pytest.raises(HostLost, match=r"^the agent on .* is gone: Slurm job 17 was cancelled"):
        stage.launcher.run(stage.spec(steps=ENDLESS), log_dir=stage.logs, on_progress=strike)


@pytest.mark.parametrize(
    ("find", "error", "left"),
    [(lambda s: s.pid("worker:1"), TaskFailed, 2), (Stage.agent, HostLost, 0)],
    ids=["worker killed", "agent killed"],
)
def test_daemons_of_a_failed_run_are_ended(
    stage: Stage, find: Callable[[Stage], int], error: type[DtfPerfError], left: int
) -> None:
    """A task's daemon ends with the run, also if the agent was killed; only agent and zygote may be left."""
    stage.script("worker:0", at="start", do="daemonise")
    strike = Strike(stage, lambda stage: os.kill(find(stage), signal.SIGKILL))
    with pytest.raises(error):
        stage.launcher.run(stage.spec(steps=ENDLESS), log_dir=stage.logs, on_progress=strike)
    assert len(sweep.find_left_processes([strike.session])) == left


def test_lost_host_ends_the_run_on_the_other(tmp_path: Path) -> None:
    """The death of one agent of two ends all tasks, the message names this host, and the next run succeeds."""
    with start_stage(tmp_path, TWO_HOSTS) as stage:
        strike = Strike(stage, lambda stage: os.kill(find_parent(find_parent(stage.pid("worker:1"))), signal.SIGKILL))
        with pytest.raises(HostLost, match=f"the agent on {re.escape(stage.launcher.hosts[1])} is gone"):
            stage.launcher.run(stage.spec(steps=ENDLESS), log_dir=stage.logs, on_progress=strike)
        assert sweep.find_left_processes([strike.session]) == []
        stage.forget()
        assert len(stage.run(steps=2).step_s) == 2


def is_agent(pid: int) -> bool:
    """Return whether a process is an agent, since other tests leave their own children."""
    return b"pytest_dtfperf.node.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_ended_agent_is_replaced_before_the_next_run(stage: Stage) -> None:
    """An agent that ended between two runs is replaced, and the next run succeeds."""
    stage.run(steps=2)
    (agent,) = (
        each.pid for each in processes.list_descendants(os.getpid()) if each.parent == os.getpid() and is_agent(each.pid)
    )
    os.kill(agent, signal.SIGTERM)
    wait_until("the agent has ended", lambda: (seen := processes.inspect(agent)) is None or seen.state == "Z")
    stage.forget()
    assert len(stage.run(steps=2).step_s) == 2


@pytest.mark.parametrize(
    ("number", "heartbeat_timeout_s"),
    [(signal.SIGKILL, 60.0), (signal.SIGSTOP, 1.5), (signal.SIGINT, 60.0)],
    ids=["killed", "stopped for longer than its time-out", "interrupted"],
)
def test_no_process_outlives_the_controller(tmp_path: Path, number: signal.Signals, heartbeat_timeout_s: float) -> None:
    """If the controlling process is killed, stopped or interrupted, its agents end all processes, also daemons."""
    argv = ["-c", "from tests.launch.driver import main; main()", str(tmp_path), str(heartbeat_timeout_s)]
    driver = zygote.start(argv, Path.cwd(), {**os.environ, **zygote.SEARCH_PATH}, stdout=subprocess.PIPE)
    assert driver.stdout
    try:
        assert driver.stdout.readline() == "step\n"
        drain = threading.Thread(target=driver.stdout.read, daemon=True)
        drain.start()
        session = read_session(read_pid(tmp_path, "worker:0"))
        assert len(sweep.find_left_processes([session])) >= 6, "agent, zygote, three tasks and a daemon"
        driver.send_signal(number)
        wait_until_nothing_is_left(session)
    finally:
        driver.kill()
        driver.wait()
        drain.join()
        driver.stdout.close()
