"""Where the seconds of a step go: the breakdown of traced steps, and the timings of workers in the measured steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.task_report import fraction


class WorkKind(StrEnum):
    """The kinds of work in a step."""

    # Work that has a begin and an end. Where several kinds go on at once, the first in this order counts.
    FORWARD = "forward"
    BACKWARD = "backward"
    COMPILED = "compiled"  # forward and backward in one, by XLA
    APPLY = "apply"  # updates of variables
    INPUT = "input"
    COPY = "copy"  # between a GPU and its host
    REDUCE = "reduce"  # all-reduces
    RECEIVE = "receive"
    SEND = "send"
    WAIT = "wait"  # for other tasks
    # The rest of a step.
    HOST = "host"  # TensorFlow's host code, gRPC and dispatch
    PYTHON = "python"  # before the session is called
    UNKNOWN = "unknown"
    LATE = "late"  # on the critical path only: the step of a worker begins after that of the first worker


KINDS = tuple(WorkKind)
WORK = KINDS[: KINDS.index(WorkKind.HOST)]  # the kinds that have a begin and an end

MAX_PARTS, MAX_LINKS, MAX_VARIABLES = 24, 32, 4  # smaller ones are added up, or left out where nothing must add up
MAX_PAUSES = 16

_seconds: dict[str, Any] = {"unit": "s", "at_least": 0}
_by_kind: dict[str, Any] = {"key_pattern": "|".join(KINDS), **_seconds}
_WORKER = "The worker that caused it; null: all of them, or not known"


@dataclass(frozen=True)
class Part(JsonData):
    """A part of the critical path."""

    kind: WorkKind = field(metadata=describe("Kind of work"))
    location: str | None = field(metadata=describe("A task, or a link as in ps:0>worker:1; null: several small ones"))
    variable: str | None = field(metadata=describe("The transferred variable; null: none, or not known"))
    seconds: float = field(metadata=describe("Seconds of a step", **_seconds))


@dataclass(frozen=True)
class TaskTime(JsonData):
    """The time of one task in a step."""

    wall_s: float = field(metadata=describe("Duration of its step", **_seconds))
    cpu_s: float | None = field(metadata=describe("CPU time of its process; null: it has no session of its own", **_seconds))
    parts: Mapping[str, float] = field(metadata=describe("Kind of work to seconds, which add up to wall_s", **_by_kind))


@dataclass(frozen=True)
class LinkTraffic(JsonData):
    """The traffic from one task to another."""

    source: str = field(metadata=describe("The task that sends"))
    destination: str = field(metadata=describe("The task that receives"))
    size_bytes: float = field(metadata=describe("Bytes per step", unit="bytes", at_least=0))
    busy_s: float | None = field(
        metadata=describe(
            "Seconds per step with a transfer in progress; null: the errors of the clocks are too large", **_seconds
        )
    )
    variables: Mapping[str, float] = field(
        metadata=describe("The largest variables to their bytes per step", unit="bytes", at_least=0)
    )

    @property
    def bytes_per_s(self) -> float | None:
        return self.size_bytes / self.busy_s if self.busy_s else None


@dataclass(frozen=True)
class StepBreakdown(JsonData):
    """The seconds of a step: means over the traced steps of one training."""

    steps: int = field(metadata=describe("Number of traced steps", at_least=1))
    wall_s: float = field(
        metadata=describe(
            "From the first worker's begin to the last one's end; of the slowest worker if steps are not in lockstep",
            **_seconds,
        )
    )
    path: Sequence[Part] = field(
        metadata=describe("The cluster's critical path, the largest part first; adds up to wall_s. Empty: not known")
    )
    tasks: Mapping[str, TaskTime] = field(metadata=describe("Task to its time"))
    links: Sequence[LinkTraffic] = field(
        metadata=describe(f"The busiest links first, {MAX_LINKS} at most; not known where the path is not")
    )
    clock_error_s: Mapping[str, float] = field(
        metadata=describe("Task to the error of its clock against the chief's; absent: not known", **_seconds)
    )
    error_s: Mapping[str, float] = field(
        default_factory=dict,
        metadata=describe("Kind of work to the largest standard error of a worker's mean over the steps", **_by_kind),
    )

    @property
    def parts(self) -> Sequence[Part]:
        """The parts that add up to `wall_s`: the path, or the time of the slowest worker where no path is known."""
        if self.path:
            return self.path
        slowest = max(self.tasks, key=lambda task: self.tasks[task].wall_s)
        return [Part(WorkKind(kind), slowest, None, seconds) for kind, seconds in self.tasks[slowest].parts.items()]


@dataclass(frozen=True, kw_only=True)
class Pause(JsonData):
    """A step that was much longer than those around it."""

    step: int = field(metadata=describe("Number of the step among the measured ones; the first is 1", at_least=1))
    seconds: float = field(metadata=describe("Difference from the usual duration", **_seconds))
    worker: str | None = field(metadata=describe(_WORKER))


@dataclass(frozen=True, kw_only=True)
class Period(JsonData):
    """Pauses that recur at a regular distance."""

    steps: float = field(metadata=describe("From one pause to the next", above=0))
    seconds: float = field(metadata=describe("From one pause to the next", **_seconds))
    pauses: int = field(metadata=describe("Number of pauses with this period", at_least=0))
    worker: str | None = field(metadata=describe(_WORKER))


@dataclass(frozen=True, kw_only=True)
class WorkerTiming(JsonData):
    """Means over the steps of one worker. None: not known."""

    steps: int = field(metadata=describe("Steps with timestamps", at_least=0))
    python_s: float | None = field(
        metadata=describe(
            "From the end of the step before until the session is called: Python, and an injected slow-down. Of a program "
            "that reports its steps: until it reports the next begin",
            **_seconds,
        )
    )
    receive_s: float | None = field(metadata=describe("Until the values of its variables have arrived", **_seconds))
    compute_s: float | None = field(metadata=describe("Until its last gradient is ready", **_seconds))
    finish_s: float | None = field(
        metadata=describe("Until the step's end: sending, updating, and waiting for the others", **_seconds)
    )
    cpu_s: float | None = field(metadata=describe("User and system time of its process", **_seconds))
    ready_s: float | None = field(metadata=describe("python_s + receive_s + compute_s", **_seconds))
    ready_error_s: float | None = field(metadata=describe("Standard error of ready_s", **_seconds))
    # Against the other workers, where all have common steps, else None:
    last: float | None = field(
        default=None, metadata=describe("Fraction of the steps in which it was the last to have its gradients", **fraction)
    )
    late_s: float | None = field(
        default=None,
        metadata=describe("Delay of its gradients after the median of the others; negative: before", unit="s"),
    )
    late_error_s: float | None = field(default=None, metadata=describe("Standard error of late_s", **_seconds))
    behind: float | None = field(
        default=None, metadata=describe("Fraction of the steps in which it was clearly after that median", **fraction)
    )


@dataclass(frozen=True, kw_only=True)
class WorkerTimings(JsonData):
    """The timings of all workers of one run."""

    steps: int = field(metadata=describe("Measured steps", at_least=1))
    step_s: float | None = field(metadata=describe("Mean of a measured step, over all workers", **_seconds))
    workers: Mapping[str, WorkerTiming] = field(metadata=describe("Worker to its timing"))
    paused: int = field(default=0, metadata=describe("Steps that are much longer than usual", at_least=0))
    pauses: Sequence[Pause] = field(
        default=(), metadata=describe(f"The longest of these, the longest first, {MAX_PAUSES} at most")
    )
    periods: Sequence[Period] = field(default=(), metadata=describe("Pauses that recur"))
