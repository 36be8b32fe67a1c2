"""The page in Debian's Chromium, which is started once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.report.page import build
from pytest_dtfperf.report.series import find_published_rates
from pytest_dtfperf.report.session_exports import SessionResults
from pytest_dtfperf.spec import Spec
from tests.records.samples import record
from tests.report.page.browser import CONTRASTS, Browser
from tests.report.page.hostile import write_hostile_page
from tests.report.page.samples import HISTORY, folder_of, session_records

WIDTHS = (360, 800, 1440)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = session_records()
    folder = folder_of(tmp_path_factory.mktemp("results"), records)
    build.write_page(folder, SessionResults(records, find_published_rates(records), pasts=HISTORY))
    return folder.path / "report.html"


@pytest.mark.campaign
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_every_screen(browser: Browser, page: Path, width: int, theme: str) -> None:
    """From a phone to a wide screen, light and dark: nothing overflows, text has contrast, and the console is empty."""
    browser.open(page, width=width, theme=theme)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("innerWidth") == width
    browser.evaluate("document.getElementById('unfold').click()")
    contrasts = browser.evaluate(CONTRASTS)
    assert len(contrasts) > 300
    assert [each for each in contrasts if each[0] < 4.5] == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)"
    assert dark == (theme == "dark")
    assert browser.console == []


LONG_NAME = "train-" * 40 + "x"
# How many words of each heading of a card and of each command stand on several lines.
BROKEN_WORDS = """
[...document.querySelectorAll('.card > summary h3, pre.command, .facts code')].map((text) => {
  const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT), range = document.createRange();
  let broken = 0;
  while (walker.nextNode()) for (const word of walker.currentNode.textContent.matchAll(/\\S+/g)) {
    range.setStart(walker.currentNode, word.index);
    range.setEnd(walker.currentNode, word.index + word[0].length);
    broken += new Set([...range.getClientRects()].map((box) => box.top)).size > 1;
  }
  return broken;
})
"""


@pytest.mark.parametrize("width", [390, 1280])
def test_headings_wrap_between_words(browser: Browser, tmp_path: Path, width: int) -> None:
    """A long name or command wraps only at blanks; a word that is too wide scrolls."""
    options: dict[str, Any] = {
        "learning_rate": 0.05,
        "precision": "fp16",
        "gpus": 8,
        "num_ps": 8,
        "rate_pattern": r"([\d.]+) images/sec",
    }
    command = ("python", "train-it.py", "--data=/data/image-net/train-00000", "--rate={learning_rate}", "--type={precision}")
    specs = [Spec(model=name, batch_size=8, command=command, **options) for name in ("resnet-50-v1.5", LONG_NAME)]
    records = [replace(record(each, 9.0), id=f"r{n}", test=f"test_{n}") for n, each in enumerate(specs)]
    folder = folder_of(tmp_path, records)
    build.write_page(folder, SessionResults(records))
    browser.open(folder.path / "report.html", width=width)
    browser.evaluate("document.getElementById('unfold').click()")
    assert (broken := browser.evaluate(BROKEN_WORDS)) == [0] * 6, broken
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    wide = "[...document.querySelectorAll('h3 .word')].filter((each) => each.scrollWidth > each.clientWidth).length"
    assert browser.evaluate(wide) == 1


# Of each row's cells that are shown: where the rightmost ends, and the labels before their values.
ROWS = """
[...document.querySelectorAll('#rates tbody tr')].map((row) => {
  const shown = [...row.cells].filter((cell) => cell.checkVisibility());
  const labels = shown.map((cell) => cell.dataset.label).filter(Boolean);
  return [Math.max(...shown.map((cell) => cell.getBoundingClientRect().right)), labels];
})
"""


@pytest.mark.parametrize("width", [320, 390])
def test_rows_fit_a_phone(browser: Browser, page: Path, width: int) -> None:
    """On a narrow screen all values of a row are within it, each behind its label; cells without a value are left out."""
    browser.open(page, width=width)
    rows = browser.evaluate(ROWS)
    assert len(rows) == len(session_records())
    assert [right for right, _ in rows if right > width] == []
    assert all(labels[0] == "images/sec" for _, labels in rows)
    assert any("change" in labels for _, labels in rows)
    assert (
        browser.evaluate("[...document.querySelectorAll('#rates td.none')].filter((cell) => cell.checkVisibility()).length")
        == 0
    )


def test_page_works_without_scripts(browser: Browser, page: Path) -> None:
    """Without JavaScript all rows and cards are there and can be unfolded, and tools are hidden."""
    browser.open(page, scripts=False)
    assert browser.evaluate("[...document.querySelectorAll('.tools')].filter((each) => each.checkVisibility()).length") == 0
    rows = browser.evaluate("document.querySelectorAll('#rates tbody tr').length")
    assert rows == len(session_records()) == browser.evaluate("document.querySelectorAll('details.card').length")
    browser.evaluate("document.querySelector('#m3 > summary').focus()")
    browser.press("Enter", text="\r")
    assert browser.evaluate("document.getElementById('m3').open")
    assert browser.console == []


def list_labels(browser: Browser) -> Any:
    return browser.evaluate("[...document.querySelectorAll('#rates tbody tr:not([hidden]) th')].map((th) => th.textContent)")


def test_page_works_by_keyboard(browser: Browser, page: Path) -> None:
    """Tab reaches every control; sorting, filtering, the theme and folds work by Enter and letters."""
    browser.open(page)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.className") == "skip"
    browser.press("Tab")
    browser.press("Enter", text="\r")
    assert browser.evaluate("document.documentElement.dataset.theme") == "light"
    browser.press("Enter", text="\r")
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(251, 251, 250)"
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    by_verdict = list_labels(browser)
    while browser.evaluate("document.activeElement.closest('th')?.textContent") != "images/sec":
        browser.press("Tab")
    browser.press("Enter", text="\r")
    by_rate = list_labels(browser)
    assert by_rate != by_verdict
    assert by_rate[0] == "inception3 b8 gpus=1 num_ps=1 parameter_server"
    assert browser.evaluate("document.activeElement.closest('th').getAttribute('aria-sort')") == "ascending"
    browser.press("Enter", text="\r")
    assert list_labels(browser) == by_rate[::-1]
    browser.evaluate("document.getElementById('filter').focus()")
    for letter in "mnist":
        browser.press(letter, text=letter)
    assert list_labels(browser) == ["mnist b64 gpus=2 num_ps=1 parameter_server"]
    assert browser.evaluate("[...document.querySelectorAll('details.card')].filter((card) => !card.hidden).length") == 1
    assert browser.evaluate("document.getElementById('shown').textContent") == "1 of 5"
    assert browser.console == []


def test_button_hides_a_verdict(browser: Browser, page: Path) -> None:
    """A verdict's button hides its rows, and has its state."""
    browser.open(page)
    button = "document.querySelector('#kinds button:first-child')"
    browser.evaluate(f"{button}.click()")
    assert browser.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    assert "inception3 b8 gpus=2 num_ps=1 parameter_server" not in list_labels(browser)
    assert len(list_labels(browser)) == 4


def test_link_unfolds_its_measurement(browser: Browser, page: Path) -> None:
    """The link of a row unfolds its measurement."""
    browser.open(page)
    assert not browser.evaluate("document.getElementById('m4').open")
    browser.evaluate("document.querySelector('#rates a[href=\"#m4\"]').click()")
    browser.evaluate("new Promise((done) => setTimeout(done))")
    browser.await_event("Page.navigatedWithinDocument")
    assert browser.evaluate("document.getElementById('m4').open")


def test_injected_scripts_do_not_run(browser: Browser, tmp_path: Path) -> None:
    """Scripts, handlers and styles in strings of a session do not run."""
    browser.open(write_hostile_page(tmp_path))
    browser.evaluate("document.getElementById('unfold').click()")
    assert browser.evaluate("document.title").startswith("REGRESSED")
    assert browser.evaluate("window.evil") is None
    assert browser.evaluate("document.querySelectorAll('script, img, iframe, base, form').length") == 1
    assert browser.console == []


def test_controls_have_accessible_names(browser: Browser, page: Path) -> None:
    """Each control, figure and heading has an accessible name."""
    browser.open(page)
    browser.call("Accessibility.enable")
    nodes = browser.call("Accessibility.getFullAXTree")["nodes"]
    asked = {"image", "button", "link", "searchbox", "table", "columnheader", "DisclosureTriangle", "heading", "img"}
    heard = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes if not node.get("ignored")]
    named = [(role, name) for role, name in heard if role in asked]
    assert len(named) > 60
    assert [role for role, name in named if not name.strip() and role != "table"] == []
