"""The stored form of an accepted measurement: samples, fingerprint, provenance, and a few kilobytes of steps and probes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, TypeVar

from pytest_dtfperf.baselines.comparability import list_forbidden_differences
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.datamodel.step_times import StepBreakdown, WorkerTimings
from pytest_dtfperf.formats import change, rate, round_fractions, significant
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
            hosts=_select_first_items(found.hosts, MOST_HOSTS),
            links={
                name: replace(link, streams=_select_first_items(link.streams, MOST_HOSTS))
                for name, link in _select_first_items(found.links, 2 * MOST_HOSTS).items()
            },
            unknown=_select_first_items(found.unknown, MOST_HOSTS),
        )
    )


def _round(data: Data) -> Data:
    return type(data).from_json(round_fractions(data.to_json()))


def _select_first_items(found: Mapping[str, Value], count: int) -> dict[str, Value]:
    return {name: found[name] for name in sorted(found)[:count]}


MOST_TASKS = 32  # of each job, by number: further workers are equal, so these show the usual values


def keep_steps(measurement: Measurement) -> tuple[StepBreakdown | None, WorkerTimings | None]:
    """Return step breakdown and worker timings of the last run with both, or else of the last run with each."""
    last_first = list(reversed(measurement.samples))
    both = [run for run in last_first if run.step_breakdown and run.worker_timings] or last_first
    steps = next((run.step_breakdown for run in both if run.step_breakdown), None)
    timings = next((run.worker_timings for run in both if run.worker_timings), None)
    if steps:
        tasks, clocks = _select_first_tasks(steps.tasks), _select_first_tasks(steps.clock_error_s)
        steps = _round(replace(steps, tasks=tasks, clock_error_s=clocks))
    if timings:
        timings = _round(replace(timings, workers=_select_first_tasks(timings.workers)))
    return steps, timings


def _select_first_tasks(found: Mapping[str, Value]) -> dict[str, Value]:
    return {task: found[task] for task in sorted(found) if int(task.partition(":")[2] or 0) < MOST_TASKS}


LOOSER = 0.01  # a baseline that is lower by a larger part counts as looser: the tightest margins in use are twice as wide


UTC_TIME = r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|\+00:00)"


@dataclass(frozen=True, kw_only=True)
class Provenance(JsonData):
    """The origin of a baseline, for measuring it again."""

    kind: Literal["measured"] = field(default="measured", metadata=describe("Always `measured`: not a published rate"))
    session: str = field(metadata=describe("Session of the measurement"))
    test: str = field(metadata=describe("pytest's node id"))
    date: str = field(metadata=describe("UTC, ISO 8601", pattern=UTC_TIME))
    versions: Mapping[str, str] = field(
        default_factory=dict, metadata=describe("Versions of this package and of the training software")
    )
    commit: str | None = field(
        default=None,
        metadata=describe("Commit of the repository with the tests", omit_empty=True),
    )
    reason: str | None = field(
        default=None,
        metadata=describe("Reason for accepting a slower measurement", omit_empty=True, min_size=1),
    )


@dataclass(frozen=True, kw_only=True)
class CalibratedNoise(Noise, JsonData):
    """The noise of a case, estimated from several sessions without a change between them."""

    run: float = field(metadata=describe("Noise of the runs of one session", above=0, at_most=10))
    degrees_of_freedom: float = field(metadata=describe("Degrees of freedom of the estimate", at_least=0, at_most=1e6))
    session: float = field(metadata=describe("Noise of the effect that all runs of a session share", at_least=0, at_most=10))
    sessions: int = field(metadata=describe("Number of measured sessions", at_least=2))
    date: str = field(metadata=describe("UTC, ISO 8601", pattern=UTC_TIME))

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {name.name: significant(getattr(self, name.name)) for name in fields(Noise)}


@dataclass(frozen=True, kw_only=True)
class Entry(JsonData):
    """The stored part of a measurement in a baseline file."""

    key: str = field(metadata=describe("Spec.key; a baseline file has it as the key of a list of entries"))
    samples: Sequence[float] = field(
        metadata=describe("Rates, one for each run", unit="images/sec", above=0, at_most=1e12, min_size=1)
    )
    warmup_steps: int = field(metadata=describe("Steps before the measured ones", at_least=0))
    steps: int = field(metadata=describe("Measured steps of each run", at_least=1))
    hosts: int = field(metadata=describe("Number of hosts", at_least=1))
    fingerprint: Fingerprint = field(metadata=describe("Fingerprint of the hosts, the software and the program"))
    provenance: Provenance = field(metadata=describe("Origin of the entry"))
    noise: CalibratedNoise | None = field(
        default=None, metadata=describe("Scatter of its rates, if it was calibrated", omit_empty=True)
    )
    probes: Probes | None = field(
        default=None, metadata=describe("Probed capacities of its hosts and links, if they were probed", omit_empty=True)
    )
    step_breakdown: StepBreakdown | None = field(
        default=None, metadata=describe("Breakdown of a step's time, if it was traced", omit_empty=True)
    )
    worker_timings: WorkerTimings | None = field(
        default=None,
        metadata=describe("Timings of the workers in the steps of the same run, if they are known", omit_empty=True),
    )

    @property
    def images_per_sec(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median of the samples."""
        return (max(self.samples) - min(self.samples)) / self.images_per_sec

    def list_differences(self, fingerprint: Fingerprint, hosts: int) -> list[str]:
        """Return what forbids a comparison with a measurement on so many hosts with that fingerprint; empty if nothing does."""
        spread_out = [f"hosts: {self.hosts} before, {hosts} after"] if self.hosts != hosts else []
        return list_forbidden_differences(self.fingerprint, fingerprint) + spread_out

    @classmethod
    def from_measurement(cls, measurement: Measurement, provenance: Provenance) -> Self:
        """Return the entry of an accepted measurement."""
        steps, timings = keep_steps(measurement)
        return cls(
            key=measurement.spec.key,
            samples=[significant(rate) for rate in measurement.rates],
            warmup_steps=measurement.spec.warmup_steps,
            steps=measurement.spec.steps,
            hosts=len(measurement.hosts),
            fingerprint=measurement.fingerprint.select_compared(),
            provenance=provenance,
            probes=keep_probes(measurement.probes),
            step_breakdown=steps,
            worker_timings=timings,
        )

    def with_noise_of(self, old: "Entry") -> "Entry":
        """Return the entry with the earlier calibration, unless it has its own."""
        return self if self.noise else replace(self, noise=old.noise)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON, without unknown values."""
        return super().to_json() | {"samples": [significant(rate) for rate in self.samples]}

    def to_file_json(self) -> dict[str, Any]:
        """Return the entry as a baseline file has it: below its key."""
        return {name: value for name, value in self.to_json().items() if name != "key"}


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
    def kept_noise(self) -> CalibratedNoise | None:
        """The calibration of the previous baseline that remains valid."""
        return self.new.noise if self.old and self.old.noise == self.new.noise else None

    def __str__(self) -> str:
        now = self.new.images_per_sec
        if self.old is None:
            return f"{self.new.key}: new, {rate(now)} images/sec"
        then = self.old.images_per_sec
        return f"{self.new.key}: {rate(then)} -> {rate(now)} images/sec ({change(now / then - 1)})"
