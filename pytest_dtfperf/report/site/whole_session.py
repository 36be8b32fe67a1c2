"""The page of one session: what its folder says, where that is still there; else what the history has kept of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.history.past import Change, Night, Past, pasts_of, pasts_of_disturbed
from pytest_dtfperf.history.rows import Row, content_digest, digest_of, enters_series, would_enter_series
from pytest_dtfperf.history.series import Comparable
from pytest_dtfperf.history.whole import Whole
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import FOLDER_NAME, SessionFolder
from pytest_dtfperf.report.page import html, writer
from pytest_dtfperf.report.page.build import make_page
from pytest_dtfperf.report.published import find_published_rates
from pytest_dtfperf.report.results import SessionResults
from pytest_dtfperf.report.site import sessions

MOST_BYTES = 900_000  # of a page; a larger one is told in short, with the way to the whole one
GONE = "Its folder is not there any more: this is what the history has kept"
ROOT = "../"  # from a session's page to the site's first


class SessionPages:
    """Makes them one by one."""

    def __init__(
        self, whole: Whole, results: Path, changes: Mapping[str, Change], nights: Mapping[str, Sequence[Night]]
    ) -> None:
        self._whole = whole
        self._results = results
        self._changes = changes
        self._nights = nights

    def folder_of(self, row: Row) -> Path | None:
        """Where it was when it was entered, or among the sessions' folders: they may have been moved together."""
        name = row["id"]
        candidates = [Path(row["folder"]), *([self._results / name] if FOLDER_NAME.fullmatch(name) else [])]
        return next((path for path in candidates if path.name == name and _is_there(path)), None)

    def state(self, folder: Path | None) -> object:
        """By which it is told whether anything in the folder was changed since: sizes and times of its files."""
        if folder is None:
            return None
        found = []
        for name in ("session.json", "measurements.jsonl"):
            try:
                stat = (folder / name).stat()
                found.append([stat.st_size, stat.st_mtime_ns])
            except OSError:
                found.append([])
        return [str(folder), found]

    def pasts_of_disturbed(self, row: Row) -> Sequence[Past]:
        """What its page shows of earlier sessions beside nights of its own: of measurements that were TAINTED."""
        if Verdict.TAINTED not in row["verdicts"]:
            return ()
        theirs = [each for each in self._whole.measured(row["id"]) if each["verdict"] == Verdict.TAINTED]
        return list(self._disturbed(row["started"], theirs).values())

    def page(self, row: Row, folder: Path | None) -> str:
        """What cannot be made of the folder is made of the history, and says why."""
        if folder is None:
            return self._short(row, GONE)
        try:
            text = self._whole_page(row, folder)
        except Exception as exc:  # what a folder may hold of other versions has no end, and one page must not cost the site
            return self._short(
                row, f"Its folder cannot be shown ({type(exc).__name__}: {exc}): this is what the history has kept"
            )
        if len(text.encode(errors="replace")) > MOST_BYTES:
            return self._short(row, f"All of it would be too large a page: {folder / writer.PAGE_FILE} has it")
        return text

    def _whole_page(self, row: Row, path: Path) -> str:
        folder, records = _load_records(path, row["content"])
        rows = [_make_row(record) for record in records if enters_series(record)]
        pasts = pasts_of(self._nights.get(row["id"], ()), self._changes, rows)
        pasts |= self._disturbed(row["started"], [_make_row(each) for each in records if would_enter_series(each)])
        given = writer.load_page_input(folder, SessionResults(records, find_published_rates(records), pasts))
        return writer.render_page(make_page(replace(given, files=())), root=ROOT)

    def _disturbed(self, started: str, rows: Sequence[Row]) -> dict[str, Past]:
        return pasts_of_disturbed(rows, started, self._whole.all_series, self._changes, Comparable(self._whole.fingerprints))

    def _short(self, row: Row, why: str) -> str:
        shown = sessions.make_session_summary(row, self._whole.measured(row["id"]), why)
        return html.render_template("session.html", styles=("site.css",), scripts=("site.js",), root=ROOT, session=shown)


def _is_there(path: Path) -> bool:
    try:
        return (path / "session.json").is_file()
    except (OSError, ValueError):  # a name that no file system takes
        return False


def _load_records(path: Path, content: str) -> tuple[SessionFolder, Sequence[Record]]:
    """Records that are what was entered were checked then, and need no schema again, which takes ten times as long."""
    folder = SessionFolder.open(path)
    try:
        records = replace(folder, is_ours=True).measurements()
        if content_digest(records) == content:
            return folder, records
    except DtfPerfError:
        pass  # the checked way says it better, or can read it
    return folder, folder.measurements()


def _make_row(record: Record) -> Row:
    measurement = record.measurement
    return {
        "id": record.id,
        "spec_key": record.spec.key,
        "hosts": len(measurement.hosts),
        "fingerprint": digest_of(measurement),
        "images_per_sec": record.images_per_sec,
    }
