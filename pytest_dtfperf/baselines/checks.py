"""A judgement with all its inputs, so that it can be repeated later, without the hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pytest_dtfperf.baselines.compare import PublishedRate, judge, judge_published
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.thresholds import judge_accuracy, judge_efficiency, judge_learning, judge_overhead
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.measurement import Measurement

Kind = Literal["baseline", "published", "efficiency", "overhead", "accuracy", "learning"]


def _require_if(kinds: Sequence[Kind], properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rule of JSON Schema that checks of these kinds have such properties."""
    return {"if": {"properties": {"kind": {"enum": kinds}}}, "then": {"required": [*properties], "properties": properties}}


@dataclass(frozen=True, kw_only=True)
class Side(JsonData):
    """A measurement at the time of a check, and its baseline then."""

    record: str = field(metadata=describe("Id of the measurement"))
    # Further runs may belong to other checks.
    runs: int = field(metadata=describe("Number of its runs at that time", at_least=1))
    entry: Entry | None = field(default=None, metadata=describe("Its baseline at that time, with its key"))


@dataclass(frozen=True, kw_only=True)
class Check(JsonData):
    """The question about a measurement, and the answer."""

    schema_rules: ClassVar[Mapping[str, Any]] = {
        "allOf": [
            _require_if(["published"], {"published": {"type": "object"}}),
            _require_if(["efficiency", "overhead", "learning"], {"other": {"type": "object"}}),
            _require_if(
                ["efficiency", "overhead", "accuracy", "learning"], {"terms": {"properties": {"threshold": {"type": "number"}}}}
            ),
        ]
    }

    kind: Kind = field(metadata=describe("Kind of the comparison"))
    terms: ComparisonPolicy = field(metadata=describe("Settings of the comparison"))
    side: Side = field(metadata=describe("The judged measurement, and its baseline at that time"))
    other: Side | None = field(
        default=None, metadata=describe("The other measurement: the anchor, or the synthetic input; null: none")
    )
    published: PublishedRate | None = field(default=None, metadata=describe("The published rate of the comparison; null: none"))
    verdict: Verdict = field(metadata=describe("Verdict of the check"))
    reason: str = field(metadata=describe("Reason of the verdict, as text"))


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
