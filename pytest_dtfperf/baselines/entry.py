"""The stored form of an accepted measurement: samples, fingerprint, provenance, and a few kilobytes of steps and probes."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.baselines.files import round_fractions, significant
from pytest_dtfperf.formats import change, rate
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.stats.noise import Noise

MOST_HOSTS = 32  # further hosts are compared with the median of these


def keep_probes(found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the probes to store: of all hosts if they are few, else of the first ones, without further links."""
    if found is None:
        return None
    links = {name: _fewer_streams(link) for name, link in _first_items(found["links"], 2 * MOST_HOSTS).items()}
    fewer = {name: _first_items(found[name], MOST_HOSTS) for name in ("hosts", "unknown")}
    data: Mapping[str, Any] = round_fractions({**found, **fewer, "links": links})
    return data


def _fewer_streams(link: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**link, "streams": _first_items(link["streams"], MOST_HOSTS)}


def _first_items(found: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {name: found[name] for name in sorted(found)[:count]}


MOST_TASKS = 32  # of each job, by number: further workers are equal, so these show the usual values

Told = Mapping[str, Any] | None


def keep_steps(measurement: Measurement) -> tuple[Told, Told]:
    """Return step breakdown and worker timings of the last run with both, or else of the last run with each."""
    last_first = list(reversed(measurement.samples))
    both = [run for run in last_first if run.anatomy and run.stragglers] or last_first
    anatomy = next((run.anatomy for run in both if run.anatomy), None)
    stragglers = next((run.stragglers for run in both if run.stragglers), None)
    return _keep_fields(anatomy, "tasks", "clock_error_s"), _keep_fields(stragglers, "workers")


def _keep_fields(found: Told, *by_task: str) -> Told:
    if found is None:
        return None
    fewer = {name: {task: found[name][task] for task in _first(found[name])} for name in by_task}
    kept: Mapping[str, Any] = round_fractions({**found, **fewer})
    return kept


def _first(tasks: Iterable[str]) -> list[str]:
    return sorted(task for task in tasks if int(task.partition(":")[2] or 0) < MOST_TASKS)


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
    probes: Mapping[str, Any] | None = None  # of its hosts and links (`explain/probes.py`), if they were probed
    anatomy: Mapping[str, Any] | None = None  # of its steps (`explain/step_breakdown.py`), if they were traced
    stragglers: Mapping[str, Any] | None = None  # of its steps (`explain/worker_timings.py`), if known

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
        anatomy, stragglers = keep_steps(measurement)
        return cls(
            key=measurement.spec.key,
            samples=[significant(rate) for rate in measurement.rates],
            warmup_steps=measurement.spec.warmup_steps,
            steps=measurement.spec.steps,
            hosts=len(measurement.hosts),
            fingerprint={part: measurement.fingerprint.get(part, {}) for part in FINGERPRINT},
            provenance=provenance,
            probes=keep_probes(measurement.probes),
            anatomy=anatomy,
            stragglers=stragglers,
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
        found = {"noise": self.calibrated.to_json() if self.calibrated else None, "probes": self.probes}
        found |= {"anatomy": self.anatomy, "stragglers": self.stragglers}
        return data | {name: value for name, value in found.items() if value is not None}

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
            probes=data.get("probes"),
            anatomy=data.get("anatomy"),
            stragglers=data.get("stragglers"),
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
