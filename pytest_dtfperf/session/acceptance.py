"""The end of a session: what it measured becomes the new baselines, if its user said so."""

from collections.abc import Sequence
from pathlib import Path

from pytest_dtfperf.baselines.accept import Acceptance, Candidate, accept, refusal
from pytest_dtfperf.baselines.entry import Provenance
from pytest_dtfperf.baselines.verdict import Judgement
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.session.bench import Bench
from pytest_dtfperf.session.commit import commit_of
from pytest_dtfperf.session.experiment import Judged
from pytest_dtfperf.session.settings import Settings
from pytest_dtfperf.session.versions import versions


def will_accept(judged: Judged, settings: Settings) -> bool:
    """Whether the session makes this measurement the new baseline, so that there is nothing left to complain of."""
    judgement, wanted = judged.judgement, settings.update_baselines
    verdict = judgement.verdict
    if judged.check.kind != "baseline" or wanted is None or not (verdict.needs_reason or verdict.lacks_baseline):
        return False
    return refusal(judgement, judged.record.measurement, wanted, settings.allow_regression) is None


def accept_records(bench: Bench, records: Sequence[Record], root: Path) -> Acceptance | None:
    """Make baselines of what was compared with one, or found none. The last of a spec counts. None where nobody asked for it.

    What was held against a threshold alone is none. `root`: whose commit stands in the entries.
    """
    settings = bench.settings
    if settings.update_baselines is None:
        return None
    commit, started = commit_of(root), bench.folder.session["started"]
    judged = [(record, record.verdict) for record in records if record.verdict]
    compared = [each for each in judged if any(check.kind == "baseline" for check in each[0].checks)]
    latest = {record.spec.key: (record, verdict) for record, verdict in compared}
    known = versions(bench.packages)
    candidates = [
        Candidate(
            record.measurement,
            Judgement(verdict, record.reason or "", change=record.baseline.change if record.baseline else None),
            Provenance(session=bench.session_id, test=record.test, date=started, versions=known, commit=commit),
        )
        for record, verdict in latest.values()
    ]
    acceptance = accept(bench.store, candidates, mode=settings.update_baselines, reason=settings.allow_regression)
    written = {change.new.key for change in acceptance.changes}
    bench.folder.accept([record.id for key, (record, _) in latest.items() if key in written])
    return acceptance
