"""Changes as feeds, for readers of news: Atom (RFC 4287) and JSON Feed 1.1 (https://jsonfeed.org/version/1.1). Pure."""

import json
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from pytest_dtfperf.history import words
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.printable import printable
from pytest_dtfperf.report.site import names

MAX_ENTRIES = 50  # entries, the latest
AUTHOR = "pytest-dtfperf"
_ATOM = "http://www.w3.org/2005/Atom"
_SPACE = uuid.UUID("5d2a1c53-1b0e-4b06-9d7c-0a3f6d3cf9f4")  # of names of events; drawn once, and never to be changed


@dataclass(frozen=True)
class FeedEntry:
    """An event as news."""

    id: str
    title: str
    text: str
    link: str  # page and anchor, from the site's first page
    published: str  # RFC 3339


def make_feed_entries(events: Sequence[Row], pages: Sequence[str]) -> list[FeedEntry]:
    """`pages`: of each event. Those found last come first; what was withdrawn stays, and says so."""
    numbers: Counter[str] = Counter()
    found = []
    for event, page in zip(events, pages, strict=True):
        numbers[event["found"]] += 1
        found.append(_make_entry(event, page, numbers[event["found"]]))
    return sorted(found, key=lambda entry: entry.published, reverse=True)[:MAX_ENTRIES]


def _make_entry(event: Row, page: str, number: int) -> FeedEntry:
    """It keeps its id when its size becomes known better: by the session that confirmed it, and its number there."""
    line = words.line_of(event)
    withdrawn = "" if event["state"] == "confirmed" else "Withdrawn, the rate came back: "
    members = [
        f"{words.line_of_member(event, member)}: {member['label']} on {member['system']}" for member in event["members"][:20]
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
    """`url`: where the site is, with a slash at its end, or nothing: then links are relative. `updated`: where no entry is."""
    ET.register_namespace("", _ATOM)
    feed = ET.Element(f"{{{_ATOM}}}feed")
    _add_element(feed, "title", title)
    _add_element(feed, "id", uuid.uuid5(_SPACE, url or title).urn)
    _add_element(feed, "updated", found[0].published if found else _format_time(updated))
    ET.SubElement(feed, f"{{{_ATOM}}}link", rel="alternate", type="text/html", href=f"{url}index.html")
    ET.SubElement(feed, f"{{{_ATOM}}}link", rel="self", type="application/atom+xml", href=f"{url}{names.ATOM}")
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
    """Links are left out where the site's address is not known: there they must be whole."""
    items = [
        {"id": each.id, "title": each.title, "content_text": each.text, "date_published": each.published}
        | ({"url": f"{url}{each.link}"} if url else {})
        for each in found
    ]
    feed = {"version": "https://jsonfeed.org/version/1.1", "title": title, "authors": [{"name": AUTHOR}], "items": items}
    links = {"home_page_url": f"{url}index.html", "feed_url": f"{url}{names.JSON}"} if url else {}
    return json.dumps(feed | links, indent=1, ensure_ascii=False) + "\n"
