"""The site in Debian's Chromium, which is shared with tests of a session's page."""

from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.report.site.build import build_site
from tests.report.page.browser import CONTRASTS, Browser
from tests.report.site.hostile import make_hostile_history
from tests.report.site.samples import enter_history, write_nights

WIDTHS = (400, 900, 1600)
KINDS = ("index.html", "changes.html", "sessions.html", "trainings/*.html", "sessions/*.html")
ZOOMED = "document.querySelector('svg.zoomed').getAttribute('viewBox')"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a site of three systems, of which two changed."""
    root: Path = tmp_path_factory.mktemp("history")
    build_site(enter_history(write_nights(root / "results", 34, each=1), root), root / "site", results=root / "results")
    return root / "site"


def get_page(site: Path, kind: str) -> Path:
    return min(site.glob(kind))


@pytest.mark.campaign
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_fit_every_screen(browser: Browser, site: Path, width: int, theme: str) -> None:
    """From a phone to a wide screen, light and dark: no page overflows, text has contrast, and the console is empty."""
    for kind in KINDS:
        browser.open(get_page(site, kind), width=width, theme=theme)
        browser.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, kind
        assert browser.evaluate("innerWidth") == width, kind
        contrasts = browser.evaluate(CONTRASTS)
        assert len(contrasts) > 15, kind
        assert [each for each in contrasts if each[0] < 4.5] == [], kind
        is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)"
        assert is_dark == (theme == "dark"), kind
        assert browser.console == [], kind


def test_pages_work_without_scripts(browser: Browser, site: Path) -> None:
    """Without JavaScript charts, numbers and changes are there, and tools are hidden."""
    browser.open(get_page(site, "trainings/*.html"), scripts=False)
    assert browser.evaluate("[...document.querySelectorAll('.tools')].filter((each) => each.checkVisibility()).length") == 0
    assert browser.evaluate("document.querySelector('path.nights').getAttribute('d').split('h0').length - 1") == 34
    assert browser.evaluate("document.querySelector('.plot').getBoundingClientRect().height") > 100
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 3 * 34
    assert browser.evaluate("[...document.querySelectorAll('.below text')].every((each) => each.textContent.startsWith('20'))")
    assert browser.console == []


def list_labels(browser: Browser) -> Any:
    return browser.evaluate("[...document.querySelector('.below').children].map((each) => each.textContent)")


def test_zoom_works_by_keyboard(browser: Browser, site: Path) -> None:
    """Tab reaches the buttons; a part of the days is shown with their dates, and All shows all again."""
    browser.open(get_page(site, "trainings/*.html"))
    while browser.evaluate("document.activeElement.textContent") != "30 days":
        browser.press("Tab")
    whole = list_labels(browser)
    browser.press("Enter", text="\r")
    left, _, size, _ = (float(number) for number in browser.evaluate(ZOOMED).split())
    assert left + size == pytest.approx(1000)
    assert 800 < size < 900  # 30 days of 33 and a little
    assert list_labels(browser)[-1] == whole[-1]
    assert list_labels(browser)[0] > whole[0]
    assert " to " in browser.evaluate("document.querySelector('output').textContent")
    assert browser.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    for name, expected in (("Earlier", size), ("Zoom in", size / 2), ("Zoom out", size)):
        while browser.evaluate("document.activeElement.getAttribute('aria-label')") != name:
            browser.press("Tab")
        browser.press("Enter", text="\r")
        assert float(browser.evaluate(ZOOMED).split()[2]) == pytest.approx(expected)
    browser.evaluate("document.querySelector('[data-days=\"0\"]').click()")
    assert browser.evaluate(ZOOMED) == "0 0 1000 1000"
    assert list_labels(browser) == whole
    assert browser.console == []


def test_marks_move_with_the_zoom(browser: Browser, site: Path) -> None:
    """The number of a change stays above its line, and is hidden when that is not visible."""
    browser.open(get_page(site, "trainings/*.html"))
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
    """Enter on a heading sorts its table."""
    browser.open(site / "sessions.html")
    cells = "[...document.querySelectorAll('tbody th')].map((each) => each.textContent)"
    latest_first = browser.evaluate(cells)
    assert latest_first == sorted(latest_first, reverse=True)
    while browser.evaluate("document.activeElement.closest('th')?.textContent") != "started, UTC":
        browser.press("Tab")
    browser.press("Enter", text="\r")
    assert browser.evaluate(cells) == latest_first[::-1]
    assert browser.console == []


def test_injected_scripts_do_not_run(browser: Browser, tmp_path: Path) -> None:
    """Scripts, handlers and addresses in strings of a history do not run."""
    build_site(make_hostile_history(), tmp_path / "site", results=tmp_path)
    for kind in ("index.html", "changes.html", "trainings/*.html", "sessions/*.html"):
        browser.open(get_page(tmp_path / "site", kind))
        browser.evaluate("document.querySelectorAll('button, summary').forEach((each) => each.click())")
        assert browser.evaluate("window.evil") is None
        assert browser.evaluate("document.querySelectorAll('script, img, iframe, base, form').length") == 1
        assert browser.console == []


def test_controls_have_accessible_names(browser: Browser, site: Path) -> None:
    """Each control, figure and heading has an accessible name."""
    asked = {"image", "button", "link", "columnheader", "DisclosureTriangle", "heading", "img", "navigation"}
    for kind in ("index.html", "trainings/*.html"):
        browser.open(get_page(site, kind))
        browser.call("Accessibility.enable")
        nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
        heard = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
        named = [(role, name) for role, name in heard if role in asked]
        assert len(named) > 20
        assert [role for role, name in named if not name.strip()] == []
