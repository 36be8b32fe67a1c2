"""Every exception this package raises on purpose.

    DtfPerfError
    ├── UsageError                   what the user asked for cannot be: one line, exit code 4, before anything is started
    │   ├── SpecError                what to train
    │   ├── ClusterFileError         clusters.toml
    │   └── BaselineFileError        baselines/*.json
    ├── InfrastructureError          the cluster failed, not the training: an error, never a regression
    │   ├── AllocationError          the cluster lent no hosts
    │   │   └── AllocationOver       it has taken them back: whoever wants to go on needs new ones
    │   ├── DataError                files could not be brought to or from where they are kept
    │   ├── MissingModule            a host lacks a package that the training needs: its test is skipped
    │   ├── HostLost                 an agent or its host is gone or silent
    │   └── PortInUse                a fixed port is taken
    ├── RunFailed                    training failed: names the guilty task, its host, its last lines and its log
    │   ├── TaskFailed               a task ended with an exit code, or was killed by a signal
    │   ├── TaskStopped              a task is alive but does not run (SIGSTOP, a debugger)
    │   └── DeadlineExceeded         a phase took longer than it may, or a task fell silent
    ├── TimeBudgetSpent              no time is left for a measurement: its test is skipped
    ├── InvalidMeasurement           it trained, but the numbers cannot be true
    ├── SessionFileError             a session folder cannot be read or written
    ├── HistoryError                 the database of all sessions cannot be read or written
    └── ExportFailed                 an export of another package: costs its own files alone

A message says what was wrong, where (file and key, or host and task), what is allowed, and how to go on.
"""

import difflib
import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MOST_SHOWN = 60  # characters of what somebody wrote
_SIMILAR = str.maketrans("oil", "011", "-_. ")


class DtfPerfError(Exception):
    """Base of all errors of this package."""


class UsageError(DtfPerfError):
    """What the user asked for cannot be."""


class SpecError(UsageError):
    """A training specification that cannot be trained."""


class ClusterFileError(UsageError):
    """clusters.toml is missing, unreadable, or says something it may not."""


class BaselineFileError(UsageError):
    """A file in baselines/ is unreadable or breaks its schema."""


class InfrastructureError(DtfPerfError):
    """The cluster failed, not the training."""


class AllocationError(InfrastructureError):
    """The cluster lent no hosts."""


class AllocationOver(AllocationError):
    """The cluster has taken its hosts back (time limit, failed node, preemption): a new allocation may help."""


class DataError(InfrastructureError):
    """Files could not be listed, brought or verified."""


class MissingModule(InfrastructureError):
    """A host has no package of this name, without which the training cannot be."""


class HostLost(InfrastructureError):
    """An agent or its host is gone, or has been silent for longer than its time-out."""


class PortInUse(InfrastructureError):
    """A port that the cluster's configuration fixes is taken on a host."""


@dataclass(frozen=True)
class Culprit:
    """The task that ended a run, and where to read on."""

    task: str  # "worker:1"
    host: str
    what: str  # "was killed by SIGKILL"
    last_lines: Sequence[str] = ()
    log: str | None = None  # where all that it has printed is
    unwritten: str | None = None  # why that is in no file
    code: int | None = None  # its exit code, as shells say it: 128 + the signal's number; None: it has not ended by itself

    def __str__(self) -> str:
        text = f"{self.task} on {self.host} {self.what}{quoted_lines(self.last_lines)}"
        if self.log:
            text += f"\n    whole log: {self.log}"
        elif self.unwritten:
            text += f"\n    {self.unwritten}"
        return text


class RunFailed(DtfPerfError):
    """A training run failed; `culprit` says which task, on which host, with its last words."""

    def __init__(self, culprit: Culprit) -> None:
        super().__init__(str(culprit))
        self.culprit = culprit


class TaskFailed(RunFailed):
    """A task ended with a non-zero exit code or by a signal, or a parameter server left before its workers."""


class TaskStopped(RunFailed):
    """A task exists but does not run: it was sent SIGSTOP, or a debugger holds it."""


class DeadlineExceeded(RunFailed):
    """A phase took longer than it may, or a task gave no sign of life."""


class TimeBudgetSpent(DtfPerfError):
    """A measurement is left out, because the time that the session may take is spent."""


class InvalidMeasurement(DtfPerfError):
    """Training ended, but its numbers cannot be true: a loss is not finite, steps are missing, clocks disagree."""


class SessionFileError(DtfPerfError):
    """A session folder is missing, damaged, or held by somebody else."""


class HistoryError(DtfPerfError):
    """The history is not there, damaged, of a newer version, or its disk or server cannot be reached."""


class ExportFailed(DtfPerfError):
    """An export of another package raised something."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Say that `name` is no `kind`, offer the nearest known one and list them all."""
    names = sorted(known)
    found = nearest(str(name), names)
    hint = f" Did you mean {found!r}?" if found else ""
    return f"unknown {kind} {show_value(str(name))}.{hint} Known: {', '.join(names) or 'none'}."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one: first one that differs by case, by - and _, or by 0 and O, 1 and l."""
    names = [*known]
    same = (each for each in names if each.casefold().translate(_SIMILAR) == name.casefold().translate(_SIMILAR))
    return next(same, None) or next(iter(difflib.get_close_matches(name[:MOST_SHOWN], names, n=1)), None)


UNEXPANDED = re.compile(r"~(/|$)|\$\w|\$\{")  # what a shell would have replaced, at the begin of a path or a name


def show_value(value: object) -> str:
    """A value as a message quotes it, and of a long one the beginning, so that the rest of the message is seen."""
    if isinstance(value, str):
        return repr(value) if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]!r}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def quoted_lines(lines: Iterable[str]) -> str:
    """What somebody else has printed, line by line below a message of ours."""
    return "".join(f"\n    | {line}" for line in lines)


def signal_name(number: int) -> str:
    """SIGKILL; of a real-time signal, which Linux gives no name of its own, SIGRTMIN+6; of what is none, `signal 77`."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_words(code: int) -> str:
    """How a process ended, by an exit code of Python's, which is minus the signal's number where one has ended it."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"


def first_line(error: BaseException) -> str:
    """What an error says, without what it quotes; of one that says nothing, what it is."""
    return str(error).partition("\n")[0] or type(error).__name__
