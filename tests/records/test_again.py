"""Sessions that are judged again from their records."""

from dataclasses import replace

import pytest

from pytest_dtfperf.baselines.checks import ask
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import SessionFileError
from pytest_dtfperf.records.again import JudgementChanges, judge_again
from pytest_dtfperf.records.record import Record
from tests.baselines.examples import entry_of, measurement_of

ENTRY = entry_of([100, 100.5, 99.5, 100])
ONE = Record(id="one", test="t.py::test_a", measurement=measurement_of([80, 80.5, 79.5, 80], gpus=1, num_ps=1))
TWO = Record(id="two", test="t.py::test_a", measurement=measurement_of([99, 99.5, 60], gpus=2))


def make_checked_record(
    record: Record, *, runs: int, entry: Entry | None = None, terms: ComparisonPolicy | None = None
) -> Record:
    """Return the record as it was after a comparison of so many runs with a baseline."""
    terms = terms or ComparisonPolicy(margin=0.05)
    measurement = replace(record.measurement, runs=record.measurement.runs[:runs])
    return record.with_judgement(ask("baseline", terms, measurement, entry=entry))


def test_record_judged_again_is_the_same() -> None:
    """A record that is judged again is the same, also if it has further runs."""
    record = make_checked_record(TWO, runs=2, entry=ENTRY)
    assert record.verdict == "PASSED"
    (again,) = judge_again([record])
    assert (again.verdict, again.reason, again.checks) == (record.verdict, record.reason, record.checks)


def test_incomparable_placement_is_judged_again() -> None:
    """An INCOMPARABLE placement is judged again with the same reason; a baseline of another training is an error."""
    split = replace(TWO, measurement=measurement_of([99, 99.5], num_ps=2, variable_placement="split"))
    record = make_checked_record(split, runs=2, entry=entry_of([100, 100.5], num_ps=2))
    assert record.verdict == "INCOMPARABLE"
    (again,) = judge_again([record])
    assert (again.verdict, again.reason, again.checks) == (record.verdict, record.reason, record.checks)
    foreign = replace(record.checks[0], entry=entry_of([100, 100.5], batch_size=9))
    with pytest.raises(SessionFileError, match="was compared with a baseline of another training"):
        judge_again([replace(record, checks=(foreign,))])


def test_smaller_margin_changes_the_verdict() -> None:
    """With a smaller margin the verdict changes, and the new check has the margin."""
    (again,) = judge_again([make_checked_record(TWO, runs=2, entry=ENTRY)], JudgementChanges(margin=0.005))
    assert again.verdict == "INCONCLUSIVE"
    assert again.comparison is not None
    assert again.comparison.margin == 0.005


def test_other_baselines_are_used() -> None:
    """Other baselines are used for records with and without a baseline."""
    stored = entry_of([140, 140.5, 139.5, 140])
    records = [make_checked_record(TWO, runs=3, entry=None), make_checked_record(TWO, runs=2, entry=ENTRY)]
    assert [record.verdict for record in records] == ["NO_BASELINE", "PASSED"]
    again = judge_again(records, JudgementChanges(baseline_of=lambda measurement: stored))
    assert [record.checks[0].entry for record in again] == [stored, stored]
    assert again[1].verdict == "INCONCLUSIVE"  # two runs accuse nobody


def test_efficiency_is_judged_again_with_its_anchor() -> None:
    """A check of efficiency is judged again with its anchor or another threshold; without the anchor it is an error."""
    terms = ComparisonPolicy(threshold=0.5)
    judgement = ask("efficiency", terms, TWO.measurement.with_runs([]), ONE.measurement, other_id="one")
    record = TWO.with_judgement(replace(judgement, reason="then"))
    again = judge_again([ONE, record])[1]
    assert again.checks[0].reason == judgement.reason
    assert (again.efficiency, again.anchor) == (judgement.value, "one")
    stricter = judge_again([ONE, record], JudgementChanges(min_efficiency=0.9))[1].checks[0]
    assert stricter.terms == ComparisonPolicy(threshold=0.9)
    with pytest.raises(SessionFileError, match=r"'two' .* was compared with 'one', which is not in the session"):
        judge_again([record])


def test_check_that_is_not_allowed_now_stays() -> None:
    """A check that is not allowed now stays as it was, with a message."""
    was = replace(
        make_checked_record(TWO, runs=2, entry=ENTRY).checks[0], kind="efficiency", verdict=Verdict.REGRESSED, reason="too slow"
    )
    was = replace(was, terms=ComparisonPolicy(threshold=0.5), other="two", other_runs=2)  # two devices are no anchor
    record = TWO.with_judgement(was)
    messages: list[str] = []
    (again,) = judge_again([record], on_status=messages.append)
    assert again == record
    why = f"efficiency needs a 1-device anchor, not {TWO.spec.label}"
    assert messages == [f"as in the session, because this check is not allowed now: {TWO.spec.label}: REGRESSED: {why}"]


def test_verdict_without_a_check_stays() -> None:
    """An INVALID measurement stays INVALID, and one without a verdict stays without one."""
    invalid = replace(
        make_checked_record(TWO, runs=2, entry=ENTRY), verdict=Verdict.INVALID, reason="worker:1: the loss is nan"
    )
    assert [record.verdict for record in judge_again([invalid, ONE])] == ["INVALID", None]
