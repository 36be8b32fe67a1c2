"""Build a site of a history. A page is rendered only if its data have changed."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from typing import Any, TypeVar

from pytest_dtfperf.formats import printable
from pytest_dtfperf.history.events import format_promise
from pytest_dtfperf.history.past import Change, find_last_changes, make_past, map_nights
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.history.watching import HistoryData
from pytest_dtfperf.report.page import html
from pytest_dtfperf.report.site import files, overview, sessions, training
from pytest_dtfperf.report.site.files import SiteBuildResult, SiteFolder
from pytest_dtfperf.report.site.sessions import SessionPages

T = TypeVar("T")
STYLES = ("site.css",)
RECENT = timedelta(days=90)  # before the last session: the first page shows changes since then
MAX_RECENT = 10
TITLE = "Performance of distributed training"
BEGAN = "1970-01-01T00:00:00+00:00"  # when a history without sessions was last changed


def build_site(whole: HistoryData, out: Path, *, results: Path, url: str = "", title: str = TITLE) -> SiteBuildResult:
    """Update the site in the folder `out`. `results`: another place of session folders; `url`: the address of the site.

    Raises `UsageError` for a folder that is no site's or cannot be written.
    """
    return _SiteBuild(whole, SiteFolder(out), results, f"{url.rstrip('/')}/" if url else "", printable(title)).write_all()


class _SiteBuild:
    def __init__(self, whole: HistoryData, folder: SiteFolder, results: Path, url: str, title: str) -> None:
        self._whole = whole
        self._folder = folder
        self._results = results
        self._url = url
        self._title = title
        self._changes = find_last_changes(whole.events)
        self._pages = {s.name: f"{_make_page_name(s)}#{s.name}" for s in whole.all_series}
        self._names = {row["id"] for row in whole.sessions}
        self._promise = format_promise(dict(whole.promise), is_known=whole.is_noise_known)

    def write_all(self) -> SiteBuildResult:
        self._overview()
        self._trainings()
        self._write_sessions()
        self._events()
        return self._folder.finish()

    def _page(self, name: str, template: str, data: object, **shown: Any) -> None:
        """Write a page if its data have changed. Costly arguments are functions."""
        root = files.make_root_path(name)

        def make() -> str:
            made = {key: value() if callable(value) else value for key, value in shown.items()}
            return html.render_template(template, styles=STYLES, scripts=("site.js",), root=root, site=self._title, **made)

        self._folder.page(name, [compute_version_digest(), self._title, data], make)

    def _overview(self) -> None:
        found = overview.group_by_system(self._whole.all_series)
        systems = overview.make_systems(found, self._changes)
        recent = [overview.make_event_view(event, self._pages, self._names) for event in self._list_recent()]
        pages = self._event_pages()
        shown = {"systems": systems, "recent": recent, "pages": pages, "promise": self._promise, "sessions": len(self._names)}
        self._page("index.html", "overview.html", shown, **shown)
        for name, all_of_it in found.items():
            if len(all_of_it) == len(next(system.rows for system in systems if system.name == name)):
                continue
            ordered = sorted(all_of_it, key=lambda series: series.label)
            for number, last, some in _split_into_pages(ordered, overview.MAX_ROWS):
                page = files.make_page_name(files.make_system_page_prefix(name), number)
                one = overview.make_system(name, ordered, some, self._changes)
                begin = files.make_system_page_prefix(name).partition("/")[2]
                shown = {"system": one, "number": number, "last": last, "begin": begin}
                self._page(page, "system.html", shown, **shown)

    def _list_recent(self) -> list[Row]:
        """Return the changes of the 90 days before the last session, the latest first. By the clock, pages would change."""
        if not self._whole.sessions:
            return []
        least = (datetime.fromisoformat(self._whole.sessions[-1]["started"]) - RECENT).isoformat()
        found = [e for e in self._whole.events if e["state"] == "confirmed" and e["first_bad_at"] >= least]
        return sorted(found, key=lambda event: event["first_bad_at"], reverse=True)[:MAX_RECENT]

    def _trainings(self) -> None:
        by_page: dict[str, list[Series]] = defaultdict(list)
        for series in self._whole.all_series:
            by_page[_make_page_name(series)].append(series)
        events = self._events_by_series()
        contents = self._whole.fingerprints
        for name, found in by_page.items():
            theirs = {series.name: events.get(series.name, []) for series in found}
            kinds = {
                point["fingerprint"]: contents[point["fingerprint"]].to_json() for series in found for point in series.points
            }
            data = [[(series.name, series.label, series.points) for series in found], theirs, kinds]
            self._page(name, "training.html", data, training=_defer(training.make_training_view, found, theirs, contents))

    def _events_by_series(self) -> dict[str, list[Change]]:
        found: dict[str, list[Change]] = defaultdict(list)
        for event in sorted(self._whole.events, key=lambda event: event["first_bad_at"]):
            if event["state"] == "confirmed":
                event_text = {
                    key: event[key] for key in ("first_bad_at", "differences", "kind")
                }  # not all its members with each of them
                for member in event["members"]:
                    found[member["series"]].append((event_text, member))
        return found

    def _write_sessions(self) -> None:
        latest_first = self._whole.sessions[::-1]
        for number, last, some in _split_into_pages(latest_first, sessions.ON_A_PAGE):
            rows = [sessions.make_session_row(row) for row in some]
            shown = {"rows": rows, "number": number, "last": last, "begin": files.SESSIONS, "count": len(latest_first)}
            self._page(files.make_page_name(files.SESSIONS, number), "sessions.html", shown, **shown)
        nights = map_nights(self._whole.all_series)
        maker = SessionPages(self._whole, self._results, self._changes, nights)
        for row in self._whole.sessions:
            name = files.make_session_page_name(row["id"])
            folder = maker.folder_of(row)
            pasts = [make_past(series, number, self._changes) for series, number in nights.get(row["id"], ())]
            pasts += maker.list_pasts_of_disturbed(row)
            kept = {key: value for key, value in row.items() if key != "watched"}
            data = [compute_version_digest(), self._title, kept, [vars(past) for past in pasts], maker.state(folder)]
            self._folder.page(name, data, _defer(maker.page, row, folder))

    def _events(self) -> None:
        pages = self._event_pages()
        found = self._whole.events
        for number, last, some in _split_into_pages(found[::-1], overview.ON_A_PAGE):
            views = [overview.make_event_view(event, self._pages, self._names) for event in some]
            shown = {"events": views, "number": number, "last": last, "begin": files.CHANGES, "promise": self._promise}
            self._page(files.make_page_name(files.CHANGES, number), "changes.html", shown, **shown)
        links = [f"{pages[overview.make_event_anchor(event)]}#{overview.make_event_anchor(event)}" for event in found]
        entries = overview.make_feed_entries(found, links)
        updated = self._whole.sessions[-1]["started"] if self._whole.sessions else BEGAN
        sources = [
            compute_version_digest(),
            self._title,
            self._url,
            [asdict(entry) for entry in entries],
            "" if entries else updated,
        ]
        self._folder.page(
            files.ATOM, sources, lambda: overview.format_atom(entries, title=self._title, url=self._url, updated=updated)
        )
        self._folder.page(files.JSON, sources, lambda: overview.format_json_feed(entries, title=self._title, url=self._url))

    def _event_pages(self) -> dict[str, str]:
        """Return the page of each event, by its anchor."""
        found = _split_into_pages(self._whole.events[::-1], overview.ON_A_PAGE)
        return {
            overview.make_event_anchor(event): files.make_page_name(files.CHANGES, number)
            for number, _, some in found
            for event in some
        }


def _make_page_name(series: Series) -> str:
    return files.make_training_page_name(series.spec_key, series.points[-1]["model"])


def _split_into_pages(found: Sequence[T], size: int) -> list[tuple[int, int, Sequence[T]]]:
    """Return (number from 1, number of pages, items of the page), at least one page."""
    last = max(1, -(-len(found) // size))
    return [(number + 1, last, found[number * size : (number + 1) * size]) for number in range(last)]


def _defer(function: Any, *arguments: Any) -> Any:
    return lambda: function(*arguments)


@cache
def compute_version_digest() -> str:
    """Return a digest of this version's code and templates, on which all pages depend."""
    digest = hashlib.sha256(metadata.version("pytest-dtfperf").encode())
    for folder in ("page", "site", "page/templates", "site/templates"):
        for file in sorted(resources.files("pytest_dtfperf.report").joinpath(folder).iterdir(), key=lambda each: each.name):
            if file.is_file():
                digest.update(file.read_bytes())
    return digest.hexdigest()
