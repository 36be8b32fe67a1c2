"""Judge a session's records again: as they were judged, or more strictly, or against other baselines. Values in, values out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.baselines.checks import Check, Side, ask_again
from pytest_dtfperf.baselines.comparability import same_but_for_exchange
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.records.record import (
    Record,
    efficiency_of,
    make_comparison,
    without_void_checks,
    without_void_efficiencies,
)


@dataclass(frozen=True, kw_only=True)
class Otherwise:
    """What is to be different from then. None: as it was."""

    margin: float | None = None
    min_efficiency: float | None = None
    baseline_of: Callable[[Measurement], Entry | None] | None = None


def judge_again(
    records: Sequence[Record], otherwise: Otherwise | None = None, on_status: Callable[[str], None] = lambda status: None
) -> list[Record]:
    """Pass every judgement again, on what it rested on. What was never judged, or judged by no check, stays as it is.

    So does what an older version allowed to be asked and this one does not; `on_status` is called with a line for each. Raises
    `SessionFileError` where a measurement that another was compared with is missing.
    """
    measurements = {record.id: record.measurement for record in records}
    found = [_again(record, measurements, otherwise or Otherwise(), on_status) for record in records]
    return without_void_efficiencies(without_void_checks(found))


def _again(
    record: Record, measurements: Mapping[str, Measurement], otherwise: Otherwise, on_status: Callable[[str], None]
) -> Record:
    if not record.checks:
        return record
    by_check = record.verdict in {check.verdict for check in record.checks}
    verdict, reason = (
        (None, None) if by_check else (record.verdict, record.reason)
    )  # INVALID by a later run, which left no rate
    found = replace(record, verdict=verdict, reason=reason, baseline=None, checks=())
    if otherwise.baseline_of:
        found = replace(found, explanation=None, unexplained="")  # it was of the baseline of then
    for old in record.checks:
        _check_sides(record, old, measurements)
        try:
            judgement, check = ask_again(_otherwise(old, measurements, otherwise), measurements)
        except UsageError as exc:
            on_status(f"as of then, for it cannot be asked any more: {record.spec.label}: {old.verdict}: {exc}")
            baseline = record.baseline if old.kind == "baseline" else None
            efficiency = record.efficiency if old.kind == "efficiency" else None
            found = found.with_judgement(old.verdict, old.reason, baseline=baseline, efficiency=efficiency, check=old)
            continue
        found = found.with_judgement(
            check.verdict,
            check.reason,
            baseline=make_comparison(judgement, check),
            efficiency=efficiency_of(judgement, check),
            check=check,
        )
    return found


def _check_sides(record: Record, check: Check, measurements: Mapping[str, Measurement]) -> None:
    for side in (check.side, check.other):
        if side and side.record not in measurements:
            raise SessionFileError(f"{_name_record(record)} was compared with {side.record!r}, which is not in the session")
        if side and side.entry and not same_but_for_exchange(side.entry.key, measurements[side.record].spec.key):
            raise SessionFileError(
                f"{_name_record(record)} was compared with a baseline of another training, {side.entry.key!r}"
            )


def _name_record(record: Record) -> str:
    return f"the measurement {record.id!r} ({record.spec.label!r})"


def _otherwise(check: Check, measurements: Mapping[str, Measurement], otherwise: Otherwise) -> Check:
    terms = check.terms
    if otherwise.margin is not None:
        terms = replace(terms, margin=otherwise.margin)
    if otherwise.min_efficiency is not None and check.kind == "efficiency":
        terms = replace(terms, threshold=otherwise.min_efficiency)
    sides = [_with_baseline(side, measurements, otherwise) for side in (check.side, check.other) if side]
    return replace(check, terms=terms, side=sides[0], other=sides[1] if check.other else None)


def _with_baseline(side: Side, measurements: Mapping[str, Measurement], otherwise: Otherwise) -> Side:
    if otherwise.baseline_of is None:
        return side
    return replace(side, entry=otherwise.baseline_of(measurements[side.record]))
