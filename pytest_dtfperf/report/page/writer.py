"""`report.html`, written into a session's folder."""

from collections.abc import Iterable

from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.page import html, logs
from pytest_dtfperf.report.page.build import Given, page
from pytest_dtfperf.report.page.view import Page
from pytest_dtfperf.report.results import Results

NAME = "report.html"
_BESIDE = ("session.json", "measurements.jsonl", "measurements.csv", "figures/*.svg")


def write(folder: SessionFolder, results: Results) -> list[str]:
    """Returns what there is to say about it.

    No session ends badly for its page: whatever keeps it from being made is said in one line.
    """
    if not results.records:
        return []
    try:
        text = rendered(page(given(folder, results)))
    except Exception as exc:  # what a record may hold of other versions and of hosts has no end, and the table must be shown
        return [f"No {NAME}: {type(exc).__name__}: {exc}"]
    return [f"Report: {folder.path / NAME}"] if folder.write(NAME, text.encode(errors="replace")) else []


def given(folder: SessionFolder, results: Results) -> Given:
    """What the page is made of, read from the folder."""
    records = results.records
    failed = dict.fromkeys(record.test for record in records if _has_failed(record))
    return Given(
        session=folder.session,
        path=f"{folder.path.parent.name}/{folder.id}",  # from where the session was started, as in Markdown
        results=results,
        logs=logs.tails(folder, failed),
        without_measurement=logs.without_measurement(folder, {record.test for record in records}),
        files=_beside(folder),
    )


def _has_failed(record: Record) -> bool:
    return record.verdict is not None and record.verdict.row.outcome in ("fail", "error")


def _beside(folder: SessionFolder) -> list[str]:
    found: Iterable[str] = (path.relative_to(folder.path).as_posix() for name in _BESIDE for path in folder.path.glob(name))
    return sorted(found)


def rendered(shown: Page, root: str | None = None) -> str:
    """`root`: as a page of a site."""
    return html.rendered("page.html", scripts=("script.js",), root=root, page=shown)
