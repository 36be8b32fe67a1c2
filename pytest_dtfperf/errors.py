"""All exceptions that this package raises on purpose.

    DtfPerfError
    ├── UsageError                   the user's request is invalid: one line, exit code 4, before anything is started
    │   ├── SpecError                what to train
    │   ├── ClusterFileError         clusters.toml
    │   └── BaselineFileError        baselines/*.json
    ├── InfrastructureError          the cluster failed, not the training: an error, never a regression
    │   ├── AllocationError          the cluster allocated no hosts
    │   │   └── AllocationOver       it has reclaimed them: a new allocation is needed
    │   ├── DataError                files could not be copied to or from storage
    │   ├── MissingModule            a host lacks a package that the training needs: its test is skipped
    │   ├── HostLost                 an agent or its host is gone or silent
    │   └── PortInUse                a fixed port is taken
    ├── RunFailed                    training failed: names the guilty task, its host, its last lines and its log
    │   ├── TaskFailed               a task ended with an exit code, or was killed by a signal
    │   ├── TaskStopped              a task is alive but does not run (SIGSTOP, a debugger)
    │   └── DeadlineExceeded         a phase took longer than it may, or a task fell silent
    ├── BuildFailed                  a software stack could not be built: a comparison ends, a bisection skips it
    ├── TimeBudgetSpent              no time is left for a measurement: its test is skipped
    ├── InvalidMeasurement           it trained, but the numbers are inconsistent
    ├── SessionFileError             a session folder cannot be read or written
    ├── HistoryError                 the database of all sessions cannot be read or written
    └── ExportFailed                 an export of another package: affects only its own files

A message states what is wrong, where (file and key, or host and task), what is allowed, and how to continue.
"""

import difflib
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

MOST_SHOWN = 60  # characters of the user's input in a message
_ADDRESS = re.compile(r"[0-9]+(\.[0-9]+){3}")
_SIMILAR = str.maketrans("oil", "011", "-_. ")


class DtfPerfError(Exception):
    """Base of all errors of this package."""


class UsageError(DtfPerfError):
    """The user's request is invalid."""


class SpecError(UsageError):
    """A training specification that cannot be trained."""


class ClusterFileError(UsageError):
    """clusters.toml is missing, unreadable, or invalid."""


class BaselineFileError(UsageError):
    """A file in baselines/ is unreadable or breaks its schema."""


class InfrastructureError(DtfPerfError):
    """The cluster failed, not the training.

    Attributes:
        host: the name of the first host that failed, if known.
        hosts: the names of all hosts that failed, as far as known.
        reasons: the reasons of hosts that failed for reasons of their own. The message has all of them.
    """

    def __init__(
        self,
        message: str,
        *,
        host: str | None = None,
        hosts: Sequence[str] = (),
        reasons: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(message)
        self.reasons = reasons
        self.hosts = hosts or list(reasons) or ([host] if host else [])
        self.host = host or next(iter(self.hosts), None)

    def describe_host(self, host: str) -> str:
        """Return why this host failed, on one line."""
        return " ".join(self.reasons.get(host, str(self)).split())


class AllocationError(InfrastructureError):
    """The cluster allocated no hosts."""


class AllocationOver(AllocationError):
    """The cluster has reclaimed its hosts (time limit, failed node, preemption): a new allocation may help."""


class DataError(InfrastructureError):
    """Files could not be listed, copied or verified."""


class MissingModule(InfrastructureError):
    """A host lacks a package of this name, which the training requires."""


class HostLost(InfrastructureError):
    """An agent or its host is gone, or has been silent for longer than its time-out."""


class PortInUse(InfrastructureError):
    """A port that the cluster's configuration fixes is taken on a host."""


@dataclass(frozen=True)
class Culprit:
    """The task that ended a run, and its log."""

    task: str  # "worker:1"
    host: str
    description: str  # "was killed by SIGKILL"
    last_lines: Sequence[str] = ()
    log: str | None = None  # path of its whole output
    unwritten: str | None = None  # why its output is in no file
    code: int | None = None  # its exit code as in shells: 128 + the signal's number; None: it has not ended by itself

    def __str__(self) -> str:
        text = f"{self.task} on {self.host} {self.description}{quote_lines(self.last_lines)}"
        if self.log:
            text += f"\n    whole log: {self.log}"
        elif self.unwritten:
            text += f"\n    {self.unwritten}"
        return text


class RunFailed(DtfPerfError):
    """A training run failed; `culprit` has the task, its host, and its last lines."""

    def __init__(self, culprit: Culprit) -> None:
        super().__init__(str(culprit))
        self.culprit = culprit


class TaskFailed(RunFailed):
    """A task ended with a non-zero exit code or by a signal, or a parameter server exited before its workers."""


class TaskStopped(RunFailed):
    """A task exists but does not run: it was sent SIGSTOP, or a debugger holds it."""


class DeadlineExceeded(RunFailed):
    """A phase took longer than it may, or a task was silent for too long."""


class BuildFailed(DtfPerfError):
    """A software stack could not be built."""


class TimeBudgetSpent(DtfPerfError):
    """A measurement is left out, because the time that the session may take is spent."""


class InvalidMeasurement(DtfPerfError):
    """Training ended, but its numbers are inconsistent: a loss is not finite, steps are missing, clocks disagree."""


class SessionFileError(DtfPerfError):
    """A session folder is missing, damaged, or held by another process."""


class HistoryError(DtfPerfError):
    """The history is missing, damaged, of a newer version, or its disk or server cannot be reached."""


class ExportFailed(DtfPerfError):
    """An export of another package raised an exception."""


def describe_unknown_name(kind: str, name: object, known: Iterable[str]) -> str:
    """Return a message that `name` is no `kind`, with the nearest known name and all of them."""
    names = sorted(known)
    found = find_nearest(str(name), names)
    hint = f" Did you mean {found!r}?" if found else ""
    return f"unknown {kind} {show_value(str(name))}.{hint} Known: {', '.join(names) or 'none'}."


def find_nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like this one: first one that differs by case, by - and _, or by 0 and O, 1 and l."""
    names = [*known]
    same = (each for each in names if each.casefold().translate(_SIMILAR) == name.casefold().translate(_SIMILAR))
    return next(same, None) or next(iter(difflib.get_close_matches(name[:MOST_SHOWN], names, n=1)), None)


def group_reasons(reasons: Mapping[str, str]) -> dict[str, list[str]]:
    """Return each reason with its hosts. Reasons that differ only in the name or address of the host are one: the first."""
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for host, reason in reasons.items():
        common = _ADDRESS.sub("", reason.replace(host, ""))
        found.setdefault(reason if reason in found else first.setdefault(common, reason), []).append(host)
    return found


UNEXPANDED = re.compile(r"~(/|$)|\$\w|\$\{")  # syntax that a shell would have expanded, at the beginning of a path or a name


def show_value(value: object) -> str:
    """Return a value as a message quotes it; of a long one only the beginning, so that the rest of the message is visible."""
    if isinstance(value, str):
        return repr(value) if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]!r}... ({len(value)} characters)"
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def quote_lines(lines: Iterable[str]) -> str:
    """Return another program's output, line by line, for the end of a message."""
    return "".join(f"\n    | {line}" for line in lines)


def signal_name(number: int) -> str:
    """Return SIGKILL; for a real-time signal, which has no name in Linux, SIGRTMIN+6; for an invalid one, `signal 77`."""
    if signal.SIGRTMIN < number < signal.SIGRTMAX:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def format_exit(code: int) -> str:
    """Return how a process ended, by an exit code of Python, which is minus the signal's number for a killed one."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"left with exit code {code}"


def get_first_line(error: BaseException) -> str:
    """Return an error's message without quoted output; its class if the message is empty."""
    return str(error).partition("\n")[0] or type(error).__name__
