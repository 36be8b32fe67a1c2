"""What is stored of an accepted measurement: samples, fingerprint, provenance, and a few kilobytes of its steps and probes."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.baselines.files import round_fractions, significant
from pytest_dtfperf.formats import change, rate
from pytest_dtfperf.measurement import Measurement
from pytest_dtfperf.stats.noise import Noise

MOST_HOSTS = 32  # a host that is not among them is held against the median of these, as one that was not lent then


def keep_probes(found: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Of a measurement's probes: all of a few hosts; of many the first ones, and the links of no more."""
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


MOST_TASKS = 32  # of each job, by number: of any more workers, which are equal, those that are kept tell what is usual

Told = Mapping[str, Any] | None


def keep_steps(measurement: Measurement) -> tuple[Told, Told]:
    """Anatomy and scores of the last run that has both, or else of the last that has each."""
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


LOOSER = 0.01  # a baseline that is lower by more than this part lets more pass: the tightest margins in use are twice as wide
FINGERPRINT = ("hardware", "software", "program")  # what a baseline keeps of one; the state of that day is not kept


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Where a baseline comes from: who could measure it again, and how."""

    session: str  # id of the session folder that holds the whole measurement
    test: str  # pytest's node id
    date: str  # UTC, ISO 8601
    versions: Mapping[str, str] = field(default_factory=dict)  # of this package and what it runs on
    commit: str | None = None  # of the repository that held the tests, if it was one
    reason: str | None = None  # why a slower measurement was accepted


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """How much the rates of a case scatter, found out by measuring it in several sessions between which nothing changed."""

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
    """What a baseline file keeps of a measurement."""

    key: str  # Spec.key
    samples: Sequence[float]  # images/sec, one per run
    warmup_steps: int
    steps: int  # measured steps of each run
    hosts: int
    fingerprint: Mapping[str, Any]  # its FINGERPRINT parts
    provenance: Provenance
    calibrated: Calibrated | None = None
    probes: Mapping[str, Any] | None = None  # what its hosts and links could do (`explain/probes.py`), if that was measured
    anatomy: Mapping[str, Any] | None = None  # of its steps (`explain/step_breakdown.py`), if they were traced
    stragglers: Mapping[str, Any] | None = None  # who was late in its steps (`explain/worker_timings.py`), if that is known

    @property
    def noise(self) -> Noise | None:
        """What is known of the scatter of this case, where it was calibrated."""
        return self.calibrated.noise if self.calibrated else None

    @property
    def images_per_sec(self) -> float:
        """Median of the samples."""
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
        """What forbids comparing this with what was measured on so many hosts with that fingerprint; empty if nothing does."""
        spread_out = [f"hosts: {self.hosts} then, {hosts} now"] if self.hosts != hosts else []
        return must_match(self.fingerprint, fingerprint) + spread_out

    @classmethod
    def of(cls, measurement: Measurement, provenance: Provenance) -> Self:
        """The entry that this measurement becomes once it is accepted."""
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
        """With what was found out of its scatter before, unless it brings its own."""
        return self if self.calibrated else replace(self, calibrated=old.calibrated)

    def to_json(self) -> dict[str, Any]:
        """Without the key, which the entry is stored under, and without what is not known."""
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
    """What an update did to one baseline. `old` is None where there was none."""

    old: Entry | None
    new: Entry

    @property
    def loosens(self) -> bool:
        """Whether the gate lets more pass than before.

        A gate is a number, and so is this: whether the machine or chance has lowered it makes no difference to what passes.
        """
        return self.old is not None and self.new.images_per_sec < (1 - LOOSER) * self.old.images_per_sec

    @property
    def kept_noise(self) -> Calibrated | None:
        """What was calibrated for the baseline before this one, and holds on."""
        return self.new.calibrated if self.old and self.old.calibrated == self.new.calibrated else None

    def __str__(self) -> str:
        now = self.new.images_per_sec
        if self.old is None:
            return f"{self.new.key}: new, {rate(now)} images/sec"
        then = self.old.images_per_sec
        return f"{self.new.key}: {rate(then)} -> {rate(now)} images/sec ({change(now / then - 1)})"
