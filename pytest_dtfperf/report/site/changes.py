"""Changes of rates, the latest first: views for pages, and feeds in Atom (RFC 4287) and JSON Feed 1.1."""

import json
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from pytest_dtfperf.formats import change, format_count, minute, printable
from pytest_dtfperf.history import events
from pytest_dtfperf.history.events import compute_size
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.report.page.view import Standing
from pytest_dtfperf.report.site import files
from pytest_dtfperf.report.site.overview import get_direction

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
