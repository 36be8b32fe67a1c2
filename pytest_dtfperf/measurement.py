"""What training yielded. Comes back from the hosts as JSON, and is what a session folder keeps."""

import hashlib
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from pytest_dtfperf.errors import InvalidMeasurement
from pytest_dtfperf.plain import Plain
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.rate_of import cluster_rate

# Largest disagreement between the chief's clock and a worker's, as a part of the measured time. Beyond it, one is wrong.
CROSS_CHECK = 0.02
# ... but a task may be off its core for this long without anybody being wrong: a few time slices of a busy Linux host.
CLOCK_SLACK_S = 0.02
# ... and the end of the last step may reach workers at different times, by this part of a step: in windows of a few steps of
# seconds each, as the large networks have on CPUs, that is more than 2 %.
END_SKEW = 0.25
# A window cannot be longer than the run around it by the controller's clock, which stands still while its machine sleeps.
WALL_SLACK_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Score(Plain):
    """How well the whole test set is answered."""

    images: int
    loss: float  # cross-entropy, mean over the images
    total_loss: float  # and what weight decay adds: its factor times half the sum of squares of all variables that decay
    top_1: float  # the part of the images that is answered rightly, 0 to 1; a tie is no answer
    top_5: float  # for which the right answer is among the best five


@dataclass(frozen=True, kw_only=True)
class Look(Plain):
    """A look at the test set, within training or after it."""

    step: int  # steps trained until then, warm-up included
    trained_s: float  # seconds of measured steps until then, on the chief's clock; looking is not among them
    score: Score


@dataclass(frozen=True, kw_only=True)
class TaskReport(Plain):
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
    looks: Sequence[Look] = ()  # the chief's, at the test set, if the spec asked for them
    variable_bytes: Mapping[str, int] = field(default_factory=dict)  # device -> bytes of variables placed there
    graph: Mapping[str, Any] = field(default_factory=dict)  # what a step computes: {"hash": ..., "operations": {kind: count}}
    settings: Mapping[str, str] = field(default_factory=dict)  # how TensorFlow runs it: what is in no graph
    said: str | None = None  # another's program's own word for its images/sec
    last_lines: Sequence[str] = ()  # of such a program that has given none

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Run(Plain):
    """One training of one spec, over all its tasks."""

    images_per_sec: float  # devices x batch x measured steps / the chief's elapsed time, or as another's program says
    elapsed_s: float  # the chief's measured window; of another's program: its life
    step_s: Mapping[str, Sequence[float]]  # worker -> its measured steps; empty where another's program has trained
    loss: Sequence[float]  # the chief's, one per measured step; empty likewise
    startup_s: Mapping[str, float]  # phase -> seconds, the slowest task's; with launch phases (reserve, fork, ready, stop)
    bytes_sent: int  # by all hosts, all interfaces, during the measured window
    bytes_received: int
    peak_rss_bytes: Mapping[str, int]  # task -> bytes
    cpu_s: Mapping[str, float]  # task -> user and system seconds during the measured window (a ps: over its life)
    wall_s: float  # from the first order to the last exit, on the controller's clock
    accuracy: float | None = None  # of the last look at the test set, 0 to 1
    looks: Sequence[Look] = field(default_factory=list)
    hosts: Sequence[str] = field(default_factory=list)  # those that its tasks ran on; old records do not tell
    said: Mapping[str, str] = field(default_factory=dict)  # worker -> another's program's own word for its images/sec
    state: Mapping[str, Any] = field(default_factory=dict)  # what its hosts said of themselves before, during and after it
    disturbances: Sequence[str] = field(default_factory=list)  # by whom or what; empty: the run may be believed
    program: Mapping[str, Any] = field(default_factory=dict)  # what it ran: a part of the measurement's fingerprint, kept there

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_json().items() if name != "program"}


def summarise(
    spec: Spec,
    reports: Sequence[TaskReport],
    *,
    hosts: Mapping[str, str],
    launch_s: Mapping[str, float],
    wall_s: float,
    state: Mapping[str, Any] | None = None,
    disturbances: Sequence[str] = (),
) -> Run:
    """Make one run of its tasks' reports, or raise `InvalidMeasurement` where they cannot all be true.

    `hosts` maps each task's name to its host, in placement order: a host's network bytes count once. `state` is what the hosts
    saw of themselves, and `disturbances` what follows from it.
    """
    workers = sorted((report for report in reports if report.job == "worker"), key=lambda report: report.index)
    if not workers or workers[0].index != 0:
        raise InvalidMeasurement("the chief, worker:0, sent no report: there is no rate without its clock")
    chief = workers[0]
    if chief.elapsed_s > wall_s + WALL_SLACK_S:
        raise InvalidMeasurement(
            f"the chief measured {chief.elapsed_s:.3f} s, but the whole run took {wall_s:.3f} s by this machine's clock: "
            "one of them is wrong"
        )
    rate = _rate_as_said(spec, workers) if spec.command else _rate_as_measured(spec, workers)
    first_on_host = {hosts[worker.name]: worker for worker in reversed(workers)}.values()
    phases = {phase for report in reports for phase in report.startup_s}
    return Run(
        images_per_sec=rate,
        elapsed_s=chief.elapsed_s,
        step_s={worker.name: list(worker.step_s) for worker in workers if worker.step_s},
        loss=list(chief.loss),
        startup_s={**launch_s, **{p: max(r.startup_s.get(p, 0.0) for r in reports) for p in sorted(phases)}},
        bytes_sent=sum(worker.bytes_sent for worker in first_on_host),
        bytes_received=sum(worker.bytes_received for worker in first_on_host),
        peak_rss_bytes={report.name: report.peak_rss_bytes for report in reports},
        cpu_s={report.name: report.cpu_s for report in reports},
        wall_s=wall_s,
        accuracy=chief.looks[-1].score.top_1 if chief.looks else None,
        looks=list(chief.looks),
        hosts=list(dict.fromkeys(hosts.values())),
        said={worker.name: worker.said for worker in workers if worker.said is not None},
        state=dict(state or {}),
        disturbances=list(disturbances),
        program=_program(reports),
    )


def _program(reports: Sequence[TaskReport]) -> dict[str, Any]:
    """The graphs of all workers as one, and each job's settings. Empty of another's program: its changes are what is tested."""
    of_workers = sorted((report for report in reports if report.graph), key=lambda report: report.index)
    if not of_workers:
        return {}
    operations: Counter[str] = Counter()
    for report in of_workers:
        operations.update(report.graph["operations"])
    chief, *others = (report.graph["hash"] for report in of_workers)
    return {
        "graph": hashlib.sha256(" ".join([chief, *sorted(others)]).encode()).hexdigest()[: len(chief)] if others else chief,
        "operations": dict(sorted(operations.items())),
        "settings": {report.job: dict(report.settings) for report in sorted(reports, key=lambda r: (r.job, -r.index))},
    }


def _rate_as_said(spec: Spec, workers: Sequence[TaskReport]) -> float:
    """What another's program tells of itself: its steps, its loss and its clock are its own affair."""
    _check_devices(spec, workers)
    return cluster_rate(
        spec,
        {worker.name: worker.said for worker in workers},
        [worker.num_devices for worker in workers],
        {worker.name: worker.last_lines for worker in workers},
    )


def _rate_as_measured(spec: Spec, workers: Sequence[TaskReport]) -> float:
    _check_devices(spec, workers)
    _check(spec, workers)
    return spec.gpus * spec.batch_size * len(workers[0].step_s) / workers[0].elapsed_s


def _check_devices(spec: Spec, workers: Sequence[TaskReport]) -> None:
    devices = sum(worker.num_devices for worker in workers)
    if devices != spec.gpus:
        raise InvalidMeasurement(f"{devices} devices trained where {spec.gpus} were asked for")


def _check(spec: Spec, workers: Sequence[TaskReport]) -> None:
    chief = workers[0]
    steps = len(chief.step_s) if spec.stop_at_top_1_accuracy is not None and chief.step_s else spec.steps
    stepping = workers[:1] if spec.mode.single_session else workers  # one session steps for all
    for worker in stepping:
        if len(worker.step_s) != steps or len(worker.loss) != steps:
            raise InvalidMeasurement(f"{worker.name} measured {len(worker.step_s)} steps, {steps} were asked for")
        if not all(math.isfinite(loss) for loss in worker.loss):
            step = next(i for i, loss in enumerate(worker.loss) if not math.isfinite(loss))
            raise InvalidMeasurement(f"{worker.name}: the loss of measured step {step + 1} is {worker.loss[step]}")
        if not all(math.isfinite(s) and s > 0 for s in (*worker.step_s, worker.elapsed_s)):
            raise InvalidMeasurement(f"{worker.name}: a step took no time, or time ran backwards")
    own_slack_s = max(CROSS_CHECK * chief.elapsed_s, CLOCK_SLACK_S)
    others_slack_s = max(own_slack_s, END_SKEW * chief.elapsed_s / steps)
    totals = {worker.name: math.fsum(worker.step_s) for worker in stepping}
    # Workers in lockstep step together, so each of them must have taken as long as the chief says. Others end when they are
    # done; the window closes with the slowest, and of several windows each with its own.
    windows = (
        1 if spec.eval_during_training_every_n_steps is None else math.ceil(steps / spec.eval_during_training_every_n_steps)
    )
    slowest = {name: s for name, s in totals.items() if s == max(totals.values())} if windows == 1 else {}
    compared = totals if spec.in_lockstep else slowest
    for name, total_s in compared.items():
        if abs(total_s - chief.elapsed_s) > (own_slack_s if name == chief.name else others_slack_s):
            raise InvalidMeasurement(
                f"the chief measured {chief.elapsed_s:.3f} s, the steps of {name} add up to {total_s:.3f} s: "
                f"more than {CROSS_CHECK:.0%} apart, so one clock or count is wrong"
            )


@dataclass(frozen=True, kw_only=True)
class Measurement(Plain):
    """The runs of one spec on one set of hosts."""

    spec: Spec
    runs: Sequence[Run]
    hosts: Sequence[str]
    fingerprint: Mapping[str, Any]  # {"hardware": ..., "software": ..., "program": ..., "placement": ..., "state": ...}
    planted: Mapping[str, float] = field(default_factory=dict)  # task -> seconds of planted sleep per step: a drill

    @property
    def samples(self) -> Sequence[Run]:
        """The runs its rate rests on, in the order they were made: those that nothing disturbed, or all if it disturbed all."""
        return [run for run in self.runs if not run.disturbances] or self.runs

    @property
    def rates(self) -> list[float]:
        """images/sec of each sample."""
        return [run.images_per_sec for run in self.samples]

    @property
    def disturbances(self) -> list[str]:
        """What disturbed its runs, each once, if that leaves no run to be believed."""
        if not all(run.disturbances for run in self.runs):
            return []
        return list(dict.fromkeys(words for run in self.runs for words in run.disturbances))

    @property
    def images_per_sec(self) -> float:
        """Median of the samples."""
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
        """Half the range of the samples over their median: the number behind the ±."""
        return (max(self.rates) - min(self.rates)) / 2 / self.images_per_sec

    @property
    def accuracy(self) -> float | None:
        """Median accuracy of the runs that measured it."""
        found = [run.accuracy for run in self.runs if run.accuracy is not None]
        return statistics.median(found) if found else None

    def with_runs(self, more: Sequence[Run]) -> Self:
        """As it is with further runs."""
        return replace(self, runs=(*self.runs, *more))

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
        """Of a record's line, which holds more."""
        return super().from_json({field.name: data[field.name] for field in fields(cls)})


def efficiency(measurement: Measurement, anchor: Measurement) -> float:
    """rate(n) / (n x rate(1)), as a part of 1. `anchor` is the 1-device measurement it is divided by."""
    return scaling_efficiency(measurement.images_per_sec, measurement.spec.gpus, anchor.images_per_sec)


def scaling_efficiency(images_per_sec: float, gpus: int, one_device: float) -> float:
    """rate(n) / (n x rate(1)). May exceed 1."""
    return images_per_sec / (gpus * one_device)


def io_overhead(synthetic: float, real: float) -> float:
    """(synthetic - real) / synthetic, of the same spec. May be negative."""
    return (synthetic - real) / synthetic
