"""`report.html`, written into a session's folder."""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from importlib import resources

from jinja2 import DictLoader, Environment, StrictUndefined, Template
from markupsafe import Markup

from pytest_dtfperf.printable import printable
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.page import logs
from pytest_dtfperf.report.page.build import Given, page
from pytest_dtfperf.report.page.view import Page
from pytest_dtfperf.report.results import Results

NAME = "report.html"
TEMPLATES = ("parts.html", "card.html", "page.html")  # the last is the whole
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


def rendered(shown: Page) -> str:
    script = _text("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template().render(
        page=shown, style=Markup(_text("style.css")), script=Markup(script), digest=digest
    )  # fmt: skip


@cache
def template() -> Template:
    """Compiled, with those that it rests on."""
    environment = Environment(
        loader=DictLoader({name: _text(name) for name in TEMPLATES}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    return [environment.get_template(name) for name in TEMPLATES][-1]


def _shown(value: object) -> object:
    """Whatever a template puts out: nothing that a browser obeys and a reader does not see."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _text(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")
