"""Strings of a history are text on the pages of its site."""

from pathlib import Path

from pytest_dtfperf.report.site.build import build_site
from tests.report.page.hostile import EVIL
from tests.report.page.test_html import HTML, parse_html
from tests.report.site.hostile import SCHEME, make_harmless_history, make_hostile_history

SHOWN = EVIL.replace("\0", "\\x00").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")


def test_hostile_names_are_text(tmp_path: Path) -> None:
    """Hostile names make no new element, attribute, link or file, and are readable."""
    build_site(make_harmless_history(), tmp_path / "harmless", results=tmp_path)
    out = tmp_path / "site" / "hostile"
    build_site(make_hostile_history(), out, results=tmp_path, title=EVIL)
    known = {
        (node.tag, *sorted(node.keys()))
        for path in (tmp_path / "harmless").rglob("*.html")
        for node in parse_html(path.read_text()).iter()
    }
    pages = list(out.rglob("*.html"))
    assert len(pages) == 3 + 1 + 9
    for path in pages:
        text = path.read_text(encoding="utf-8")
        page = parse_html(text)
        assert {(node.tag, *sorted(node.keys())) for node in page.iter()} - known == set(), path
        assert len(list(page.iter(f"{HTML}script"))) == 1
        assert [node.get("href") for node in page.iter() if SCHEME[:11] in (node.get("href") or "")] == []
        assert not any(sign in text for sign in "\0\x1b\u202e")
        assert SHOWN in "".join(page.itertext())
    assert [path for path in tmp_path.iterdir() if path.name not in ("harmless", "site")] == []
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["hostile"]
