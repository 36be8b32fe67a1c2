"""The site as a browser shows it: Debian's Chromium, the one that tests of a session's page use."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.report.site.build import build_site
from tests.report.page.browser import CONTRASTS, Browser
from tests.report.site.hostile import hostile_whole
from tests.report.site.samples import entered, write_nights

WIDTHS = (400, 900, 1600)
KINDS = ("index.html", "changes.html", "sessions.html", "trainings/*.html", "sessions/*.html")
ZOOMED = "document.querySelector('svg.zoomed').getAttribute('viewBox')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three systems, of which two changed."""
    root: Path = tmp_path_factory.mktemp("history")
    build_site(entered(write_nights(root / "results", 34, each=1), root), root / "site", results=root / "results")
    return root / "site"


def one_of(site: Path, kind: str) -> Path:
    return min(site.glob(kind))


@pytest.mark.campaign
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_screen_shows_it_whole(browser: Browser, site: Path, width: int, theme: str) -> None:
    """From a phone to a wide screen, light and dark: no page overflows, all text has contrast, the console stays empty."""
    for kind in KINDS:
        browser.open(one_of(site, kind), width=width, theme=theme)
        browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, kind
        assert browser.evaluate("innerWidth") == width, kind
        contrasts = browser.evaluate(CONTRASTS)
        assert len(contrasts) > 15, kind
        assert [each for each in contrasts if each[0] < 4.5] == [], kind
        is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)"
        assert is_dark == (theme == "dark"), kind
        assert browser.console == [], kind


def test_without_scripts_nothing_is_missing(browser: Browser, site: Path) -> None:
    """With JavaScript off charts, numbers and changes are there, and no tool stands there that would do nothing."""
    browser.open(one_of(site, "trainings/*.html"), scripts=False)
    assert browser.evaluate("[...document.querySelectorAll('.tools')].filter((each) => each.checkVisibility()).length") == 0
    assert browser.evaluate("document.querySelector('path.nights').getAttribute('d').split('h0').length - 1") == 34
    assert browser.evaluate("document.querySelector('.plot').getBoundingClientRect().height") > 100
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 3 * 34
    assert browser.evaluate("[...document.querySelectorAll('.below text')].every((each) => each.textContent.startsWith('20'))")
    assert browser.console == []


def labels(browser: Browser) -> Any:
    return browser.evaluate("[...document.querySelector('.below').children].map((each) => each.textContent)")


def test_zoom_by_keyboard(browser: Browser, site: Path) -> None:
    """Tab reaches the buttons; fewer days are shown with their dates, marks move with them, and All shows all again."""
    browser.open(one_of(site, "trainings/*.html"))
    while browser.evaluate("document.activeElement.textContent") != "30 days":
        browser.press("Tab")
    whole = labels(browser)
    browser.press("Enter", text="\r")
    left, _, size, _ = (float(number) for number in browser.evaluate(ZOOMED).split())
    assert left + size == pytest.approx(1000)
    assert 800 < size < 900  # 30 days of 33 and a little
    assert labels(browser)[-1] == whole[-1]
    assert labels(browser)[0] > whole[0]
    assert " to " in browser.evaluate("document.querySelector('output').textContent")
    assert browser.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    for name, expected in (("Earlier", size), ("Zoom in", size / 2), ("Zoom out", size)):
        while browser.evaluate("document.activeElement.getAttribute('aria-label')") != name:
            browser.press("Tab")
        browser.press("Enter", text="\r")
        assert float(browser.evaluate(ZOOMED).split()[2]) == pytest.approx(expected)
    browser.evaluate("document.querySelector('[data-days=\"0\"]').click()")
    assert browser.evaluate(ZOOMED) == "0 0 1000 1000"
    assert labels(browser) == whole
    assert browser.console == []


def test_marks_go_with_the_time_that_is_shown(browser: Browser, site: Path) -> None:
    """The number of a change stands above its line however far one zooms, and is hidden where that is out of sight."""
    browser.open(one_of(site, "trainings/*.html"))
    marked = "document.querySelector('.plot > .mark').closest('figure')"
    at = f"parseFloat({marked}.querySelector('.mark').getAttribute('x'))"
    before = browser.evaluate(at)
    browser.evaluate(f"{marked}.querySelector('[data-zoom=\"0.5\"]').click()")
    assert browser.evaluate(at) == pytest.approx(50 + 2 * (before - 50), abs=0.1)
    for _ in range(12):
        browser.evaluate(f"{marked}.querySelector('[data-zoom=\"0.5\"]').click()")
        browser.evaluate(f"{marked}.querySelector('[data-move=\"-0.5\"]').click()")
    assert browser.evaluate(f"getComputedStyle({marked}.querySelector('.mark')).display") == "none"


def test_tables_are_sorted_by_keyboard(browser: Browser, site: Path) -> None:
    """Enter on a heading sorts its table alone."""
    browser.open(site / "sessions.html")
    cells = "[...document.querySelectorAll('tbody th')].map((each) => each.textContent)"
    latest_first = browser.evaluate(cells)
    assert latest_first == sorted(latest_first, reverse=True)
    while browser.evaluate("document.activeElement.closest('th')?.textContent") != "started, UTC":
        browser.press("Tab")
    browser.press("Enter", text="\r")
    assert browser.evaluate(cells) == latest_first[::-1]
    assert browser.console == []


def test_what_was_injected_does_nothing(browser: Browser, tmp_path: Path) -> None:
    """Scripts, handlers and addresses in every string of a history run nowhere, whatever is clicked."""
    build_site(hostile_whole(), tmp_path / "site", results=tmp_path)
    for kind in ("index.html", "changes.html", "trainings/*.html", "sessions/*.html"):
        browser.open(one_of(tmp_path / "site", kind))
        browser.evaluate("document.querySelectorAll('button, summary').forEach((each) => each.click())")
        assert browser.evaluate("window.evil") is None
        assert browser.evaluate("document.querySelectorAll('script, img, iframe, base, form').length") == 1
        assert browser.console == []


def test_names_of_what_is_drawn_and_worked(browser: Browser, site: Path) -> None:
    """Each control, figure and region has a name for those who hear the page."""
    asked = {"image", "button", "link", "columnheader", "DisclosureTriangle", "heading", "img", "navigation"}
    for kind in ("index.html", "trainings/*.html"):
        browser.open(one_of(site, kind))
        browser.call("Accessibility.enable")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        heard = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
        named = [(role, name) for role, name in heard if role in asked]
        assert len(named) > 20
        assert [role for role, name in named if not name.strip()] == []
