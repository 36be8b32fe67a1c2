"""Tests of the detection of a failed run and its cause, from events and a clock."""

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.errors import (
    DeadlineExceeded,
    DtfPerfError,
    HostLost,
    MissingModule,
    PortInUse,
    RunFailed,
    TaskFailed,
    TaskStopped,
)
from pytest_dtfperf.launch.watch import SETTLE_S, TERMINATED_S, AgentLoss, Watch
from pytest_dtfperf.messages.agent import AGENT

LIMITS = Limits(reserve_s=5, ready_s=60, first_step_s=100, progress_s=30, leave_s=10, silence_s=8, run_s=1000)
TASKS = {"ps:0": 0, "worker:0": 0, "worker:1": 1}


def make_report(task: str) -> TaskReport:
    job, _, index = task.partition(":")
    return TaskReport(job=job, index=int(index), step_s=[1.0])


class Story:
    """Hold a run that receives its events one by one, each at its time."""

    def __init__(self) -> None:
        self.watch = Watch(TASKS, ["anna", "bert"], LIMITS, now=0.0, staying=["ps:0"])

    def receive(self, event: str, now: float, *, host: int | None = None, task: str = "", **data: Any) -> None:
        host = TASKS.get(task, 0) if host is None else host
        of_task = {"task": task} if task else {}
        self.watch.receive(AGENT.parse({"event": event, "host": host, "run": "r", **of_task, **data}), now)

    def lose(self, host: int, now: float, how: Lost, last_lines: Sequence[str] = ()) -> None:
        self.watch.receive(AgentLoss(host, how, last_lines), now)

    def exit(self, task: str, now: float, *, code: int | None = None, signal: int | None = None) -> None:
        self.receive("exit", now, task=task, code=code, signal=signal, last_lines=[f"last words of {task}"])

    def beat(self, now: float, host: int = 0, zygote_state: str = "S", **states: str) -> None:
        tasks = {name.replace("_", ":"): {"pid": 7, "state": state, "cpu_s": 1.0} for name, state in states.items()}
        self.receive("beat", now, host=host, tasks=tasks, zygote_state=zygote_state, load=0.1)

    def beats(self, until: float) -> None:
        for host in (0, 1):
            self.beat(until, host=host)

    def train(self, now: float = 1.0) -> "Story":
        """Start all tasks, which are ready."""
        self.watch.enter("start", now)
        for task in TASKS:
            self.receive("started", now, task=task, pid=7)
            self.receive("task", now, task=task, kind="ready")
        assert self.watch.all_ready
        self.watch.enter("train", now)
        return self

    def work(self, task: str, step: int, now: float) -> None:
        self.receive("task", now, task=task, kind="progress", step=step, total_steps=10)

    def finish(self, task: str, now: float) -> None:
        self.receive("task", now, task=task, kind="report", **make_report(task).to_json())
        self.exit(task, now, code=0)

    def verdict(self, now: float) -> DtfPerfError | None:
        try:
            self.watch.check(now)
        except DtfPerfError as error:
            return error
        return None


def test_good_run_has_no_verdict() -> None:
    """A run without errors is complete, with all reports, and has no error."""
    story = Story().train()
    for worker in ("worker:0", "worker:1"):
        story.work(worker, 10, 2.0)
        story.finish(worker, 3.0)
    assert (story.watch.workers_done, story.watch.all_done) == (True, False)
    story.watch.enter("leave", 3.0)
    story.finish("ps:0", 3.1)
    assert story.watch.all_done
    assert not story.watch.has_failed
    assert story.verdict(3.1 + SETTLE_S) is None
    assert [report.job for report in story.watch.reports] == ["ps", "worker", "worker"]
    assert story.watch.reports[1].to_json() == make_report("worker:0").to_json()


def test_failed_worker_is_named_with_its_last_lines() -> None:
    """A worker's exit code becomes a failure with its name, host and last lines, after a moment for worse events."""
    story = Story().train()
    story.exit("worker:1", 2.0, code=3)
    assert story.verdict(2.0 + SETTLE_S / 2) is None
    error = story.verdict(2.0 + SETTLE_S)
    assert isinstance(error, TaskFailed)
    assert str(error) == "worker:1 on bert left with exit code 3\n    | last words of worker:1"


CAUSES: dict[str, tuple[list[tuple[str, dict[str, int]]], str]] = {
    "a killed ps explains its workers' tracebacks": (
        [("worker:0", {"code": 1}), ("worker:1", {"code": 1}), ("ps:0", {"signal": 9})],
        "ps:0 on anna was killed by SIGKILL",
    ),
    "a ps that left explains its workers' tracebacks": (
        [("worker:1", {"code": 1}), ("ps:0", {"code": 1})],
        "ps:0 on anna left with exit code 1 before its workers were done",
    ),
    "a ps that left without an error is guilty, too": (
        [("ps:0", {"code": 0}), ("worker:0", {"code": 1})],
        "ps:0 on anna left with exit code 0 before its workers were done",
    ),
    "a killed worker explains a ps that failed": (
        [("ps:0", {"code": 1}), ("worker:0", {"signal": 11})],
        "worker:0 on anna was killed by SIGSEGV",
    ),
    "among equals the first is guilty": (
        [("worker:1", {"code": 1}), ("worker:0", {"code": 1})],
        "worker:1 on bert left with exit code 1",
    ),
    "a worker without a report has not trained": (
        [("worker:0", {"code": 0})],
        "worker:0 on anna ended without a report",
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_first_cause_is_named(case: str) -> None:
    """Of failures within a moment, the one that explains the others is named."""
    exits, words = CAUSES[case]
    story = Story().train()
    for i, (task, how) in enumerate(exits):
        story.exit(task, 2.0 + 0.01 * i, **how)
    error = story.verdict(2.0 + SETTLE_S)
    assert isinstance(error, TaskFailed)
    assert str(error).startswith(words)


def test_missing_module_is_the_cause() -> None:
    """A missing module explains failures before it, and the task's end without a report."""
    story = Story()
    story.watch.enter("start", 1.0)
    story.exit("worker:0", 2.0, code=1)
    story.receive("task", 2.1, task="worker:1", kind="missing", what="module", name="horovod.tensorflow")
    story.exit("worker:1", 2.1, code=0)
    error = story.verdict(2.0 + SETTLE_S)
    assert isinstance(error, MissingModule)
    assert str(error).startswith(
        "worker:1 on bert has no module horovod.tensorflow, which variable_update=horovod needs. On its"
    )


def test_missing_module_explains_an_ended_server() -> None:
    """A missing module explains a server that exited before."""
    story = Story().train()
    story.exit("ps:0", 2.0, code=0)
    story.receive("task", 2.1, task="worker:1", kind="missing", what="module", name="horovod.tensorflow")
    assert isinstance(story.verdict(2.0 + SETTLE_S), MissingModule)


KILLED = Lost(LossReason.ENDED, "the agent was killed by SIGKILL")


def test_lost_host_ends_the_run_at_once() -> None:
    """A lost agent is the cause at once, also after the failure of a task."""
    story = Story().train()
    story.exit("worker:0", 2.0, code=1)
    story.lose(1, 2.1, KILLED)
    error = story.verdict(2.1)
    assert isinstance(error, HostLost)
    assert str(error) == "the agent on bert is gone: the agent was killed by SIGKILL"


ENDS: dict[str, tuple[Lost, list[str], str]] = {
    "its words stand below how it ended": (
        Lost(LossReason.ENDED, "the agent left with exit code 1"),
        ["no module x"],
        "the agent on bert is gone: the agent left with exit code 1\n    | no module x",
    ),
    "a word of Slurm's is how it ended": (
        Lost(LossReason.TAKEN_BACK, "Slurm job 17 ended: node bert failed (NODE_FAIL)"),
        ["srun: error: Node failure on bert"],
        "the agent on bert is gone: Slurm job 17 ended: node bert failed (NODE_FAIL)\n    | srun: error: Node failure on bert",
    ),
    "a program's last word is no end, whatever it looks like": (
        KILLED,
        ["(warming up)", "Slurm job 17 ended"],
        "the agent on bert is gone: the agent was killed by SIGKILL\n    | (warming up)\n    | Slurm job 17 ended",
    ),
    "what is said of the end obeys no terminal": (
        Lost(LossReason.CUT_OFF, "bert \x1b[31manswers no more"),
        [],
        "the agent on bert is gone: bert \\x1b[31manswers no more",
    ),
    "it has lied": (
        Lost(LossReason.PROTOCOL_ERROR, "sent 'exit' twice"),
        [],
        (
            "host bert was disconnected because it sent 'exit' twice. Its agent has another version, is broken, or is another "
            "program"
        ),
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_end_of_an_agent_is_in_the_first_line(case: str) -> None:
    """The message has the backend's reason, with the agent's output below it, and only a protocol error makes the run's numbers
    refused."""
    how, words, message = ENDS[case]
    story = Story().train()
    story.lose(1, 2.0, how, words)
    assert str(story.verdict(2.0)) == message
    assert [host.loss for host in story.watch.hosts] == [None, how]
    assert (str(story.watch.refusal) == message) is (how.reason is LossReason.PROTOCOL_ERROR), (
        "and no number of such a run is believed"
    )


def test_dead_zygote_is_the_cause() -> None:
    """A dead zygote is the cause at once, and not the tasks that die with it."""
    story = Story().train()
    story.receive("zygote_died", 2.0, host=0, signal=9, code=None, last_lines=[])
    story.exit("worker:0", 2.0, signal=9)
    error = story.verdict(2.0)
    assert isinstance(error, HostLost)
    assert "the zygote on anna" in str(error)
    assert "was killed by SIGKILL" in str(error)


def test_dead_zygote_explains_a_stopped_task() -> None:
    """A dead zygote is the cause, also after a task was seen stopped."""
    story = Story().train()
    for now in (2.0, 3.0):
        story.beat(now, worker_0="T")
    story.receive("zygote_died", 3.1, host=0, signal=9, code=None, last_lines=[])
    assert "the zygote on anna" in str(story.verdict(3.1))


def test_lost_host_explains_terminated_tasks() -> None:
    """A task that received SIGTERM is the cause only if its host is not lost within a longer moment."""
    story = Story().train()
    story.exit("worker:0", 2.0, signal=15)
    story.receive("zygote_died", 2.0, host=0, signal=15, code=None, last_lines=[])
    assert story.verdict(2.0 + SETTLE_S) is None
    story.lose(0, 4.0, Lost(LossReason.TAKEN_BACK, "Slurm job 7 was cancelled (CANCELLED)"))
    assert "Slurm job 7 was cancelled" in str(story.verdict(4.0))
    alone = Story().train()
    alone.exit("worker:0", 2.0, signal=15)
    assert "was killed by SIGTERM" in str(alone.verdict(2.0 + TERMINATED_S))


def test_stopped_task_is_named_after_two_beats() -> None:
    """A task in state T for two beats is stopped, and for one beat it is not."""
    story = Story().train()
    story.beat(2.0, worker_0="S", ps_0="T")
    story.beat(3.0, worker_0="S", ps_0="S")
    story.beat(4.0, worker_0="T", ps_0="S")
    assert story.verdict(4.0) is None
    story.beat(5.0, worker_0="T", ps_0="S")
    error = story.verdict(5.0)
    assert isinstance(error, TaskStopped)
    assert error.culprit.task == "worker:0"
    assert "is stopped (state T): process 7 exists but does not run" in str(error)


def test_ended_task_is_not_stopped() -> None:
    """A task that ended between two beats with state T is no failure."""
    story = Story().train()
    story.beat(2.0, worker_0="T")
    story.finish("worker:0", 2.1)
    story.beat(2.2, worker_0="T")
    assert not story.watch.has_failed


def test_stopped_zygote_is_named_after_two_beats() -> None:
    """A zygote in state T for two beats is the cause."""
    story = Story().train()
    for now in (2.0, 3.0):
        assert story.verdict(now) is None
        story.beat(now, zygote_state="T")
    error = story.verdict(3.0)
    assert isinstance(error, HostLost)
    assert "the zygote on anna" in str(error)
    assert "is stopped" in str(error)


def test_silent_host_is_lost() -> None:
    """An agent without a message for `silence_s` is lost, as silent."""
    story = Story().train()
    story.beat(9.0, host=0)
    assert story.verdict(9.0) is None
    error = story.verdict(9.5)
    assert isinstance(error, HostLost)
    assert "the agent on bert has given no sign of life for 8 s" in str(error)
    assert [host.loss and host.loss.reason for host in story.watch.hosts] == [None, LossReason.SILENT]


def test_silence_after_a_failure_is_no_cause() -> None:
    """After a failure no host is silent, and the failure is the cause."""
    story = Story().train()
    assert story.watch.list_silent_hosts(9.5) == [0, 1]
    story.exit("worker:1", 9.5, code=3)
    assert story.watch.list_silent_hosts(30.0) == []
    assert isinstance(story.verdict(30.0), TaskFailed)


def test_taken_port_is_named_with_its_remedy() -> None:
    """A refused port is an error with the port, the host and the remedy."""
    story = Story()
    story.receive("refused", 0.1, host=1, reason="port 2220 is taken", ports=[2220])
    error = story.verdict(0.1)
    assert isinstance(error, PortInUse)
    assert "port 2220 is taken on bert" in str(error)
    assert "fixed_ports = false" in str(error)


def test_ports_are_complete_after_all_answers() -> None:
    """Ports are complete once every host of the request has answered."""
    story = Story()
    story.receive("reserved", 0.1, host=0, ports=[5, 6])
    assert story.watch.ports([0, 1]) is None
    assert story.watch.ports([0]) == {0: [5, 6]}
    story.receive("reserved", 0.2, host=1, ports=[7])
    assert story.watch.ports([0, 1]) == {0: [5, 6], 1: [7]}


def check_late(story: Story, now: float) -> RunFailed:
    """Return the error at a time at which all hosts have just sent a beat."""
    story.beats(now)
    error = story.verdict(now)
    assert isinstance(error, DeadlineExceeded)
    return error


def test_agent_without_reserved_ports_is_lost() -> None:
    """An agent that reserves no port within its limit is lost."""
    story = Story()
    story.beats(5.5)
    assert isinstance(story.verdict(5.5), HostLost)


def test_late_task_is_named_with_its_state() -> None:
    """A task that is not ready in time is named, and whether it was started."""
    story = Story()
    story.watch.enter("start", 0.0)
    for task in ("ps:0", "worker:0"):
        story.receive("started", 1.0, task=task, pid=7)
        story.receive("task", 1.0, task=task, kind="ready")
    story.beats(59.0)
    assert story.verdict(60.0) is None
    assert "worker:1 on bert was not started within 60 s" in str(check_late(story, 60.5))
    story.receive("started", 60.5, task="worker:1", pid=7)
    assert "worker:1 on bert was not ready within 60 s" in str(check_late(story, 60.5))


def test_first_step_has_its_own_limit() -> None:
    """The first step has a longer limit, after which the worker is named."""
    story = Story().train(0.0)
    story.beats(99.0)
    assert story.verdict(100.0) is None
    assert "worker:0 on anna made no first step within 100 s" in str(check_late(story, 100.5))


def test_worker_furthest_behind_is_named() -> None:
    """Of workers without progress the one furthest behind is named, with its last step."""
    story = Story().train()
    story.work("worker:0", 5, 10.0)
    story.work("worker:1", 4, 10.0)
    story.beats(39.0)
    assert story.verdict(40.0) is None
    assert "worker:1 on bert made no progress for 30 s after step 4 of 10" in str(check_late(story, 40.5))


def test_checks_between_steps_do_not_hide_a_late_worker() -> None:
    """Checks at any time report a worker that makes no progress, and not before its limit."""
    story = Story().train()
    for now in range(1, 90):
        story.beats(now)
        if now < 50:
            story.work("worker:0", now, now)
        story.work("worker:1", now, now)
        expected = DeadlineExceeded if now > 79 else type(None)
        assert isinstance(story.verdict(now), expected), now


def test_checks_between_beats_do_not_hide_a_silent_host() -> None:
    """Checks at any time report the one silent host, and not before its limit."""
    story = Story().train()
    for now in range(1, 30):
        story.beat(now, host=0)
        if now <= 12:
            story.beat(now, host=1)
        assert story.watch.list_silent_hosts(now) == ([1] if now > 20 else []), now


def test_finished_worker_is_not_late() -> None:
    """A finished worker is not late."""
    story = Story().train()
    story.work("worker:0", 10, 2.0)
    story.finish("worker:0", 2.0)
    story.work("worker:1", 9, 30.0)
    story.beats(40.0)
    assert story.verdict(40.0) is None


def test_server_that_does_not_exit_is_named() -> None:
    """A server that stays after its workers is named after its limit."""
    story = Story().train()
    for worker in ("worker:0", "worker:1"):
        story.finish(worker, 2.0)
    story.watch.enter("leave", 2.0)
    story.beats(11.9)
    assert story.verdict(12.0) is None
    assert "ps:0 on anna did not leave within 10 s" in str(check_late(story, 12.5))


def test_run_has_its_own_limit() -> None:
    """A run that makes progress ends at its own limit."""
    story = Story().train()
    story.work("worker:0", 5, 995.0)
    story.work("worker:1", 6, 995.0)
    assert "worker:0 on anna was still running 1000 s after the start of the run" in str(check_late(story, 1000.5))
