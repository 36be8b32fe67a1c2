"""The stored form of an accepted measurement: samples, fingerprint, provenance, and a few kilobytes of steps and probes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.baselines.files import round_fractions, significant
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.formats import change, rate
from pytest_dtfperf.stats.noise import Noise

Data = TypeVar("Data", bound=JsonData)
Value = TypeVar("Value")

MOST_HOSTS = 32  # further hosts are compared with the median of these


def keep_probes(found: Probes | None) -> Probes | None:
    """Return the probes to store: of all hosts if they are few, else of the first ones, without further links."""
    if found is None:
        return None
    return _round(
        replace(
            found,
            hosts=_first_items(found.hosts, MOST_HOSTS),
            links={
                name: replace(link, streams=_first_items(link.streams, MOST_HOSTS))
                for name, link in _first_items(found.links, 2 * MOST_HOSTS).items()
            },
            unknown=_first_items(found.unknown, MOST_HOSTS),
        )
    )


def _round(data: Data) -> Data:
    return type(data).from_json(round_fractions(data.to_json()))


def _first_items(found: Mapping[str, Value], count: int) -> dict[str, Value]:
    return {name: found[name] for name in sorted(found)[:count]}


MOST_TASKS = 32  # of each job, by number: further workers are equal, so these show the usual values


def keep_steps(measurement: Measurement) -> tuple[StepBreakdown | None, WorkerTimings | None]:
    """Return step breakdown and worker timings of the last run with both, or else of the last run with each."""
    last_first = list(reversed(measurement.samples))
    both = [run for run in last_first if run.step_breakdown and run.worker_timings] or last_first
    steps = next((run.step_breakdown for run in both if run.step_breakdown), None)
    timings = next((run.worker_timings for run in both if run.worker_timings), None)
    if steps:
        tasks, clocks = _first_tasks(steps.tasks), _first_tasks(steps.clock_error_s)
        steps = _round(replace(steps, tasks=tasks, clock_error_s=clocks))
    if timings:
        timings = _round(replace(timings, workers=_first_tasks(timings.workers)))
    return steps, timings


def _first_tasks(found: Mapping[str, Value]) -> dict[str, Value]:
    return {task: found[task] for task in sorted(found) if int(task.partition(":")[2] or 0) < MOST_TASKS}


LOOSER = 0.01  # a baseline that is lower by a larger part counts as looser: the tightest margins in use are twice as wide
FINGERPRINT = ("hardware", "software", "program")  # stored parts of a fingerprint; the state of that day is not one


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The origin of a baseline, for measuring it again."""

    session: str  # id of the session folder with the whole measurement
    test: str  # pytest's node id
    date: str  # UTC, ISO 8601
    versions: Mapping[str, str] = field(default_factory=dict)  # of this package and its dependencies
    commit: str | None = None  # of the tests' repository, if there is one
    reason: str | None = None  # why a slower measurement was accepted


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The noise of a case, estimated from several sessions without a change between them."""

    noise: Noise
    sessions: int
    date: str  # UTC, ISO 8601

    def to_json(self) -> dict[str, Any]:
        noise = {name: significant(value) for name, value in asdict(self.noise).items()}
        return {**noise, "sessions": self.sessions, "date": self.date}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(
            noise=Noise(run=data["run"], degrees_of_freedom=data["degrees_of_freedom"], session=data["session"]),
            sessions=data["sessions"],
            date=data["date"],
        )


@dataclass(frozen=True, kw_only=True)
class Entry:
    """The stored part of a measurement in a baseline file."""

    key: str  # Spec.key
    samples: Sequence[float]  # images/sec, one per run
    warmup_steps: int
    steps: int  # measured steps of each run
    hosts: int
    fingerprint: Mapping[str, Any]  # its FINGERPRINT parts
    provenance: Provenance
    calibrated: Calibrated | None = None
    probes: Probes | None = None
    step_breakdown: StepBreakdown | None = None
    worker_timings: WorkerTimings | None = None

    @property
    def noise(self) -> Noise | None:
        """The noise of this case, if it was calibrated."""
        return self.calibrated.noise if self.calibrated else None

    @property
    def images_per_sec(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the samples."""
        return (max(self.samples) - min(self.samples)) / self.images_per_sec

    @property
    def hardware(self) -> Mapping[str, Any]:
        hardware: Mapping[str, Any] = self.fingerprint.get("hardware", {})
        return hardware

    @property
    def software(self) -> Mapping[str, Any]:
        software: Mapping[str, Any] = self.fingerprint.get("software", {})
        return software

    def foreign_to(self, fingerprint: Mapping[str, Any], hosts: int) -> list[str]:
        """Return what forbids a comparison with a measurement on so many hosts with that fingerprint; empty if nothing does."""
        spread_out = [f"hosts: {self.hosts} then, {hosts} now"] if self.hosts != hosts else []
        return must_match(self.fingerprint, fingerprint) + spread_out

    @classmethod
    def of(cls, measurement: Measurement, provenance: Provenance) -> Self:
        """Return the entry of an accepted measurement."""
        steps, timings = keep_steps(measurement)
        return cls(
            key=measurement.spec.key,
            samples=[significant(rate) for rate in measurement.rates],
            warmup_steps=measurement.spec.warmup_steps,
            steps=measurement.spec.steps,
            hosts=len(measurement.hosts),
            fingerprint={part: measurement.fingerprint.get(part, {}) for part in FINGERPRINT},
            provenance=provenance,
            probes=keep_probes(measurement.probes),
            step_breakdown=steps,
            worker_timings=timings,
        )

    def with_noise_of(self, old: "Entry") -> "Entry":
        """Return the entry with the earlier calibration, unless it has its own."""
        return self if self.calibrated else replace(self, calibrated=old.calibrated)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON, without its key, and without unknown values."""
        provenance = {name: value for name, value in asdict(self.provenance).items() if value is not None}
        data = {
            "samples": [significant(rate) for rate in self.samples],
            "warmup_steps": self.warmup_steps,
            "steps": self.steps,
            "hosts": self.hosts,
            "fingerprint": self.fingerprint,
            "provenance": {"kind": "measured", **provenance},
        }
        found: Mapping[str, Calibrated | JsonData | None] = {
            "noise": self.calibrated,
            "probes": self.probes,
            "step_breakdown": self.step_breakdown,
            "worker_timings": self.worker_timings,
        }
        return data | {name: value.to_json() for name, value in found.items() if value is not None}

    @classmethod
    def from_json(cls, key: str, data: Mapping[str, Any]) -> Self:
        provenance = {name: value for name, value in data["provenance"].items() if name != "kind"}
        return cls(
            key=key,
            samples=data["samples"],
            warmup_steps=data["warmup_steps"],
            steps=data["steps"],
            hosts=data["hosts"],
            fingerprint=data["fingerprint"],
            provenance=Provenance(**provenance),
            calibrated=Calibrated.from_json(data["noise"]) if "noise" in data else None,
            probes=Probes.from_json(data["probes"]) if "probes" in data else None,
            step_breakdown=StepBreakdown.from_json(data["step_breakdown"]) if "step_breakdown" in data else None,
            worker_timings=WorkerTimings.from_json(data["worker_timings"]) if "worker_timings" in data else None,
        )


@dataclass(frozen=True)
class BaselineChange:
    """The change of one baseline. `old` is None if there was none."""

    old: Entry | None
    new: Entry

    @property
    def loosens(self) -> bool:
        """Whether the gate lets more pass than before.

        Only the number counts, whether the machine or chance has lowered it.
        """
        return self.old is not None and self.new.images_per_sec < (1 - LOOSER) * self.old.images_per_sec

    @property
    def kept_noise(self) -> Calibrated | None:
        """The calibration of the previous baseline that remains valid."""
        return self.new.calibrated if self.old and self.old.calibrated == self.new.calibrated else None

    def __str__(self) -> str:
        now = self.new.images_per_sec
        if self.old is None:
            return f"{self.new.key}: new, {rate(now)} images/sec"
        then = self.old.images_per_sec
        return f"{self.new.key}: {rate(then)} -> {rate(now)} images/sec ({change(now / then - 1)})"
