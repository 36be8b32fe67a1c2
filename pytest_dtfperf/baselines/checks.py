"""Checks of measurements, by their kinds, and their repetition on stored measurements."""

from collections.abc import Mapping
from dataclasses import replace

from pytest_dtfperf.baselines.compare import judge, judge_published
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement, Kind, PublishedRate
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.thresholds import judge_accuracy, judge_efficiency, judge_learning, judge_overhead
from pytest_dtfperf.datamodel.measurement import Measurement


def ask(
    kind: Kind,
    terms: ComparisonPolicy,
    measurement: Measurement,
    other: Measurement | None = None,
    *,
    other_id: str | None = None,
    entry: Entry | None = None,
    other_entry: Entry | None = None,
    published: PublishedRate | None = None,
) -> Judgement:
    """Judge one or two measurements by the check `kind`, and return the judgement with its question.

    Tests and `dtfperf judge` both use it.
    """
    found = _compare(kind, terms, measurement, other, entry, other_entry, published)
    return replace(
        found,
        kind=kind,
        terms=terms,
        runs=len(measurement.runs),
        entry=entry,
        other=other_id,
        other_runs=len(other.runs) if other else None,
        other_entry=other_entry,
        published=published,
    )


def _compare(
    kind: Kind,
    terms: ComparisonPolicy,
    measurement: Measurement,
    other: Measurement | None,
    entry: Entry | None,
    other_entry: Entry | None,
    published: PublishedRate | None,
) -> Judgement:
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


def ask_again(judgement: Judgement, measurement: Measurement, others: Mapping[str, Measurement]) -> Judgement:
    """Repeat the judgement on the same runs.

    Args:
        others: Measurements by their ids, with the one that the measurement was compared with.

    Raises:
        KeyError: that one is missing.
    """
    terms, other = judgement.terms, judgement.other
    assert terms
    return ask(
        judgement.kind,
        terms,
        replace(measurement, runs=measurement.runs[: judgement.runs]),
        replace(others[other], runs=others[other].runs[: judgement.other_runs]) if other is not None else None,
        other_id=other,
        entry=judgement.entry,
        other_entry=judgement.other_entry,
        published=judgement.published,
    )
