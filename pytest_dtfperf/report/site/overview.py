"""The systems of a history with the latest rates of their trainings, and the changes of rates.

Changes are views for pages, and feeds in Atom (RFC 4287) and JSON Feed 1.1, the latest first.
"""

import json
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from markupsafe import Markup

from pytest_dtfperf.formats import change, format_count, minute, printable, rate
from pytest_dtfperf.history import events
from pytest_dtfperf.history.events import compute_size
from pytest_dtfperf.history.past import Change, make_past
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.report.page import html
from pytest_dtfperf.report.page.html import Standing
from pytest_dtfperf.report.site import files

MAX_ROWS = 400  # on a page, of about a kilobyte each


@dataclass(frozen=True)
class SeriesRow:
    """A series in one line."""

    href: str  # relative to the site's first page
    label: str
    hosts: int
    rate: str
    rate_value: float
    nights: int
    drawing: Markup | None
    direction: Standing | None  # of its last change; None: there is none
    change: str
    measured: str  # time of its last measurement


@dataclass(frozen=True)
class System:
    """A kind of hardware, with some of its series or all."""

    name: str
    summary: str
    rows: Sequence[SeriesRow]
    more: str  # page with all of them; empty if these are all


SLOWER, FASTER = Standing("slower", "fail", 0), Standing("faster", "pass", 1)


def get_direction(change: float) -> Standing:
    return SLOWER if change < 0 else FASTER


def group_by_system(all_series: Iterable[Series]) -> dict[str, list[Series]]:
    """Return the series of each system; the system with the latest measurement comes first."""
    found: dict[str, list[Series]] = defaultdict(list)
    for series in sorted(all_series, key=_get_latest_time, reverse=True):
        found[series.system].append(series)
    return dict(found)


def _get_latest_time(series: Series) -> str:
    started: str = series.points[-1]["started"]
    return started


def make_systems(found: Mapping[str, Sequence[Series]], changes: Mapping[str, Change]) -> list[System]:
    """Return each system for the first page, with as many series as fit: changed ones and the latest first."""
    room = max(1, MAX_ROWS // max(1, len(found)))
    return [
        make_system(name, all_of_it, _select_first(all_of_it, changes)[:room], changes) for name, all_of_it in found.items()
    ]


def _select_first(series: Sequence[Series], changes: Mapping[str, Change]) -> list[Series]:
    """Return series that are still measured before the others, each group by label."""
    latest = max(map(_get_latest_time, series))
    return sorted(series, key=lambda each: (_get_latest_time(each) < latest, each.name not in changes, each.label))


def make_system(name: str, all_of_it: Sequence[Series], shown: Sequence[Series], changes: Mapping[str, Change]) -> System:
    latest = max(map(_get_latest_time, all_of_it))
    message = f"{format_count(len(all_of_it), 'series', '')}, last measured {minute(latest)} UTC"
    if len(shown) < len(all_of_it):
        message += f"; {len(shown)} of them here"
    more = files.make_page_name(files.make_system_page_prefix(name), 1) if len(shown) < len(all_of_it) else ""
    return System(name, message, [make_series_row(each, changes) for each in shown], more)


def make_series_row(series: Series, changes: Mapping[str, Change]) -> SeriesRow:
    last = series.points[-1]
    past = make_past(series, len(series.points) - 1, changes)
    began = next((i for i, (started, _) in enumerate(past.points) if started >= past.began), None) if past.began else None
    found = changes.get(series.name)
    return SeriesRow(
        href=f"{files.make_training_page_name(series.spec_key, last['model'])}#{series.name}",
        label=series.label,
        hosts=series.hosts,
        rate=rate(last["images_per_sec"]),
        rate_value=last["images_per_sec"],
        nights=len(series.points),
        drawing=html.draw_trend(past.points, None, began) if len(past.points) > 1 else None,
        direction=get_direction(found[1]["change"]) if found else None,
        change=past.change,
        measured=minute(last["started"]),
    )


MAX_MEMBERS = 50  # of an event
ON_A_PAGE = 50  # events
WITHDRAWN = Standing("withdrawn", "none", 9)


@dataclass(frozen=True)
class EventMember:
    """A series that changed."""

    href: str  # relative to the site's first page; empty if the history has its training no more
    label: str
    system: str
    change: str
    interval: str


@dataclass(frozen=True)
class SessionLink:
    """A session of an event."""

    name: str
    href: str  # empty if the history has it no more
    started: str


@dataclass(frozen=True)
class EventView:
    """A change of one series or many."""

    anchor: str
    direction: Standing
    summary: str
    kind: str
    last_good: SessionLink
    first_bad: SessionLink
    confirmed: SessionLink
    differences: Sequence[str]
    members: Sequence[EventMember]
    left_out: str


def make_event_view(event: Row, pages: Mapping[str, str], sessions: Collection[str]) -> EventView:
    """Return the view of an event. `pages`: page by series; `sessions`: ids of sessions with a page."""
    is_withdrawn = event["state"] != "confirmed"
    left_out = len(event["members"]) - MAX_MEMBERS
    return EventView(
        anchor=make_event_anchor(event),
        direction=WITHDRAWN if is_withdrawn else get_direction(compute_size(event)[1]),
        summary=events.format_event(event),
        kind=event["kind"] + (": no change after all, the rate came back" if is_withdrawn else ""),
        last_good=_make_session_link(event["last_good"], event["last_good_at"], sessions),
        first_bad=_make_session_link(event["first_bad"], event["first_bad_at"], sessions),
        confirmed=_make_session_link(event["found"], event["found_at"], sessions),
        differences=event["differences"],
        members=[_make_member(member, pages) for member in event["members"][:MAX_MEMBERS]],
        left_out=f"{format_count(left_out, 'more series', '')}" if left_out > 0 else "",
    )


def make_event_anchor(event: Row) -> str:
    """Return the anchor of an event. Its number is that of `dtfperf history changes`."""
    return f"change-{event['id']}"


def _make_member(member: Row, pages: Mapping[str, str]) -> EventMember:
    return EventMember(
        href=pages.get(member["series"], ""),
        label=member["label"],
        system=member["system"],
        change=change(member["change"]),
        interval=f"{change(member['low'])} to {change(member['high'])}",
    )


def _make_session_link(name: str, started: str, sessions: Collection[str]) -> SessionLink:
    return SessionLink(name, files.make_session_page_name(name) if name in sessions else "", minute(started))


MAX_ENTRIES = 50  # entries, the latest
AUTHOR = "pytest-dtfperf"
_ATOM = "http://www.w3.org/2005/Atom"
_SPACE = uuid.UUID("5d2a1c53-1b0e-4b06-9d7c-0a3f6d3cf9f4")  # of names of events; random, and must not change


@dataclass(frozen=True)
class FeedEntry:
    """An event as news."""

    id: str
    title: str
    text: str
    link: str  # page and anchor, relative to the site's first page
    published: str  # RFC 3339


def make_feed_entries(events: Sequence[Row], pages: Sequence[str]) -> list[FeedEntry]:
    """Return the entries, the latest first; withdrawn ones are marked. `pages`: the page of each event."""
    numbers: Counter[str] = Counter()
    found = []
    for event, page in zip(events, pages, strict=True):
        numbers[event["found"]] += 1
        found.append(_make_entry(event, page, numbers[event["found"]]))
    return sorted(found, key=lambda entry: entry.published, reverse=True)[:MAX_ENTRIES]


def _make_entry(event: Row, page: str, number: int) -> FeedEntry:
    """Return an entry. Its id is made of the confirming session and a number, so that it stays if the size is refined."""
    line = events.format_event(event)
    withdrawn = "" if event["state"] == "confirmed" else "Withdrawn, the rate came back: "
    members = [
        f"{events.format_member(event, member)}: {member['label']} on {member['system']}" for member in event["members"][:20]
    ]
    sessions = f"Last session before it: {event['last_good']}. First session with it: {event['first_bad']}."
    return FeedEntry(
        id=uuid.uuid5(_SPACE, f"{event['found']} {number}").urn,
        title=printable(f"{withdrawn}{line}"),
        text="\n".join(map(printable, [sessions, *members])),
        link=page,
        published=_format_time(event["found_at"]),
    )


def _format_time(started: str) -> str:
    return datetime.fromisoformat(started).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_atom(found: Sequence[FeedEntry], *, title: str, url: str, updated: str) -> str:
    """Return the Atom feed. `url`: of the site, ending in a slash, or "" for relative links."""
    ET.register_namespace("", _ATOM)
    feed = ET.Element(f"{{{_ATOM}}}feed")
    _add_element(feed, "title", title)
    _add_element(feed, "id", uuid.uuid5(_SPACE, url or title).urn)
    _add_element(feed, "updated", found[0].published if found else _format_time(updated))
    ET.SubElement(feed, f"{{{_ATOM}}}link", rel="alternate", type="text/html", href=f"{url}index.html")
    ET.SubElement(feed, f"{{{_ATOM}}}link", rel="self", type="application/atom+xml", href=f"{url}{files.ATOM}")
    _add_element(ET.SubElement(feed, f"{{{_ATOM}}}author"), "name", AUTHOR)
    for each in found:
        entry = ET.SubElement(feed, f"{{{_ATOM}}}entry")
        _add_element(entry, "title", each.title)
        _add_element(entry, "id", each.id)
        _add_element(entry, "published", each.published)
        _add_element(entry, "updated", each.published)
        ET.SubElement(entry, f"{{{_ATOM}}}link", rel="alternate", type="text/html", href=f"{url}{each.link}")
        _add_element(entry, "content", each.text).set("type", "text")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(feed, encoding="unicode") + "\n"


def _add_element(parent: ET.Element, name: str, text: str) -> ET.Element:
    child = ET.SubElement(parent, f"{{{_ATOM}}}{name}")
    child.text = text
    return child


def format_json_feed(found: Sequence[FeedEntry], *, title: str, url: str) -> str:
    """Return the JSON feed. It has no links if the address of the site is unknown, as they must be absolute."""
    items = [
        {"id": each.id, "title": each.title, "content_text": each.text, "date_published": each.published}
        | ({"url": f"{url}{each.link}"} if url else {})
        for each in found
    ]
    feed = {"version": "https://jsonfeed.org/version/1.1", "title": title, "authors": [{"name": AUTHOR}], "items": items}
    links = {"home_page_url": f"{url}index.html", "feed_url": f"{url}{files.JSON}"} if url else {}
    return json.dumps(feed | links, indent=1, ensure_ascii=False) + "\n"
