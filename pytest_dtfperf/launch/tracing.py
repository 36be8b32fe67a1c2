"""A run's step breakdown and worker timings from its tasks' traces and timestamps. Failures here affect only these."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path

from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTiming, WorkerTimings
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.explain.step_events import align_clocks, write_perfetto
from pytest_dtfperf.explain.worker_timings import compute_worker_timings
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.traces import (
    MOST_STEPS,
    InvalidTimestamps,
    InvalidTrace,
    StepTimestamps,
    TaskTrace,
    unpack_timestamps,
    unpack_trace,
)

TRACED_STEPS = 6  # the first of them does not count
FILE = "trace.json.gz"  # beside the tasks' logs


@dataclass
class Tracing:
    """The traces of one run's tasks."""

    spec: Spec
    hosts: Mapping[str, object]  # task -> its host
    is_requested: bool
    packed: dict[str, str] = field(default_factory=dict)  # task -> its packed trace
    _refused: str = ""

    @property
    def steps(self) -> int:
        """How many steps are traced."""
        return TRACED_STEPS if self.is_requested else 0

    def receive(self, task: str, data: str | None, error: str | None) -> None:
        """Process a task's trace, or the reason why there is none."""
        if data is not None:
            self.packed[task] = data
        else:
            self._refused = self._refused or f"{task} could not be traced: {error}"

    def outcome(self) -> tuple[StepBreakdown | None, str]:
        """Return the step breakdown, or why there is none though it was requested."""
        if not self.is_requested or self._refused:
            return None, self._refused
        if not self.packed:
            what = "an external command" if self.spec.command else f"variable_update={self.spec.variable_update}"
            return None, f"{what} cannot be traced"
        try:
            return compute_step_breakdown(self._traces, lockstep=self._lockstep, clocks=self._one_clock), ""
        except InvalidTrace as error:
            return None, f"the trace {error}"

    def write(self, folder: Path) -> None:
        """Write all events for Perfetto. A failure must not lose the run."""
        if not self.packed or self._refused:
            return
        with suppress(OSError, InvalidTrace):
            clocks = align_clocks(self._traces, self._one_clock)
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / FILE).open("wb") as file:
                write_perfetto(file, self._traces, clocks)

    @property
    def _lockstep(self) -> bool:
        return self.spec.in_lockstep or self.spec.mode.single_session

    @cached_property
    def _traces(self) -> Sequence[TaskTrace]:
        """The traces, the chief's first: all times are on its clock. Raises `InvalidTrace`."""
        found = [self._unpack_trace(task, packed) for task, packed in self.packed.items()]
        return sorted(found, key=lambda trace: int(trace.task.partition(":")[2]))

    def _unpack_trace(self, task: str, packed: str) -> TaskTrace:
        trace = unpack_trace(packed)
        if trace.task != task:
            raise InvalidTrace(f"of {task} is that of {trace.task}")
        if strangers := trace.tasks - self.hosts.keys():
            raise InvalidTrace(f"of {task} names {min(strangers)}, which is no task of this run")
        most = TRACED_STEPS if trace.edges else TRACED_STEPS * self.spec.gpus  # batches may go to any free worker
        if len(trace.steps) > most:
            raise InvalidTrace(f"of {task} has {format_count(len(trace.steps), 'step')}, {most} were asked for")
        return trace

    @cached_property
    def _one_clock(self) -> Mapping[tuple[str, str], int]:
        """The pairs of tasks on one host, which share a clock."""
        of_host: dict[object, list[str]] = {}
        for task, host in self.hosts.items():
            of_host.setdefault(host, []).append(task)
        return {pair: 0 for tasks in of_host.values() for pair in permutations(tasks, 2)}


@dataclass
class Scoring:
    """The step timestamps of one run's tasks."""

    spec: Spec
    tasks: Collection[str]
    packed: dict[str, str] = field(default_factory=dict)  # task -> its packed timestamps
    _refused: str = ""

    def receive(self, task: str, data: str | None, error: str | None) -> None:
        """Process a task's step timestamps, or the reason why there are none."""
        if data is not None:
            self.packed[task] = data
        else:
            self._refused = self._refused or f"{task} has no timestamps: {error}"

    def outcome(self) -> tuple[WorkerTimings | None, str]:
        """Return the worker timings, and an error. Both are empty if there are no timestamps."""
        if self._refused:
            return None, self._refused
        try:
            return compute_worker_timings(self._timestamps(), lockstep=self.spec.in_lockstep), ""
        except InvalidTimestamps as error:
            return None, f"the timestamps {error}"

    def _timestamps(self) -> list[StepTimestamps]:
        """Return the timestamps by the workers' numbers. Raises `InvalidStamps`."""
        found: dict[str, StepTimestamps] = {}
        for task, packed in self.packed.items():
            for timestamps in unpack_timestamps(packed):
                self._check(task, timestamps, found)
                found[timestamps.worker] = timestamps
        return sorted(found.values(), key=lambda timestamps: int(timestamps.worker.partition(":")[2]))

    def _check(self, task: str, timestamps: StepTimestamps, found: Collection[str]) -> None:
        if timestamps.worker != task and not self.spec.mode.single_session:
            raise InvalidTimestamps(f"of {task} are those of {timestamps.worker}")
        if timestamps.worker not in self.tasks or not timestamps.worker.startswith("worker:"):
            raise InvalidTimestamps(f"of {task} name {timestamps.worker}, which is no worker of this run")
        if timestamps.worker in found:
            raise InvalidTimestamps(f"of {timestamps.worker} are there twice")
        # All of a coordinator's batches may go to one worker; an external program may make any number of steps.
        most = MOST_STEPS if self.spec.command else self.spec.steps * self.spec.gpus
        if len(timestamps) > most:
            raise InvalidTimestamps(f"of {timestamps.worker} are of {len(timestamps)} steps, there are {most}")


def with_cpu(timings: WorkerTimings | None, cpu_s: Mapping[str, float], steps: int) -> WorkerTimings | None:
    """Return the worker timings with the CPU time that whole tasks report, if the timestamps lack it.

    That is the case for workers on which other tasks' sessions compute.

    Args:
        cpu_s: task -> seconds in `steps` measured steps. A worker with batches from a coordinator, or with reported
            steps, has its own number of them: the slower it is, the fewer.
    """
    if timings is None or not steps:
        return timings
    workers = {worker: _with_cpu(timing, cpu_s.get(worker), steps) for worker, timing in timings.workers.items()}
    return replace(timings, workers=workers)


def _with_cpu(timing: WorkerTiming, cpu_s: float | None, steps: int) -> WorkerTiming:
    own_steps = steps if timing.ready_s is not None else timing.steps
    if timing.cpu_s is not None or not cpu_s or not own_steps:
        return timing
    return replace(timing, cpu_s=round(cpu_s / own_steps, 6))
