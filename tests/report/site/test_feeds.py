"""Feeds of changes, read by a feed reader, with stable ids."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.report.site.build import build_site
from tests.report.page.hostile import EVIL
from tests.report.site.made import event, make_history_data, point, series, session

feedparser = pytest.importorskip("feedparser", reason="feedparser is not installed: ci/setup test")
ATOM = "{http://www.w3.org/2005/Atom}"
URL = "https://example.org/perf"


def build_feeds(out: Path, events: list[Row], url: str = URL) -> tuple[Any, Any]:
    """Return both feeds."""
    nights = [session(night) for night in range(9)]
    build_site(make_history_data(nights, [series([point(night) for night in nights])], events), out, results=out, url=url)
    atom, feed = (out / "changes.atom").read_bytes(), json.loads((out / "changes.json").read_text())
    return feedparser.parse(atom), feed


def make_events(**changes: Any) -> list[Row]:
    one = series([point(session(night)) for night in range(9)])
    first = event(1, [one], 3, found=one.points[5]["session"], found_at=one.points[5]["started"])
    return [first, event(2, [one], 6, **changes)]


def test_atom_feed_is_read(tmp_path: Path) -> None:
    """The Atom feed has title, ids, dates, author and full links; the latest change is first."""
    atom, _ = build_feeds(tmp_path, make_events())
    assert not atom.bozo, atom.get("bozo_exception")
    assert atom.version == "atom10"
    assert atom.feed.title == "Performance of distributed training"
    assert [entry.title[:22] for entry in atom.entries] == ["since 7 January 2020: ", "since 4 January 2020: "]
    assert atom.entries[0].link == f"{URL}/changes.html#change-2"
    assert atom.entries[0].updated == atom.feed.updated == "2020-01-09T02:15:00Z"
    assert (
        "-3.0 % (-4.0 % to -2.0 %); also changed: kernel 6.1 -> 6.2: training 0 on cpu-any-2c"
        in atom.entries[0].content[0].value
    )
    assert atom.entries[0].content[0].type == "text/plain"
    assert len({atom.feed.id, *(entry.id for entry in atom.entries)}) == 3
    assert all(entry.id.startswith("urn:uuid:") for entry in atom.entries)


def test_json_feed_equals_the_atom_feed(tmp_path: Path) -> None:
    """The JSON Feed has the entries of the Atom feed, and the keys of its version."""
    atom, feed = build_feeds(tmp_path, make_events())
    assert feed["version"] == "https://jsonfeed.org/version/1.1"
    assert (feed["home_page_url"], feed["feed_url"]) == (f"{URL}/index.html", f"{URL}/changes.json")
    assert [(item["id"], item["title"], item["url"]) for item in feed["items"]] == [
        (entry.id, entry.title, entry.link) for entry in atom.entries
    ]


def test_changed_event_keeps_its_id(tmp_path: Path) -> None:
    """A changed or withdrawn event keeps its id, and its title states the change."""
    before, _ = build_feeds(tmp_path / "1", make_events())
    after, _ = build_feeds(tmp_path / "2", make_events(state="reverted", kind="drift"))
    assert [entry.id for entry in before.entries] == [entry.id for entry in after.entries]
    assert after.entries[0].title.startswith("Withdrawn, the rate came back: ")


def test_feed_without_changes_is_valid(tmp_path: Path) -> None:
    """A feed without changes is valid, with the date of the last session; without an address JSON has no links."""
    atom, feed = build_feeds(tmp_path, [], url="")
    assert not atom.bozo
    assert atom.entries == feed["items"] == []
    assert atom.feed.updated == "2020-01-09T02:15:00Z"
    assert "home_page_url" not in feed


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    """Markup, quotes and control characters are escaped in both feeds, which stay well-formed."""
    nights = [session(night) for night in range(9)]
    evil = series([point(night, label=EVIL, system=EVIL) for night in nights])
    build_site(
        make_history_data(nights, [evil], [event(1, [evil], 3, differences=[EVIL])]),
        tmp_path,
        results=tmp_path,
        url=URL,
        title=EVIL,
    )
    raw = (tmp_path / "changes.atom").read_text()
    assert not feedparser.parse(raw).bozo
    names = {node.tag for node in ET.fromstring(raw).iter()}
    tags = ("feed", "title", "id", "updated", "published", "link", "author", "name", "entry", "content")
    assert names == {f"{ATOM}{tag}" for tag in tags}
    assert not any(sign in raw for sign in "\0\x1b\u202e")
    assert "<script>" in json.loads((tmp_path / "changes.json").read_text())["items"][0]["title"]
