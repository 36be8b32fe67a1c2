"""Decide when a run has failed, and which host or task has caused it. Pure: its inputs are the agents' events and the time.

When a parameter server dies, its workers fail within milliseconds, and their events may arrive first. Therefore the
cause is decided a short time after the first failure. It is the most severe event, in this order: a lost host, a dead zygote, a
stopped task, a task killed by a signal, a missing module, a parameter server that exited, a worker that failed. Of equally
severe events it is the first.
"""

import math
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from pytest_dtfperf.clusters.named import Limits
from pytest_dtfperf.clusters.protocol import LossReason, Lost
from pytest_dtfperf.datamodel.task_report import TaskReport
from pytest_dtfperf.errors import (
    Culprit,
    DeadlineExceeded,
    DtfPerfError,
    HostLost,
    MissingModule,
    PortInUse,
    TaskFailed,
    TaskStopped,
    format_exit,
    quote_lines,
)
from pytest_dtfperf.formats import printable
from pytest_dtfperf.messages import Message, append_last_lines, format_given_up
from pytest_dtfperf.messages.agent import (
    BeatMessage,
    ExitMessage,
    ForwardedMessage,
    MissingMessage,
    ProcessEnd,
    ProgressMessage,
    ReadyMessage,
    RefusedMessage,
    ReportMessage,
    ReservedMessage,
    StartedMessage,
    StoppedMessage,
    ZygoteDeathMessage,
)
from pytest_dtfperf.spec import INPUTS, MODELS, VARIABLE_UPDATES, tables

SETTLE_S = 0.5  # a worker's traceback comes within 0.1 s of the death of its parameter server
TERMINATED_S = 3.0  # a batch system or a shutdown sends SIGTERM to all processes of a host, the agent included
_STOPPED = ("T", "t")
_STOPPED_BEATS = 2  # a single one may be a short SIGSTOP


class FailureCause(IntEnum):
    """Causes of a failed run, the most severe first. A cause explains those after it."""

    HOST = 0
    ZYGOTE = 1
    STOPPED = 2
    KILLED = 3
    MISSING = 4
    SERVER_LEFT = 5
    FAILED = 6


@dataclass(frozen=True)
class AgentLoss:
    """The loss of the agent on a host, after which no other event of it follows."""

    host: int
    loss: Lost
    last_lines: Sequence[str]


Event = Message | AgentLoss


@dataclass
class TaskStatus:
    """The state of one task."""

    name: str
    host: int
    started: bool = False
    ready: bool = False
    step: int = 0
    total_steps: int = 0  # 0: unknown, and `step` counts the lines and steps of an external command
    last_progress_s: float = 0.0  # time of its last progress
    stopped_beats: int = 0
    report: TaskReport | None = None
    exited: bool = False
    stays: bool = False  # runs until the order to leave: a parameter server, or a server of a chief


@dataclass
class HostStatus:
    """The state of one host."""

    name: str
    last_event_s: float  # time of its last event
    ports: Sequence[int] | None = None  # once they are reserved
    zygote_stopped_beats: int = 0
    loss: Lost | None = None
    quiet: bool = False  # it has ended all processes of the run


class Watch:
    """The state of one run."""

    def __init__(
        self, tasks: Mapping[str, int], hosts: Sequence[str], limits: Limits, now: float, *, staying: Collection[str]
    ) -> None:
        self.tasks = {name: TaskStatus(name, host, last_progress_s=now, stays=name in staying) for name, host in tasks.items()}
        self.hosts = [HostStatus(name, last_event_s=now) for name in hosts]
        self._limits = limits
        self._began = self._phase_began = now
        self._phase = "reserve"
        self._heard_since = now  # a lower bound of `heard` of all hosts, so that most checks need not read them
        self._on_time_until = now  # no task can be late before this time
        self._failures: list[tuple[FailureCause, float, DtfPerfError]] = []
        self.refusal: HostLost | None = None  # why a host was treated as lost for its messages, also after the last exit
        self._terminated = False  # a process received SIGTERM

    def ports(self, hosts: Iterable[int]) -> dict[int, Sequence[int]] | None:
        """Return the ports reserved on these hosts, once all of them have answered."""
        answers = {host: self.hosts[host].ports for host in hosts}
        return {host: ports for host, ports in answers.items() if ports is not None} if None not in answers.values() else None

    @property
    def all_started(self) -> bool:
        return all(task.started for task in self.tasks.values())

    @property
    def all_ready(self) -> bool:
        return all(task.ready for task in self.tasks.values())

    @property
    def workers_done(self) -> bool:
        return all(task.exited for task in self.tasks.values() if not task.stays)

    @property
    def all_done(self) -> bool:
        return all(task.exited for task in self.tasks.values())

    @property
    def has_failed(self) -> bool:
        """Whether the run has failed, though the cause may still be unknown."""
        return bool(self._failures)

    @property
    def reports(self) -> list[TaskReport]:
        return [task.report for task in self.tasks.values() if task.report is not None]

    def enter(self, phase: str, now: float) -> None:
        """Note that the controller has sent the order that begins a phase: "start", "train" ("go"), "leave"."""
        self._phase, self._phase_began, self._on_time_until = phase, now, now
        for task in self.tasks.values():
            task.last_progress_s = now

    def receive(self, event: Event, now: float) -> None:
        """Process one event of this run."""
        host = self.hosts[event.host]
        host.last_event_s = now
        match event:
            case ReservedMessage():
                host.ports = event.ports
            case RefusedMessage():
                hint = "End the program that listens there, or use any free ports: fixed_ports = false."
                self._fail(FailureCause.HOST, now, PortInUse(f"{event.reason} on {host.name}. {hint}"))
            case StoppedMessage():
                host.quiet = True
            case AgentLoss():
                self._on_lost(event, now)
            case ZygoteDeathMessage():
                self._on_zygote_died(event, now)
            case BeatMessage():
                self._on_beat(event, now)
            case ExitMessage():
                self._on_exit(event, now)
            case StartedMessage():
                self.tasks[event.task].started = True
            case ForwardedMessage():
                self._on_task(event, now)

    def check(self, now: float) -> None:
        """Raise the error that has ended the run, if there is one. Called when no event is waiting."""
        if self._failures:
            cause, _, error = min(self._failures, key=lambda each: each[:2])
            first = min(when for _, when, _ in self._failures)
            settle_s, certain = (TERMINATED_S, FailureCause.HOST) if self._terminated else (SETTLE_S, FailureCause.STOPPED)
            if cause <= certain or now - first >= settle_s:
                raise error
            return
        for overdue in (*self._find_silent_hosts(now), *self._find_overdue_task(now)):
            raise overdue

    def list_silent_hosts(self, now: float) -> list[int]:
        """Return the numbers of the hosts that `check` would treat as lost for their silence."""
        if self._failures or now - self._heard_since <= self._limits.silence_s:
            return []
        self._heard_since = min(host.last_event_s for host in self.hosts)
        return [number for number, host in enumerate(self.hosts) if now - host.last_event_s > self._limits.silence_s]

    # Events

    def _on_lost(self, event: AgentLoss, now: float) -> None:
        host = self.hosts[event.host]
        host.loss = event.loss
        error = HostLost(format_loss(host.name, "is gone", event.loss, event.last_lines), host=host.name)
        if event.loss.reason is LossReason.PROTOCOL_ERROR:
            self.refusal = self.refusal or error
        self._fail(FailureCause.HOST, now, error)

    def _on_zygote_died(self, event: ZygoteDeathMessage, now: float) -> None:
        host = self.hosts[event.host]
        self._note_signal(event)
        message = quote_lines(event.last_lines)
        self._fail(
            FailureCause.ZYGOTE,
            now,
            HostLost(
                f"the zygote on {host.name}, which all its tasks fork from, {_format_end(event)}{message}", host=host.name
            ),
        )

    def _on_task(self, event: ForwardedMessage, now: float) -> None:
        task = self.tasks[event.task]
        task.last_progress_s = now
        match event:
            case ReadyMessage():
                task.ready = True
            case ProgressMessage():
                task.step, task.total_steps = event.step, event.total_steps
            case MissingMessage():
                self._fail(
                    FailureCause.MISSING,
                    now,
                    MissingModule(f"{task.name} on {self.hosts[task.host].name} {_explain_missing_module(event)}"),
                )
            case ReportMessage():
                task.report = event.report

    def _on_exit(self, event: ExitMessage, now: float) -> None:
        task = self.tasks[event.task]
        task.exited = True
        self._note_signal(event)
        if event.signal is not None:
            self._on_task_failed(FailureCause.KILLED, task, _format_end(event), event, now)
        elif task.stays and self._phase != "leave":
            self._on_task_failed(
                FailureCause.SERVER_LEFT, task, f"{_format_end(event)} before its workers were done", event, now
            )
        elif event.code != 0:
            self._on_task_failed(FailureCause.FAILED, task, _format_end(event), event, now)
        elif task.report is None:
            self._on_task_failed(FailureCause.FAILED, task, "ended without a report", event, now)

    def _on_beat(self, event: BeatMessage, now: float) -> None:
        for name, process in event.tasks.items():
            task = self.tasks[name]
            task.stopped_beats = task.stopped_beats + 1 if process.state in _STOPPED else 0
            if task.stopped_beats >= _STOPPED_BEATS and not task.exited:
                what = f"is stopped (state {process.state}): process {process.pid} exists but does not run"
                self._fail(FailureCause.STOPPED, now, TaskStopped(self._find_culprit(task, what)))
        host = self.hosts[event.host]
        host.zygote_stopped_beats = host.zygote_stopped_beats + 1 if event.zygote_state in _STOPPED else 0
        if host.zygote_stopped_beats >= _STOPPED_BEATS:
            what = f"the zygote on {host.name}, which all its tasks fork from, is stopped"
            self._fail(FailureCause.ZYGOTE, now, HostLost(what, host=host.name))

    # Failures

    def _note_signal(self, event: ProcessEnd) -> None:
        """Note a SIGTERM: if all processes of the host received it, the loss of the host follows and is the cause."""
        if event.signal == signal.SIGTERM:
            self._terminated = True

    def _fail(self, cause: FailureCause, now: float, error: DtfPerfError) -> None:
        self._failures.append((cause, now, error))

    def _on_task_failed(self, cause: FailureCause, task: TaskStatus, what: str, event: ExitMessage, now: float) -> None:
        code = event.status if event.status >= 0 else 128 - event.status  # as a shell does
        self._fail(cause, now, TaskFailed(self._find_culprit(task, what, event.last_lines, code)))

    def _find_culprit(self, task: TaskStatus, what: str, last_lines: Sequence[str] = (), code: int | None = None) -> Culprit:
        return Culprit(task.name, self.hosts[task.host].name, what, tuple(last_lines), code=code)

    def _find_silent_hosts(self, now: float) -> Iterator[DtfPerfError]:
        for host in (self.hosts[number] for number in self.list_silent_hosts(now)):
            host.loss = Lost(LossReason.SILENT, f"has given no sign of life for {now - host.last_event_s:.0f} s")
            yield HostLost(f"the agent on {host.name} {host.loss.description}", host=host.name)

    def _find_overdue_task(self, now: float) -> Iterator[DtfPerfError]:
        """Yield the error of the task that is longest overdue, if there is one."""
        limits = self._limits
        if self._phase == "reserve":
            if now - self._began > limits.reserve_s:
                yield HostLost(f"no ports within {limits.reserve_s:g} s from {', '.join(host.name for host in self.hosts)}")
            return
        if now <= self._on_time_until:
            return
        late = [task for task in self.tasks.values() if self._is_late(task, now)]
        if late:
            task = min(late, key=lambda each: (each.step, each.last_progress_s))
            yield DeadlineExceeded(self._find_culprit(task, self._describe_lateness(task)))
        elif now - self._began > limits.run_s:
            task = min(self.tasks.values(), key=lambda each: (each.exited, each.stays, each.step))
            yield DeadlineExceeded(self._find_culprit(task, f"was still running {limits.run_s:g} s after the start of the run"))
        else:
            self._on_time_until = min(self._began + limits.run_s, self._find_first_deadline())

    def _find_first_deadline(self) -> float:
        """Return a time until which no task can become late in this phase."""
        limits = self._limits
        match self._phase:
            case "start":
                return self._phase_began + limits.ready_s
            case "train":
                waited_for = [task.last_progress_s for task in self.tasks.values() if not task.exited and not task.stays]
                return min(waited_for, default=math.inf) + min(limits.progress_s, limits.first_step_s)
            case _:
                return self._phase_began + limits.leave_s

    def _is_late(self, task: TaskStatus, now: float) -> bool:
        since_s = now - task.last_progress_s
        match self._phase:
            case "start":
                return not task.ready and now - self._phase_began > self._limits.ready_s
            case "train":
                limit_s = self._limits.progress_s if task.step else self._limits.first_step_s
                return not task.exited and not task.stays and since_s > limit_s
            case _:
                return not task.exited and now - self._phase_began > self._limits.leave_s

    def _describe_lateness(self, task: TaskStatus) -> str:
        match self._phase:
            case "start":
                return f"was not {'ready' if task.started else 'started'} within {self._limits.ready_s:g} s"
            case "train" if task.step and not task.total_steps:  # an external command: lines and steps are counted
                return (
                    f"printed nothing and reported no step for {self._limits.progress_s:g} s after its line or step {task.step}"
                )
            case "train" if task.step:
                return f"made no progress for {self._limits.progress_s:g} s after step {task.step} of {task.total_steps}"
            case "train":
                return f"made no first step within {self._limits.first_step_s:g} s"
            case _:
                return f"did not leave within {self._limits.leave_s:g} s after the workers were done"


def _explain_missing_module(event: MissingMessage) -> str:
    """Return which module a task lacks, what requires it, and how to install it."""
    what, module = event.what, event.name
    if what != "module":
        mine = tables.find_own_model(module)
        package = mine.package if mine else MODELS.package_of(module) if what == "model" else INPUTS.package_of(module)
        return f"does not know {what}={module}: install {package or 'the package that defines it'} on all hosts, as here"
    needing = {mode: row for mode, row in VARIABLE_UPDATES.items() if row.requires == module}
    hints = [row.install for row in needing.values() if row.install]
    return f"has no module {module}, which variable_update={' or '.join(needing)} needs. {' '.join(hints)}".rstrip()


def format_loss(host: str, what: str, how: Lost, last_lines: Sequence[str]) -> str:
    """Return what happened to the agent on a host (it "is gone"), why, and its last output."""
    if how.reason is LossReason.PROTOCOL_ERROR:
        return format_given_up(host, how.description)
    return append_last_lines(f"the agent on {host} {what}: {printable(how.description)}", last_lines)


def _format_end(event: ProcessEnd) -> str:
    return format_exit(event.status)
