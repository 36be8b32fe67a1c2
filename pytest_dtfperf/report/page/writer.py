"""`report.html`, written into a session's folder."""

from collections.abc import Iterable

from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.page import html, logs
from pytest_dtfperf.report.page.build import PageInput, make_page
from pytest_dtfperf.report.page.view import Page
from pytest_dtfperf.report.results import SessionResults

PAGE_FILE = "report.html"
_BESIDE = ("session.json", "measurements.jsonl", "measurements.csv", "figures/*.svg")


def write_page(folder: SessionFolder, results: SessionResults) -> list[str]:
    """Returns what there is to say about it.

    No session ends badly for its page: whatever keeps it from being made is said in one line.
    """
    if not results.records:
        return []
    try:
        text = render_page(make_page(load_page_input(folder, results)))
    except Exception as exc:  # what a record may hold of other versions and of hosts has no end, and the table must be shown
        return [f"No {PAGE_FILE}: {type(exc).__name__}: {exc}"]
    return [f"Report: {folder.path / PAGE_FILE}"] if folder.write(PAGE_FILE, text.encode(errors="replace")) else []


def load_page_input(folder: SessionFolder, results: SessionResults) -> PageInput:
    """What the page is made of, read from the folder."""
    records = results.records
    failed = dict.fromkeys(record.test for record in records if _has_failed(record))
    return PageInput(
        session=folder.session,
        path=f"{folder.path.parent.name}/{folder.id}",  # from where the session was started, as in Markdown
        results=results,
        logs=logs.read_tails(folder, failed),
        without_measurement=logs.find_tests_without_measurement(folder, {record.test for record in records}),
        files=_list_files_beside(folder),
    )


def _has_failed(record: Record) -> bool:
    return record.verdict is not None and record.verdict.row.outcome in ("fail", "error")


def _list_files_beside(folder: SessionFolder) -> list[str]:
    found: Iterable[str] = (path.relative_to(folder.path).as_posix() for name in _BESIDE for path in folder.path.glob(name))
    return sorted(found)


def render_page(shown: Page, root: str | None = None) -> str:
    """`root`: as a page of a site."""
    return html.render_template("page.html", scripts=("script.js",), root=root, page=shown)
