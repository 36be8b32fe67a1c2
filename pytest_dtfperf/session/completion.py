"""The last steps of a session with measurements: baselines are accepted, its folder is completed, exports are written."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pytest_dtfperf.baselines.accept import Acceptance, Candidate, accept, refusal
from pytest_dtfperf.baselines.entry import Provenance
from pytest_dtfperf.baselines.verdict import Judgement
from pytest_dtfperf.compare.record import ComparisonRecord
from pytest_dtfperf.history.enter import HistoryEntry
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.report import session_exports
from pytest_dtfperf.report.series import PublishedPoint, find_published_rates
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.session.context import SessionContext, commit_of, versions
from pytest_dtfperf.session.experiment import Judged
from pytest_dtfperf.session.settings import Settings


def will_accept(judged: Judged, settings: Settings) -> bool:
    """Return whether the session makes this measurement the new baseline, so that no finding is left."""
    judgement, wanted = judged.judgement, settings.update_baselines
    verdict = judgement.verdict
    if judged.check.kind != "baseline" or wanted is None or not (verdict.needs_reason or verdict.lacks_baseline):
        return False
    return refusal(judgement, judged.record.measurement, wanted, settings.allow_regression) is None


def accept_records(session: SessionContext, records: Sequence[Record], root: Path) -> Acceptance | None:
    """Make baselines of records that were compared with one, or found none; the last measurement of a spec counts.

    Args:
        root: A folder of the repository that the entries' commit is read from.

    Returns:
        None if the settings accept nothing.
    """
    settings = session.settings
    if settings.update_baselines is None:
        return None
    commit, started = commit_of(root), session.folder.session["started"]
    judged = [(record, record.verdict) for record in records if record.verdict]
    compared = [each for each in judged if any(check.kind == "baseline" for check in each[0].checks)]
    latest = {record.spec.key: (record, verdict) for record, verdict in compared}
    known = versions(session.packages)
    candidates = [
        Candidate(
            record.measurement,
            Judgement(verdict, record.reason or "", change=record.baseline.change if record.baseline else None),
            Provenance(session=session.id, test=record.test, date=started, versions=known, commit=commit),
        )
        for record, verdict in latest.values()
    ]
    acceptance = accept(session.store, candidates, mode=settings.update_baselines, reason=settings.allow_regression)
    written = {change.new.key for change in acceptance.changes}
    session.folder.accept([record.id for key, (record, _) in latest.items() if key in written])
    return acceptance


class Completion:
    """The last steps, to be called in the order of the methods. Each is made, even if those before it have failed.

    `guard` is entered around each step: it keeps a `DtfPerfError` or an `OSError` of the step. `root` is a folder of
    the repository whose commit is recorded, `began_s` the session's start by time.monotonic().
    """

    def __init__(
        self, session: SessionContext, root: Path, began_s: float, guard: Callable[[], AbstractContextManager[object]]
    ) -> None:
        self._session = session
        self._root = root
        self._began_s = began_s
        self._guard = guard
        self.acceptance: Acceptance | None = None
        self.remembered = HistoryEntry()
        self.published: Sequence[PublishedPoint] = ()
        self.remarks: list[str] = []  # messages about exports
        self.records: Sequence[Record] = session.folder.latest()
        with guard():
            self.records = session.folder.measurements()

    def accept(self) -> None:
        """Accept measurements as baselines if the settings require it."""
        with self._guard():
            self.acceptance = accept_records(self._session, self.records, self._root)
            self.records = self._session.folder.measurements() if self.acceptance else self.records

    def finish(self, exit_code: int, verdicts: Mapping[str, int] | None = None) -> None:
        """Record how the session ended, here and in the history; `verdicts` replaces those of the measurements."""
        with self._guard():
            wall_s = time.monotonic() - self._began_s
            commit = commit_of(self._root)
            self._session.folder.finish(exit_code=exit_code, wall_s=wall_s, verdicts=verdicts, commit=commit)
        self.remembered = self._session.remember()

    def export(self, sections: Sequence[tuple[str, Sequence[str]]] = (), comparisons: Sequence[ComparisonRecord] = ()) -> None:
        """Write the exports, with the `sections` of other plugins."""
        with self._guard():
            self.published = find_published_rates(self.records)
        results = SessionResults(self.records, self.published, self.remembered.pasts, sections, comparisons)
        for name in session_exports.EXPORTS:
            with self._guard():
                self.remarks += session_exports.write_export(name, self._session.folder, results)
