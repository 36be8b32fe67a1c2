"""What training yielded. Comes back from the hosts as JSON, and is what a session folder keeps."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from pytest_dtfperf.plain import Plain
from pytest_dtfperf.spec import Spec

# A task may be off its core for this long without anybody being wrong: a few time slices of a busy Linux host.
CLOCK_SLACK_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Score(Plain):
    """How well the whole test set is answered."""

    images: int
    loss: float  # cross-entropy, mean over the images
    total_loss: float  # and what weight decay adds: its factor times half the sum of squares of all variables that decay
    top_1: float  # the part of the images that is answered rightly, 0 to 1; a tie is no answer
    top_5: float  # for which the right answer is among the best five


@dataclass(frozen=True, kw_only=True)
class Evaluation(Plain):
    """An evaluation on the test set, within training or after it."""

    step: int  # steps trained until then, warm-up included
    trained_s: float  # seconds of measured steps until then, on the chief's clock; looking is not among them
    score: Score


@dataclass(frozen=True, kw_only=True)
class NetworkFacts(Plain):
    """What an own model is, as the task that trained it has found."""

    image_shape: Sequence[int]  # height, width, channels
    classes: int
    parameters: int  # of all variables
    trained_parameters: int  # of those that replicas exchange
    multiply_adds: int | None = None  # forward, per image; None: not known
    uncounted: str = ""  # why that is not known
    variables: Mapping[str, Sequence[int]] = field(default_factory=dict)  # trained ones and their shapes; not kept in records

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in super().to_json().items() if value or name != "variables"}


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
    evaluations: Sequence[Evaluation] = ()  # the chief's, if the spec asked for them
    variable_bytes: Mapping[str, int] = field(default_factory=dict)  # device -> bytes of variables placed there
    graph: Mapping[str, Any] = field(default_factory=dict)  # what a step computes: {"hash": ..., "operations": {kind: count}}
    settings: Mapping[str, str] = field(default_factory=dict)  # how TensorFlow runs it: what is in no graph
    reported_rate: str | None = None  # an external command's own images/sec
    unclear_rate: str | None = None  # why the last one that it has printed cannot be read
    last_lines: Sequence[str] = ()  # of such a program that has printed none; or the one line that cannot be read
    images: float = 0.0  # trained in the steps that such a program has reported, by this worker
    window_s: float = 0.0  # from the end of its warm-up to that of its last step, with what lies between steps
    window_at_s: float = 0.0  # when that window began, after its start; programs are started together
    impossible_steps: str | None = None  # why what it has reported of its steps is not believed
    network: NetworkFacts | None = None  # of an own model, the chief's

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    def to_json(self) -> dict[str, Any]:
        """Without what only a program that reports its steps has, or an own model."""
        own = {"unclear_rate", "images", "window_s", "window_at_s", "impossible_steps", "network"}
        return {name: value for name, value in super().to_json().items() if value or name not in own}


_WHERE_KNOWN = (
    "round_s",
    "task_hosts",
    "task_threads",
    "task_devices",
    "anatomy",
    "unexplained",
    "stragglers",
    "network",
    "out_of_step",
)  # of a run: else they are not written


@dataclass(frozen=True, kw_only=True)
class Run(Plain):
    """One training of one spec, over all its tasks."""

    images_per_sec: float  # devices x batch x measured steps / the chief's elapsed time, or as an external command says
    elapsed_s: float  # the chief's measured window; of an external command: its life, or the steps it reports
    step_s: Mapping[str, Sequence[float]]  # worker -> its measured steps; empty where an external command reports none
    loss: Sequence[float]  # the chief's, one per measured step; empty likewise
    startup_s: Mapping[str, float]  # phase -> seconds, the slowest task's; with launch phases (reserve, fork, ready, stop)
    bytes_sent: int  # by all hosts of workers, all interfaces, during the measured window
    bytes_received: int
    peak_rss_bytes: Mapping[str, int]  # task -> bytes
    cpu_s: Mapping[str, float]  # task -> user and system seconds during the measured window (a ps: over its life)
    wall_s: float  # from the first order to the last exit, on the controller's clock
    accuracy: float | None = None  # of the last evaluation on the test set, 0 to 1
    evaluations: Sequence[Evaluation] = field(default_factory=list)
    round_s: float | None = None  # Unix time at which its round began; runs of several specs in turn share one; old: unknown
    hosts: Sequence[str] = field(default_factory=list)  # those that its tasks ran on; old records do not tell
    task_hosts: Mapping[str, str] = field(default_factory=dict)  # task -> its host; old records do not tell
    task_threads: Mapping[str, int] = field(default_factory=dict)  # task -> cores it may use; old records do not tell
    task_devices: Mapping[str, int] = field(default_factory=dict)  # worker -> how many it had; old records do not tell
    reported_rates: Mapping[str, str] = field(default_factory=dict)  # by worker, as it printed it
    state: Mapping[str, Any] = field(default_factory=dict)  # what its hosts said of themselves before, during and after it
    disturbances: Sequence[str] = field(default_factory=list)  # by whom or what; empty: the run may be believed
    # Worker -> seconds by which it was out of step with the chief, where a disturbance excuses that; positive: it was later.
    out_of_step: Mapping[str, float] = field(default_factory=dict)
    anatomy: Mapping[str, Any] | None = None  # where the time of a step goes (`explain/`), if it was asked and could be told
    unexplained: str = ""  # why that could not be told
    stragglers: Mapping[str, Any] | None = None  # who was late in the measured steps (`explain/scores.py`), if that is known
    network: NetworkFacts | None = None  # what an own model is; of ours, `Spec.model` says all
    program: Mapping[str, Any] = field(default_factory=dict)  # what it ran: a part of the measurement's fingerprint, kept there

    def to_json(self) -> dict[str, Any]:
        left_out = {
            "program",
            *(name for name in _WHERE_KNOWN if not getattr(self, name)),
        }
        return {name: value for name, value in super().to_json().items() if name not in left_out}


@dataclass(frozen=True, kw_only=True)
class Measurement(Plain):
    """The runs of one spec on one set of hosts."""

    spec: Spec
    runs: Sequence[Run]
    hosts: Sequence[str]
    fingerprint: Mapping[str, Any]  # {"hardware": ..., "software": ..., "program": ..., "placement": ..., "state": ...}
    injected_slowdowns: Mapping[str, float] = field(default_factory=dict)  # task -> s per step
    probes: Mapping[str, Any] | None = None  # what its hosts and links could do (`explain/probes.py`), if that was measured
    traced: Run | None = None  # a short run that was made to be traced alone: it counts for nothing, and is none of `runs`

    @property
    def traced_run(self) -> Run | None:
        """The last run with an anatomy, first of those that nothing disturbed; else the last that says why it has none.

        None: no step was traced.
        """
        last_first = [*reversed(self.samples), *([self.traced] if self.traced else []), *reversed(self.runs)]
        with_anatomy = [run for run in last_first if run.anatomy]
        return next(iter([*with_anatomy, *(run for run in last_first if run.unexplained)]), None)

    @property
    def all_runs(self) -> Sequence[Run]:
        """Whatever was run for it."""
        return [*self.runs, *([self.traced] if self.traced else [])]

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
    def spread(self) -> float | None:
        """Half the range of the samples over their median: the number behind the ±. None: a single one has none."""
        return None if len(self.rates) < 2 else (max(self.rates) - min(self.rates)) / 2 / self.images_per_sec

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
            "injected_slowdowns": dict(self.injected_slowdowns),
            **({"probes": self.probes} if self.probes else {}),
            **({"traced": self.traced.to_json()} if self.traced else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of a record's line, which holds more."""
        return super().from_json({field.name: data[field.name] for field in fields(cls) if field.name in data})


def efficiency(measurement: Measurement, anchor: Measurement) -> float:
    """rate(n) / (n x rate(1)), as a fraction. `anchor` is the 1-device measurement it is divided by."""
    return scaling_efficiency(measurement.images_per_sec, measurement.spec.gpus, anchor.images_per_sec)


def scaling_efficiency(images_per_sec: float, gpus: int, one_device: float) -> float:
    """rate(n) / (n x rate(1)). May exceed 1."""
    return images_per_sec / (gpus * one_device)


def io_overhead(synthetic: float, real: float) -> float:
    """(synthetic - real) / synthetic, of the same spec. May be negative."""
    return (synthetic - real) / synthetic
