"""A judgement with all its inputs, so that it can be repeated later, without the hosts."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from pytest_dtfperf.baselines.compare import PublishedRate, judge, judge_published
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.thresholds import judge_accuracy, judge_efficiency, judge_learning, judge_overhead
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.datamodel.measurement import Measurement

Kind = Literal["baseline", "published", "efficiency", "overhead", "accuracy", "learning"]


@dataclass(frozen=True, kw_only=True)
class Side(JsonData):
    """A measurement at the time of a check, and its baseline then."""

    record: str  # id
    runs: int  # number of its runs; further ones may belong to other checks
    entry: Entry | None = None

    def to_json(self) -> dict[str, Any]:
        entry = {"key": self.entry.key, **self.entry.to_json()} if self.entry else None
        return {"record": self.record, "runs": self.runs, "entry": entry}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(record=data["record"], runs=data["runs"], entry=Entry.from_json(data["entry"]) if data["entry"] else None)


@dataclass(frozen=True, kw_only=True)
class Check(JsonData):
    """The question about a measurement, and the answer."""

    kind: Kind
    terms: ComparisonPolicy
    side: Side
    other: Side | None = None  # the anchor, or the measurement with synthetic input
    published: PublishedRate | None = None
    verdict: Verdict
    reason: str


def ask(
    kind: Kind,
    terms: ComparisonPolicy,
    measurement: Measurement,
    other: Measurement | None = None,
    *,
    entry: Entry | None = None,
    other_entry: Entry | None = None,
    published: PublishedRate | None = None,
) -> Judgement:
    """Judge one or two measurements by the check `kind`. Tests and `dtfperf judge` both use it."""
    if kind == "baseline":
        return judge(measurement, entry, terms)
    if kind == "published":
        assert published is not None
        return judge_published(measurement, published, terms, entry=entry)
    if kind == "accuracy":
        return judge_accuracy(measurement, terms)
    if other is None:
        raise ValueError(f"a check of {kind} compares two measurements")
    if kind == "efficiency":
        return judge_efficiency(measurement, other, terms, entry=entry, anchor_entry=other_entry)
    if kind == "overhead":
        return judge_overhead(other, measurement, terms, entry=entry, synthetic_entry=other_entry)
    return judge_learning(measurement, other, terms)


def ask_again(check: Check, measurements: Mapping[str, Measurement]) -> tuple[Judgement, Check]:
    """Repeat the judgement on the same runs. Raises `KeyError` if a measurement is missing."""
    measurement = _as_it_was(check.side, measurements)
    other = _as_it_was(check.other, measurements) if check.other else None
    found = ask(
        check.kind,
        check.terms,
        measurement,
        other,
        entry=check.side.entry,
        other_entry=check.other.entry if check.other else None,
        published=check.published,
    )
    return found, replace(check, verdict=found.verdict, reason=found.reason)


def _as_it_was(side: Side, measurements: Mapping[str, Measurement]) -> Measurement:
    measurement = measurements[side.record]
    return replace(measurement, runs=measurement.runs[: side.runs])
