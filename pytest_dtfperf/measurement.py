"""The results of training. Hosts send them as JSON, and a session folder stores them."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.spec import Spec

# A task may be descheduled for this long in normal operation: a few time slices of a busy Linux host.
CLOCK_SLACK_S = 0.02


_MOST_COUNTED = 10**18  # of any count in a run

_OBJECTS: Mapping[str, Any] = {"type": "object", "additionalProperties": {"type": "object"}}
_ANATOMY: Mapping[str, Any] = {"$ref": "anatomy.json"}
_STRAGGLERS: Mapping[str, Any] = {"$ref": "stragglers.json"}
_seconds: dict[str, Any] = {"unit": "s", "at_least": 0, "at_most": 1e12}
_positive_seconds: dict[str, Any] = {"unit": "s", "above": 0, "at_most": 1e12}
_count: dict[str, Any] = {"at_least": 0, "at_most": _MOST_COUNTED}
_bytes: dict[str, Any] = {"unit": "bytes", **_count}
_fraction: dict[str, Any] = {"at_least": 0, "at_most": 1}
_rate: dict[str, Any] = {"unit": "images/sec", "at_least": 1e-9, "at_most": 1e12}


@dataclass(frozen=True, kw_only=True)
class Score(JsonData):
    """The score on the whole test set."""

    images: int = field(metadata=describe("How many the test set has", at_least=1))
    loss: float = field(metadata=describe("Cross-entropy, mean over the images", is_finite=False))
    # The weight decay's part is its factor times half the sum of squares of all variables that decay.
    total_loss: float = field(metadata=describe("With weight decay's part", is_finite=False))
    top_1: float = field(metadata=describe("The part of the images that is answered rightly; a tie is no answer", **_fraction))
    top_5: float = field(metadata=describe("The part whose right answer is among the best five", **_fraction))


@dataclass(frozen=True, kw_only=True)
class Evaluation(JsonData):
    """An evaluation on the test set, within training or after it."""

    step: int = field(metadata=describe("Steps trained until then, warm-up included", at_least=1))
    trained_s: float = field(
        metadata=describe("Measured steps until then, on the chief's clock, without evaluations", **_seconds)
    )
    score: Score = field(metadata=describe("Its result"))


@dataclass(frozen=True, kw_only=True)
class NetworkFacts(JsonData):
    """The properties of an own model, as determined by the task that trained it."""

    image_shape: Sequence[int] = field(metadata=describe("Height, width, channels", **_count))
    classes: int = field(metadata=describe("Of its output", **_count))
    parameters: int = field(metadata=describe("All numbers of its variables", **_count))
    trained_parameters: int = field(metadata=describe("Of these, the ones that replicas exchange", **_count))
    multiply_adds: int | None = field(default=None, metadata=describe("Forward, per image; null: not known", at_least=0))
    uncounted: str = field(default="", metadata=describe("Why that is not known"))
    variables: Mapping[str, Sequence[int]] = field(
        default_factory=dict, metadata=describe("Trained variables to their shapes; not kept in records", omit_empty=True)
    )


@dataclass(frozen=True, kw_only=True)
class TaskReport(JsonData):
    """One task's report of a run. All times are seconds on the task's own monotonic clock."""

    job: str
    index: int
    num_devices: int = 0
    step_s: Sequence[float] = ()  # one per measured step, as seen by this worker; empty for a ps
    elapsed_s: float = 0.0  # measured window: from the common start to this worker's end (asynchronous: to the last worker's)
    loss: Sequence[float] = field(default=(), metadata=describe("One per measured step", is_finite=False))
    startup_s: Mapping[str, float] = field(default_factory=dict)  # server, build, session, first_step, warmup
    bytes_sent: int = 0  # by the task's host, all interfaces, during the measured window
    bytes_received: int = 0
    peak_rss_bytes: int = 0  # of the task, over its life
    cpu_s: float = 0.0  # user and system time of the task during the measured window
    devices: Sequence[str] = ()  # where the gradients were computed, as TensorFlow placed them
    evaluations: Sequence[Evaluation] = ()  # the chief's, if the spec asked for them
    variable_bytes: Mapping[str, int] = field(default_factory=dict)  # device -> bytes of variables placed there
    graph: Mapping[str, Any] = field(default_factory=dict)  # of a step: {"hash": ..., "operations": {kind: count}}
    settings: Mapping[str, str] = field(default_factory=dict)  # of TensorFlow, as far as they are not in the graph
    reported_rate: str | None = None  # an external command's own images/sec
    unclear_rate: str | None = field(
        default=None, metadata=describe("Why the last rate that it has printed cannot be read", omit_empty=True)
    )
    last_lines: Sequence[str] = ()  # of a program that has printed no rate; or the one invalid line
    images: float = field(
        default=0.0, metadata=describe("Trained by this worker in the steps that a program has reported", omit_empty=True)
    )
    window_s: float = field(
        default=0.0,
        metadata=describe(
            "From the end of its warm-up to that of its last step, with what is between steps", unit="s", omit_empty=True
        ),
    )
    window_at_s: float = field(
        default=0.0,
        metadata=describe("From its start until that window; programs are started together", unit="s", omit_empty=True),
    )
    impossible_steps: str | None = field(
        default=None, metadata=describe("Why its reported steps are not believed", omit_empty=True)
    )
    network: NetworkFacts | None = field(default=None, metadata=describe("Of an own model, the chief's", omit_empty=True))

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"


@dataclass(frozen=True, kw_only=True)
class Run(JsonData):
    """One training of one spec, over all its tasks."""

    # Devices x batch x measured steps / the chief's elapsed time, or the rate that an external command reports.
    images_per_sec: float = field(metadata=describe("Of the whole cluster", **_rate))
    elapsed_s: float = field(
        metadata=describe(
            "The chief's measured window; of an external command: its life, or the steps that it reports", **_positive_seconds
        )
    )
    step_s: Mapping[str, Sequence[float]] = field(metadata=describe("Worker to its measured steps", **_positive_seconds))
    loss: Sequence[float] = field(metadata=describe("The chief's, one per measured step", is_finite=False))
    startup_s: Mapping[str, float] = field(metadata=describe("By phase, of the slowest task", **_seconds))
    bytes_sent: int = field(metadata=describe("By all hosts of workers, all interfaces, within the measured steps", **_bytes))
    bytes_received: int = field(metadata=describe("Likewise", **_bytes))
    peak_rss_bytes: Mapping[str, int] = field(metadata=describe("By task", **_bytes))
    cpu_s: Mapping[str, float] = field(
        metadata=describe("By task, within the measured steps; of a ps over its life", **_seconds)
    )
    wall_s: float = field(metadata=describe("From the first order to the last exit, on the controller's clock", **_seconds))
    accuracy: float | None = field(default=None, metadata=describe("Of the last evaluation", **_fraction))
    evaluations: Sequence[Evaluation] = field(default_factory=list, metadata=describe("On the test set"))
    round_s: float | None = field(
        default=None,
        metadata=describe(
            "Unix time at which its round began, which runs that are made in turn share", **_seconds, omit_empty=True
        ),
    )
    hosts: Sequence[str] = field(default_factory=list, metadata=describe("That its tasks ran on"))
    task_hosts: Mapping[str, str] = field(default_factory=dict, metadata=describe("Task to its host", omit_empty=True))
    task_threads: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Task to the cores that it may use", **_count, omit_empty=True)
    )
    task_devices: Mapping[str, int] = field(
        default_factory=dict, metadata=describe("Worker to how many devices it had", **_count, omit_empty=True)
    )
    reported_rates: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("Worker to an external command's own images/sec")
    )
    state: Mapping[str, Any] = field(
        default_factory=dict, metadata=describe("Host to its own state before, during and after the run", schema=_OBJECTS)
    )
    disturbances: Sequence[str] = field(
        default_factory=list, metadata=describe("Why this run does not show the hosts' speed, one phrase each. Empty: it does")
    )
    out_of_step: Mapping[str, float] = field(
        default_factory=dict,
        metadata=describe(
            "Worker to how much later than the chief it was, where a disturbance excuses that. Below 0: it was earlier",
            unit="s",
            omit_empty=True,
        ),
    )
    anatomy: Mapping[str, Any] | None = field(
        default=None,
        metadata=describe("Where the time of a step goes, if it was traced", omit_empty=True, schema=_ANATOMY),
    )
    unexplained: str = field(default="", metadata=describe("Why it could not be traced", omit_empty=True))
    stragglers: Mapping[str, Any] | None = field(
        default=None,
        metadata=describe(
            "Times of its workers in the measured steps, as far as they are known",
            omit_empty=True,
            schema={"$ref": "stragglers.json"},
        ),
    )
    network: NetworkFacts | None = field(default=None, metadata=describe("What an own model is", omit_empty=True))
    program: Mapping[str, Any] = field(
        default_factory=dict, metadata=describe("What it ran: a part of the fingerprint", is_stored=False)
    )


@dataclass(frozen=True, kw_only=True)
class Measurement(JsonData):
    """The runs of one spec on one set of hosts."""

    spec: Spec
    runs: Sequence[Run]
    hosts: Sequence[str]
    fingerprint: Mapping[str, Any]  # {"hardware": ..., "software": ..., "program": ..., "placement": ..., "state": ...}
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)  # task -> s per step
    probes: Mapping[str, Any] | None = None  # of its hosts and links (`explain/probes.py`), if they were probed
    traced: Run | None = None  # a short run only for a trace: it does not count, and is not in `runs`

    @property
    def traced_run(self) -> Run | None:
        """The last run with a step breakdown, undisturbed ones first; else the last with a reason for its absence.

        None: no step was traced.
        """
        last_first = [*reversed(self.samples), *([self.traced] if self.traced else []), *reversed(self.runs)]
        with_anatomy = [run for run in last_first if run.anatomy]
        return next(iter([*with_anatomy, *(run for run in last_first if run.unexplained)]), None)

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
    def disturbances(self) -> list[str]:
        """The disturbances of its runs, each once, if all runs were disturbed."""
        if not all(run.disturbances for run in self.runs):
            return []
        return list(dict.fromkeys(words for run in self.runs for words in run.disturbances))

    @property
    def images_per_sec(self) -> float:
        """The median rate of the samples."""
        return statistics.median(self.rates)

    @property
    def misplaced(self) -> str | None:
        """A message on what was requested and what was allocated; None if they are equal, or unknown."""
        found: Mapping[str, Any] = self.fingerprint.get("placement", {})
        if found.get("matches", True):
            return None
        return f"requested: {', '.join(found['requested'])}; granted: {', '.join(found['granted'])}"

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
        return replace(self, runs=(*self.runs, *more))

    def to_json(self) -> dict[str, Any]:
        return {
            "spec": self.spec.to_json(),
            "runs": [run.to_json() for run in self.runs],
            "images_per_sec": self.images_per_sec,
            "hosts": list(self.hosts),
            "fingerprint": dict(self.fingerprint),
            "injected_slowdowns": dict(self.injected_slowdowns),
            **({"probes": self.probes} if self.probes else {}),
            **({"traced": self.traced.to_json()} if self.traced else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a record's line, which has further keys."""
        return super().from_json({field.name: data[field.name] for field in fields(cls) if field.name in data})


def efficiency(measurement: Measurement, anchor: Measurement) -> float:
    """Return rate(n) / (n x rate(1)), as a fraction. `anchor` is the 1-device measurement."""
    return scaling_efficiency(measurement.images_per_sec, measurement.spec.gpus, anchor.images_per_sec)


def scaling_efficiency(images_per_sec: float, gpus: int, one_device: float) -> float:
    """Return rate(n) / (n x rate(1)). May exceed 1."""
    return images_per_sec / (gpus * one_device)


def io_overhead(synthetic: float, real: float) -> float:
    """Return (synthetic - real) / synthetic, of the same spec. May be negative."""
    return (synthetic - real) / synthetic
