"""A baseline: one accepted measurement of one spec on one system."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pytest_dtfperf.baselines.canonical import significant
from pytest_dtfperf.baselines.system import differences
from pytest_dtfperf.measurement import Measurement


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
class Entry:
    """What a baseline file keeps of a measurement."""

    key: str  # Spec.key
    samples: Sequence[float]  # images/sec, one per run
    warmup_steps: int
    steps: int  # measured steps of each run
    hosts: int
    fingerprint: Mapping[str, Any]  # "hardware" must match, "software" is noted; the state of that day is not kept
    provenance: Provenance

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

    def foreign_to(self, hardware: Mapping[str, Any], hosts: int) -> list[str]:
        """What forbids comparing this with something measured on so many hosts of that hardware; empty if nothing does."""
        spread_out = [f"hosts: {self.hosts} then, {hosts} now"] if self.hosts != hosts else []
        return differences(self.hardware, hardware) + spread_out

    @classmethod
    def of(cls, measurement: Measurement, provenance: Provenance) -> Self:
        """The entry that this measurement becomes once it is accepted."""
        return cls(
            key=measurement.spec.key,
            samples=[significant(rate) for rate in measurement.rates],
            warmup_steps=measurement.spec.warmup_steps,
            steps=measurement.spec.steps,
            hosts=len(measurement.hosts),
            fingerprint={part: measurement.fingerprint.get(part, {}) for part in ("hardware", "software")},
            provenance=provenance,
        )

    def to_json(self) -> dict[str, Any]:
        """Without the key, which the entry is stored under."""
        data = asdict(self) | {"samples": [significant(rate) for rate in self.samples]}
        del data["key"]
        data["provenance"] = {"kind": "measured"} | {k: v for k, v in data["provenance"].items() if v is not None}
        return data

    @classmethod
    def from_json(cls, key: str, data: Mapping[str, Any]) -> Self:
        provenance = {name: value for name, value in data["provenance"].items() if name != "kind"}
        return cls(**{**data, "key": key, "provenance": Provenance(**provenance)})


@dataclass(frozen=True)
class Change:
    """What an update did to one baseline. `old` is None where there was none."""

    old: Entry | None
    new: Entry

    def __str__(self) -> str:
        now = self.new.images_per_sec
        if self.old is None:
            return f"{self.new.key}: new, {now:.6g} images/sec"
        then = self.old.images_per_sec
        return f"{self.new.key}: {then:.6g} -> {now:.6g} images/sec ({now / then - 1:+.1%})"
