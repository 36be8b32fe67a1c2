"""Judge a session's records again: as they were judged, or more strictly, or against other baselines. Values in, values out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.baselines.checks import ask_again
from pytest_dtfperf.baselines.comparability import is_same_but_for_exchange
from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.records.record import Record, replace_void_checks, replace_void_efficiencies


@dataclass(frozen=True, kw_only=True)
class JudgementChanges:
    """The settings that differ from those of the session. None: the same."""

    margin: float | None = None
    min_efficiency: float | None = None
    baseline_of: Callable[[Measurement], Entry | None] | None = None


def judge_again(
    records: Sequence[Record], changes: JudgementChanges | None = None, on_status: Callable[[str], None] = lambda status: None
) -> list[Record]:
    """Repeat every judgement on the same runs. Records without a check stay as they are.

    So do checks that this version does not allow any more; `on_status` is called with a line for each.

    Raises:
        SessionFileError: a measurement that another was compared with is missing.
    """
    measurements = {record.id: record.measurement for record in records}
    found = [_judge_again(record, measurements, changes or JudgementChanges(), on_status) for record in records]
    return replace_void_efficiencies(replace_void_checks(found))


def _judge_again(
    record: Record, measurements: Mapping[str, Measurement], changes: JudgementChanges, on_status: Callable[[str], None]
) -> Record:
    if not record.checks:
        return record
    by_check = record.verdict in {check.verdict for check in record.checks}
    verdict, reason = (None, None) if by_check else (record.verdict, record.reason)  # INVALID by a later run
    found = replace(record, verdict=verdict, reason=reason, checks=())
    if changes.baseline_of:
        found = replace(found, explanation=None, unexplained="")  # it was of the session's baseline
    for old in record.checks:
        _check_inputs(record, old, measurements)
        try:
            judgement = ask_again(_change_question(old, record, measurements, changes), record.measurement, measurements)
        except UsageError as exc:
            on_status(f"as in the session, because this check is not allowed now: {record.spec.label}: {old.verdict}: {exc}")
            judgement = old
        found = found.with_judgement(judgement)
    return found


def _check_inputs(record: Record, judgement: Judgement, measurements: Mapping[str, Measurement]) -> None:
    if judgement.other is not None and judgement.other not in measurements:
        raise SessionFileError(f"{_name_record(record)} was compared with {judgement.other!r}, which is not in the session")
    other = measurements[judgement.other] if judgement.other is not None else record.measurement
    for measurement, entry in ((record.measurement, judgement.entry), (other, judgement.other_entry)):
        if entry and not is_same_but_for_exchange(entry.key, measurement.spec.key):
            raise SessionFileError(f"{_name_record(record)} was compared with a baseline of another training, {entry.key!r}")


def _name_record(record: Record) -> str:
    return f"the measurement {record.id!r} ({record.spec.label!r})"


def _change_question(
    judgement: Judgement, record: Record, measurements: Mapping[str, Measurement], changes: JudgementChanges
) -> Judgement:
    terms = judgement.terms
    assert terms
    if changes.margin is not None:
        terms = replace(terms, margin=changes.margin)
    if changes.min_efficiency is not None and judgement.kind == "efficiency":
        terms = replace(terms, threshold=changes.min_efficiency)
    changed = replace(judgement, terms=terms)
    if changes.baseline_of is None:
        return changed
    other = changes.baseline_of(measurements[judgement.other]) if judgement.other is not None else None
    return replace(changed, entry=changes.baseline_of(record.measurement), other_entry=other)
