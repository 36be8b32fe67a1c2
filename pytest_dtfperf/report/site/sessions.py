"""The list of sessions, and the page of one: from its folder, or from the history if the folder is gone."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_dtfperf.baselines.verdict import Verdict, sort_by_severity
from pytest_dtfperf.errors import DtfPerfError
from pytest_dtfperf.formats import NONE, duration, format_count, minute
from pytest_dtfperf.history.events import make_measurement_cells
from pytest_dtfperf.history.past import Change, Night, Past, make_disturbed_pasts, make_pasts
from pytest_dtfperf.history.rows import (
    Row,
    compute_content_digest,
    compute_fingerprint_digest,
    is_in_series,
    would_enter_series,
)
from pytest_dtfperf.history.series import ComparabilityCheck
from pytest_dtfperf.history.watching import HistoryData
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import FOLDER_NAME, SessionFolder
from pytest_dtfperf.report.measurement_text import Grid
from pytest_dtfperf.report.page import build, html
from pytest_dtfperf.report.page.build import make_page
from pytest_dtfperf.report.page.html import Fact, Standing
from pytest_dtfperf.report.series import find_published_rates
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.report.site import files

ON_A_PAGE = 500
MOST_ROWS = 2000  # measurements of a session without a folder


@dataclass(frozen=True)
class SessionRow:
    """A session in one line."""

    href: str
    name: str
    started: str
    cluster: str
    verdicts: Sequence[tuple[Standing, int]]
    took: str
    exit_code: str
    commit: str


@dataclass(frozen=True)
class SessionSummary:
    """A session without the data of its folder."""

    title: str
    why: str  # reason for the missing data
    verdicts: Sequence[tuple[Standing, int]]
    facts: Sequence[Fact]
    table: Grid
    left_out: str


def make_session_row(row: Row) -> SessionRow:
    return SessionRow(
        href=files.make_session_page_name(row["id"]),
        name=row["id"],
        started=minute(row["started"]),
        cluster=row["cluster"],
        verdicts=_list_verdicts(row["verdicts"]),
        took=duration(row["wall_s"]) if row["wall_s"] is not None else "not over",
        exit_code=NONE if row["exit_code"] is None else str(row["exit_code"]),
        commit=(row["commit"] or NONE)[:12],
    )


def make_session_summary(row: Row, measured: Sequence[Row], why: str) -> SessionSummary:
    facts = [
        Fact("session", row["id"], is_code=True),
        Fact("command", shlex.join(map(str, row["command"])), is_code=True),
        Fact(
            "took", "it has not ended" if row["wall_s"] is None else f"{duration(row['wall_s'])}, exit code {row['exit_code']}"
        ),
        Fact("software", ", ".join(f"{name} {version}" for name, version in sorted(row["versions"].items()))),
        Fact("commit", row["commit"] or ""),
        Fact("its folder", row["folder"], is_code=True),
    ]
    headings = ("training", "images/sec", "runs", "efficiency", "baseline", "change", "verdict")
    left_out = len(measured) - MOST_ROWS
    return SessionSummary(
        title=f"Performance on {row['cluster']}, {minute(row['started'])} UTC",
        why=why,
        verdicts=_list_verdicts(row["verdicts"]),
        facts=[fact for fact in facts if fact.text],
        table=Grid(headings, [make_measurement_cells(each) for each in measured[:MOST_ROWS]]),
        left_out=f"{format_count(left_out, 'more measurement')}: dtfperf history show {row['id']}" if left_out > 0 else "",
    )


def _list_verdicts(counts: Mapping[str, Any]) -> list[tuple[Standing, int]]:
    """Return the counts, the gravest first; a verdict of another version comes last."""
    known = sorted((Verdict(name) for name in counts if name in Verdict.__members__), key=sort_by_severity)
    strange = sorted(name for name in counts if name not in Verdict.__members__)
    return [(Standing.from_verdict(verdict), counts[verdict]) for verdict in known] + [
        (Standing(name, "none", len(Verdict)), counts[name]) for name in strange
    ]


MOST_BYTES = 900_000  # of a page; a larger one is replaced by a summary that links to the whole page
GONE = "Its folder is not there any more: this is what the history has kept"
ROOT = "../"  # from a session's page to the site's first page


class SessionPages:
    """Makes the pages of sessions one by one."""

    def __init__(
        self, whole: HistoryData, results: Path, changes: Mapping[str, Change], nights: Mapping[str, Sequence[Night]]
    ) -> None:
        self._whole = whole
        self._results = results
        self._changes = changes
        self._nights = nights

    def folder_of(self, row: Row) -> Path | None:
        """Return the folder at its original path, or among the sessions' folders if they were moved."""
        name = row["id"]
        candidates = [Path(row["folder"]), *([self._results / name] if FOLDER_NAME.fullmatch(name) else [])]
        return next((path for path in candidates if path.name == name and _is_there(path)), None)

    def state(self, folder: Path | None) -> object:
        """Return sizes and times of the folder's files, which show changes."""
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

    def list_pasts_of_disturbed(self, row: Row) -> Sequence[Past]:
        """Return the earlier rates of the TAINTED measurements of a session."""
        if Verdict.TAINTED not in row["verdicts"]:
            return ()
        theirs = [each for each in self._whole.measured(row["id"]) if each["verdict"] == Verdict.TAINTED]
        return list(self._find_disturbed_pasts(row["started"], theirs).values())

    def page(self, row: Row, folder: Path | None) -> str:
        """Return the page, made from the folder, or from the history with the reason."""
        if folder is None:
            return self._render_short(row, GONE)
        try:
            text = self._render_whole(row, folder)
        except Exception as exc:  # folders of other versions may cause any error, and one page must not make the site fail
            return self._render_short(
                row, f"Its folder cannot be shown ({type(exc).__name__}: {exc}): this is what the history has kept"
            )
        if len(text.encode(errors="replace")) > MOST_BYTES:
            return self._render_short(row, f"All of it would be too large a page: {folder / build.PAGE_FILE} has it")
        return text

    def _render_whole(self, row: Row, path: Path) -> str:
        folder, records = _load_records(path, row["content"])
        rows = [_make_row(record) for record in records if is_in_series(record)]
        pasts = make_pasts(self._nights.get(row["id"], ()), self._changes, rows)
        pasts |= self._find_disturbed_pasts(row["started"], [_make_row(each) for each in records if would_enter_series(each)])
        given = build.load_page_input(folder, SessionResults(records, find_published_rates(records), pasts))
        return build.render_page(make_page(replace(given, files=())), root=ROOT)

    def _find_disturbed_pasts(self, started: str, rows: Sequence[Row]) -> dict[str, Past]:
        return make_disturbed_pasts(
            rows, started, self._whole.all_series, self._changes, ComparabilityCheck(self._whole.fingerprints)
        )

    def _render_short(self, row: Row, why: str) -> str:
        shown = make_session_summary(row, self._whole.measured(row["id"]), why)
        return html.render_template("session.html", styles=("site.css",), scripts=("site.js",), root=ROOT, session=shown)


def _is_there(path: Path) -> bool:
    try:
        return (path / "session.json").is_file()
    except (OSError, ValueError):  # a name that the file system does not allow
        return False


def _load_records(path: Path, content: str) -> tuple[SessionFolder, Sequence[Record]]:
    """Return the records of a folder, without a schema check (ten times as slow) if they are those that were entered."""
    folder = SessionFolder.open(path)
    try:
        records = replace(folder, is_ours=True).measurements()
        if compute_content_digest(records) == content:
            return folder, records
    except DtfPerfError:
        pass  # the checked way reports the error, or can read it
    return folder, folder.measurements()


def _make_row(record: Record) -> Row:
    measurement = record.measurement
    return {
        "id": record.id,
        "spec_key": record.spec.key,
        "hosts": len(measurement.hosts),
        "fingerprint": compute_fingerprint_digest(measurement),
        "images_per_sec": record.images_per_sec,
    }
