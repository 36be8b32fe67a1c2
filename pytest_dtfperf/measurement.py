"""What training yielded. Comes back from the hosts as JSON, and is what a session folder keeps."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.spec import Spec

# Largest disagreement between the chief's clock and a worker's, as a part of the measured time. Beyond it, one is wrong.
CROSS_CHECK = 0.02
# ... but a task may be off its core for this long without anybody being wrong: a few time slices of a busy Linux host.
CLOCK_SLACK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class TaskReport:
    """One task's account of a run. All times are seconds on the task's own monotonic clock."""

    job: str
    index: int
    num_devices: int = 0
    step_s: Sequence[float] = ()  # one per measured step, as seen by this worker; empty for a ps
    elapsed_s: float = 0.0  # measured window: from the common start to this worker's end (asynchronous: to everybody's)
    loss: Sequence[float] = ()  # one per measured step
    startup_s: Mapping[str, float] = field(default_factory=dict)  # server, build, session, first_step, warmup
    bytes_sent: int = 0  # by the task's host, all interfaces, during the measured window
    bytes_received: int = 0
    peak_rss_bytes: int = 0  # of the task, over its life
    cpu_s: float = 0.0  # user and system time of the task during the measured window
    devices: Sequence[str] = ()  # where the gradients were computed, as TensorFlow placed them
    accuracy: float | None = None  # on the test set, 0 to 1, if the spec asked for it
    variable_bytes: Mapping[str, int] = field(default_factory=dict)  # device -> bytes of variables placed there

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training of one spec, over all its tasks."""

    images_per_sec: float  # devices x batch x measured steps / the chief's elapsed time
    elapsed_s: float  # the chief's measured window
    step_s: Mapping[str, Sequence[float]]  # worker -> its measured steps
    loss: Sequence[float]  # the chief's, one per measured step
    startup_s: Mapping[str, float]  # phase -> seconds, the slowest task's; with launch phases (reserve, fork, ready, stop)
    bytes_sent: int  # by all hosts, all interfaces, during the measured window
    bytes_received: int
    peak_rss_bytes: Mapping[str, int]  # task -> bytes
    cpu_s: Mapping[str, float]  # task -> user and system seconds during the measured window (a ps: over its life)
    wall_s: float  # from the first order to the last exit, on the controller's clock
    accuracy: float | None = None
    hosts: Sequence[str] = field(default_factory=list)  # those that its tasks ran on; old records do not tell

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


def summarise(
    spec: Spec, reports: Sequence[TaskReport], *, hosts: Mapping[str, str], launch_s: Mapping[str, float], wall_s: float
) -> Run:
    """Make one run of its tasks' reports, or raise `InvalidMeasurement` where they cannot all be true.

    `hosts` maps each task's name to its host, in placement order: a host's network bytes count once.
    """
    workers = sorted((report for report in reports if report.job == "worker"), key=lambda report: report.index)
    if not workers or workers[0].index != 0:
        raise InvalidMeasurement("the chief, worker:0, sent no report: there is no rate without its clock")
    chief = workers[0]
    _check(spec, workers)
    first_on_host = {hosts[worker.name]: worker for worker in reversed(workers)}.values()
    phases = {phase for report in reports for phase in report.startup_s}
    return Run(
        images_per_sec=spec.gpus * spec.batch_size * spec.steps / chief.elapsed_s,
        elapsed_s=chief.elapsed_s,
        step_s={worker.name: list(worker.step_s) for worker in workers},
        loss=list(chief.loss),
        startup_s={**launch_s, **{p: max(r.startup_s.get(p, 0.0) for r in reports) for p in sorted(phases)}},
        bytes_sent=sum(worker.bytes_sent for worker in first_on_host),
        bytes_received=sum(worker.bytes_received for worker in first_on_host),
        peak_rss_bytes={report.name: report.peak_rss_bytes for report in reports},
        cpu_s={report.name: report.cpu_s for report in reports},
        wall_s=wall_s,
        accuracy=chief.accuracy,
        hosts=list(dict.fromkeys(hosts.values())),
    )


def _check(spec: Spec, workers: Sequence[TaskReport]) -> None:
    chief = workers[0]
    devices = sum(worker.num_devices for worker in workers)
    if devices != spec.gpus:
        raise InvalidMeasurement(f"{devices} devices trained where {spec.gpus} were asked for")
    for worker in workers:
        if len(worker.step_s) != spec.steps or len(worker.loss) != spec.steps:
            raise InvalidMeasurement(f"{worker.name} measured {len(worker.step_s)} steps, {spec.steps} were asked for")
        if not all(math.isfinite(loss) for loss in worker.loss):
            step = next(i for i, loss in enumerate(worker.loss) if not math.isfinite(loss))
            raise InvalidMeasurement(f"{worker.name}: the loss of measured step {step + 1} is {worker.loss[step]}")
        if not all(math.isfinite(s) and s > 0 for s in (*worker.step_s, worker.elapsed_s)):
            raise InvalidMeasurement(f"{worker.name}: a step took no time, or time ran backwards")
    slack_s = max(CROSS_CHECK * chief.elapsed_s, CLOCK_SLACK_S)
    totals = {worker.name: math.fsum(worker.step_s) for worker in workers}
    # Synchronous workers step together, so each of them must have taken as long as the chief says. Asynchronous ones end
    # when they are done; the window closes with the slowest.
    compared = totals if spec.cross_replica_sync else {name: s for name, s in totals.items() if s == max(totals.values())}
    for name, total_s in compared.items():
        if abs(total_s - chief.elapsed_s) > slack_s:
            raise InvalidMeasurement(
                f"the chief measured {chief.elapsed_s:.3f} s, the steps of {name} add up to {total_s:.3f} s: "
                f"more than {CROSS_CHECK:.0%} apart, so one clock or count is wrong"
            )


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The runs of one spec on one set of hosts."""

    spec: Spec
    runs: Sequence[Run]
    hosts: Sequence[str]
    fingerprint: Mapping[str, Any]  # {"hardware": ..., "software": ..., "state": ..., "placement": ...}
    planted: Mapping[str, float] = field(default_factory=dict)  # task -> seconds of planted sleep per step: a drill

    @property
    def rates(self) -> list[float]:
        """images/sec of each run, in the order they were made."""
        return [run.images_per_sec for run in self.runs]

    @property
    def images_per_sec(self) -> float:
        """Median of the runs' rates."""
        return statistics.median(self.rates)

    @property
    def misplaced(self) -> str | None:
        """What was asked for and what was lent instead, in words; None if that is the same, or unknown."""
        found: Mapping[str, Any] = self.fingerprint.get("placement", {})
        if found.get("matches", True):
            return None
        return f"requested: {', '.join(found['requested'])}; granted: {', '.join(found['granted'])}"

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the runs' rates."""
        return (max(self.rates) - min(self.rates)) / self.images_per_sec

    @property
    def accuracy(self) -> float | None:
        """Median accuracy of the runs that measured it."""
        found = [run.accuracy for run in self.runs if run.accuracy is not None]
        return statistics.median(found) if found else None

    def to_json(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "runs": [run.to_json() for run in self.runs],
            "images_per_sec": self.images_per_sec,
            "hosts": list(self.hosts),
            "fingerprint": dict(self.fingerprint),
            "planted": dict(self.planted),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            spec=Spec.from_json(data["spec"]),
            runs=[Run.from_json(run) for run in data["runs"]],
            hosts=data["hosts"],
            fingerprint=data["fingerprint"],
            planted=data["planted"],
        )


def efficiency(measurement: Measurement, anchor: Measurement) -> float:
    """rate(n) / (n x rate(1)), as a part of 1. `anchor` is the 1-device measurement it is divided by."""
    return scaling_efficiency(measurement.images_per_sec, measurement.spec.gpus, anchor.images_per_sec)


def scaling_efficiency(images_per_sec: float, gpus: int, one_device: float) -> float:
    """rate(n) / (n x rate(1)). May exceed 1."""
    return images_per_sec / (gpus * one_device)


def io_overhead(synthetic: float, real: float) -> float:
    """(synthetic - real) / synthetic, of the same spec. May be negative."""
    return (synthetic - real) / synthetic
