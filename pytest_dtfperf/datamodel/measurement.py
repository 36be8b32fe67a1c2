"""The results of training, as a session folder stores them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pytest_dtfperf.codec import JsonData, describe, json_field
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, TrainedProgram
from pytest_dtfperf.datamodel.host_state import Disturbance, HostState
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.datamodel.task_report import Evaluation, NetworkFacts, count, fraction, rate, seconds
from pytest_dtfperf.spec import Spec

SIMULATED = "SIMULATED"  # the mark of all that simulated hosts report
# A task may be descheduled for this long in normal operation: a few time slices of a busy Linux host.
CLOCK_SLACK_S = 0.02

_positive_seconds: dict[str, Any] = {"unit": "s", "above": 0, "at_most": 1e12}
_bytes: dict[str, Any] = {"unit": "bytes", **count}


@dataclass(frozen=True, kw_only=True)
class Run(JsonData):
    """One training of one spec, over all its tasks."""

    # Devices x batch x measured steps / the chief's elapsed time, or the rate that an external command reports.
    images_per_sec: float = field(metadata=describe("Rate of the whole cluster", **rate))
    elapsed_s: float = field(
        metadata=describe(
            "The chief's measured window; of an external command: its life, or the steps that it reports", **_positive_seconds
        )
    )
    step_s: Mapping[str, Sequence[float]] = field(
        metadata=describe("Worker to the durations of its measured steps", **_positive_seconds)
    )
    loss: Sequence[float] = field(metadata=describe("Losses of the chief, one per measured step", is_finite=False))
    startup_s: Mapping[str, float] = field(metadata=describe("Phase to the duration of the slowest task", **seconds))
    bytes_sent: int = field(
        metadata=describe("Bytes sent by all hosts of workers, all interfaces, within the measured steps", **_bytes)
    )
    bytes_received: int = field(metadata=describe("Bytes received, likewise", **_bytes))
    peak_rss_bytes: Mapping[str, int] = field(
        metadata=describe("Task to its largest resident memory", of_each_task=True, **_bytes)
    )
    cpu_s: Mapping[str, float] = field(
        metadata=describe("Task to its CPU time within the measured steps; of a ps over its life", of_each_task=True, **seconds)
    )
    wall_s: float = field(metadata=describe("From the first order to the last exit, on the controller's clock", **seconds))
    accuracy: float | None = field(default=None, metadata=describe("Top-1 accuracy of the last evaluation", **fraction))
    evaluations: Sequence[Evaluation] = field(default_factory=list, metadata=describe("Evaluations on the test set"))
    round_s: float | None = field(
        default=None,
        metadata=describe(
            "Unix time of the start of its round. Runs that are made in turn share it", **seconds, omit_empty=True
        ),
    )
    hosts: Sequence[str] = field(default_factory=list, metadata=describe("Hosts of its tasks"))
    task_hosts: Mapping[str, str] = field(default_factory=dict, metadata=describe("Task to its host", omit_empty=True))
    task_threads: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Task to the cores that it may use", **count, omit_empty=True)
    )
    task_devices: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Worker to the number of its devices", **count, omit_empty=True)
    )
    reported_rates: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("Worker to an external command's own images/sec")
    )
    state: Mapping[str, HostState] = field(
        default_factory=dict, metadata=describe("Host to its own state before, during and after the run")
    )
    disturbances: Sequence[Disturbance] = field(default_factory=list, metadata=describe("Disturbances of the run; empty: none"))
    out_of_step: Mapping[str, float] = field(
        default_factory=dict,
        metadata=describe(
            "Worker to its delay after the chief, if a disturbance excuses it; below 0: it was earlier",
            unit="s",
            omit_empty=True,
        ),
    )
    step_breakdown: StepBreakdown | None = field(
        default=None, metadata=describe("Breakdown of a step's time, if it was traced", omit_empty=True)
    )
    unexplained: str = field(default="", metadata=describe("Reason for a missing trace", omit_empty=True))
    worker_timings: WorkerTimings | None = field(
        default=None, metadata=describe("Times of its workers in the measured steps, if they are known", omit_empty=True)
    )
    network: NetworkFacts | None = field(default=None, metadata=describe("Properties of an own model", omit_empty=True))
    program: TrainedProgram = field(
        default=TrainedProgram(), metadata=describe("Graph and settings: a part of the fingerprint", is_stored=False)
    )


@dataclass(frozen=True, kw_only=True)
class Measurement(JsonData):
    """The runs of one spec on one set of hosts."""

    spec: Spec = field(metadata=describe("Description of the training"))
    runs: Sequence[Run] = field(metadata=describe("Runs of the measurement, in their order", min_size=1))
    hosts: Sequence[str] = field(metadata=describe("Names of the hosts, in the order of placement", min_size=1))
    fingerprint: Fingerprint = field(metadata=describe("Fingerprint of the hosts, the software and the program"))
    injected_slowdowns: Mapping[str, float] = field(
        default_factory=dict,
        metadata=describe(
            "Task to its injected sleep in each step, which tests the alarm. It never becomes a baseline", unit="s", at_least=0
        ),
    )
    probes: Probes | None = field(
        default=None, metadata=describe("Probed capacities of its hosts and links, if they were probed", omit_empty=True)
    )
    traced: Run | None = field(
        default=None, metadata=describe("A short run only for traces. It is not part of the measurement", omit_empty=True)
    )

    @property
    def traced_run(self) -> Run | None:
        """The last run with a step breakdown, undisturbed ones first; else the last with a reason for its absence.

        None: no step was traced.
        """
        last_first = [*reversed(self.samples), *([self.traced] if self.traced else []), *reversed(self.runs)]
        traced = [run for run in last_first if run.step_breakdown]
        return next(iter([*traced, *(run for run in last_first if run.unexplained)]), None)

    @property
    def all_runs(self) -> Sequence[Run]:
        """All runs, including the one for a trace."""
        return [*self.runs, *([self.traced] if self.traced else [])]

    @property
    def samples(self) -> Sequence[Run]:
        """The runs that count for the rate, in their order: the undisturbed ones, or all if all were disturbed."""
        return [run for run in self.runs if not run.disturbances] or self.runs

    @property
    def rates(self) -> list[float]:
        """The images/sec of each sample."""
        return [run.images_per_sec for run in self.samples]

    @property
    def disturbances(self) -> list[Disturbance]:
        """The disturbances of its runs, each once, if all runs were disturbed."""
        if not all(run.disturbances for run in self.runs):
            return []
        return list(dict.fromkeys(each for run in self.runs for each in run.disturbances))

    @property
    @json_field(describe("Median of the undisturbed runs, or of all runs if all were disturbed", **rate))
    def images_per_sec(self) -> float:
        """The median rate of the samples."""
        return statistics.median(self.rates)

    @property
    def misplaced(self) -> str | None:
        """A message on what was requested and what was allocated; None if they are equal, or unknown."""
        found = self.fingerprint.placement
        if found is None or found.matches:
            return None
        return f"requested: {', '.join(found.requested)}; granted: {', '.join(found.granted)}"

    @property
    def spread(self) -> float | None:
        """Half the range of the samples over their median: the number behind the ±. None for a single one."""
        return None if len(self.rates) < 2 else (max(self.rates) - min(self.rates)) / 2 / self.images_per_sec

    @property
    def accuracy(self) -> float | None:
        """The median accuracy of the runs that measured it."""
        found = [run.accuracy for run in self.runs if run.accuracy is not None]
        return statistics.median(found) if found else None

    def with_runs(self, more: Sequence[Run]) -> Self:
        """Return the measurement with further runs."""
        return replace(self, runs=[*self.runs, *more])


def efficiency(measurement: Measurement, anchor: Measurement) -> float:
    """Return rate(n) / (n x rate(1)), as a fraction. `anchor` is the 1-device measurement."""
    return scaling_efficiency(measurement.images_per_sec, measurement.spec.gpus, anchor.images_per_sec)


def scaling_efficiency(images_per_sec: float, gpus: int, one_device: float) -> float:
    """Return rate(n) / (n x rate(1)). May exceed 1."""
    return images_per_sec / (gpus * one_device)


def io_overhead(synthetic: float, real: float) -> float:
    """Return (synthetic - real) / synthetic, of the same spec. May be negative."""
    return (synthetic - real) / synthetic
