"""The page as a file: valid, self-contained, small, and with escaped text."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import html5lib
import pytest

from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.report.page import build
from pytest_dtfperf.report.series import find_published_rates
from pytest_dtfperf.report.session_exports import SessionResults
from tests.report.page.hostile import EVIL, write_hostile_page
from tests.report.page.samples import HISTORY, folder_of, session_records

HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"
STYLE = (Path(build.__file__).parent / "templates" / "style.css").read_text()


def parse_html(text: str):  # type: ignore[no-untyped-def]  # an element of whichever tree builder html5lib takes
    """Return the page. Raises `ParseError` for what the standard does not allow."""
    return html5lib.HTMLParser(strict=True).parse(text)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = session_records()
    folder = folder_of(tmp_path_factory.mktemp("results"), records)
    assert build.write_page(folder, SessionResults(records, find_published_rates(records), pasts=HISTORY)) == [
        f"Report: {folder.path / 'report.html'}"
    ]
    return (folder.path / "report.html").read_text(encoding="utf-8")


def test_page_is_valid_html(text: str) -> None:
    """A strict parser accepts the page; ids are unique, and every reference has its target."""
    page = parse_html(text)
    ids = Counter(node.get("id") for node in page.iter() if node.get("id"))
    assert [name for name, count in ids.items() if count > 1] == []
    links = [node.get("href") for node in page.iter() if node.get("href")]
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert {link[1:] for link in links if link.startswith("#")} <= ids.keys()
    assert {node.get("for") for node in page.iter() if node.get("for")} <= ids.keys()


def test_page_is_self_contained(text: str) -> None:
    """The page has no address and no import, and its policy allows only its own script."""
    assert re.findall(r"""(?:src|srcset|action|data)=|@import|url\(|https?://""", text) == []
    assert "script-src 'sha256-" in text
    assert "default-src 'none'" in text


def test_each_figure_has_a_title(text: str) -> None:
    """Each drawing has a title or is hidden from screen readers."""
    drawings = list(parse_html(text).iter(f"{SVG}svg"))
    assert len(drawings) > 30
    for drawing in drawings:
        title = drawing.find(f"{SVG}title")
        assert drawing.get("aria-hidden") == "true" or (title is not None and title.text)


def test_injected_markup_is_text(tmp_path: Path, text: str) -> None:
    """Hostile strings make no new element or attribute, and are readable."""
    hostile = write_hostile_page(tmp_path).read_text(encoding="utf-8")
    page = parse_html(hostile)
    harmless = {(node.tag, *sorted(node.keys())) for node in parse_html(text).iter()}
    assert {(node.tag, *sorted(node.keys())) for node in page.iter()} - harmless == set()
    assert len(list(page.iter(f"{HTML}script"))) == 1
    whole = "".join(page.itertext())
    shown = EVIL.replace("\0", "\\x00").replace("\x1b", "\\x1b").replace("\u202e", "\\u202e")
    assert whole.count(shown) > 80
    sections = ("Why a step takes", "Where a step's time goes", "Its tasks", "In earlier sessions", "Logs")
    assert all(words in whole for words in sections)
    assert not any(sign in hostile for sign in "\0\x1b\u202e")


def test_page_of_200_tests_is_small(tmp_path: Path) -> None:
    """A page of 200 tests is below 600 kB, with 30 step breakdowns and a note about the others."""
    records = [
        replace(each, id=f"{each.id}{n}", test=f"{each.test}[{n}]") for n in range(40) for each in session_records()
    ]  # fmt: skip
    folder = folder_of(tmp_path, records)
    build.write_page(folder, SessionResults(records, find_published_rates(records), pasts=HISTORY))
    assert (folder.path / "report.html").stat().st_size < 600_000
    written = (folder.path / "report.html").read_text()
    assert "the first 30 have the breakdown of a step" in written
    assert written.count("Where a step's time goes, mean of 4 traced steps</h4>") == 30


def compute_luminance(colour: str) -> float:
    """Return the luminance of #rgb or #rrggbb by WCAG 2."""
    digits = "".join(2 * each for each in colour[1:]) if len(colour) == 4 else colour[1:]
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_have_contrast(theme: str) -> None:
    """All text colours have a contrast of at least 4.5 against all backgrounds."""
    light, dark = [dict(re.findall(r"--([a-z]+):(#[0-9a-f]+)", block)) for block in STYLE.split("@media")[:2]]
    colours = light if theme == "light" else dark
    assert light.keys() == dark.keys()
    for name in ("ink", "soft", "link", "pass", "warn", "fail", "error", "none"):
        for behind in ("paper", "card", "hover"):
            brighter, darker = sorted((compute_luminance(colours[name]), compute_luminance(colours[behind])), reverse=True)
            assert (brighter + 0.05) / (darker + 0.05) >= 4.5, (name, behind)


def test_dark_colours_are_the_same() -> None:
    """Dark by the system and dark by the button have the same colours."""
    found = [sorted(re.findall(r"--[a-z]+:#[0-9a-f]+", block)) for block in re.findall(r"\{([^{}]*--paper:[^{}]*)\}", STYLE)]
    assert len(found) == 3
    assert found[1] == found[2] != found[0]


def test_every_kind_of_work_has_a_colour() -> None:
    """Every kind of work has a colour, and every outcome of verdicts a style and a shape."""
    from pytest_dtfperf.baselines.verdict import Verdict
    from pytest_dtfperf.datamodel.step_times import KINDS

    assert [kind for kind in KINDS if f".kind-{kind}{{" not in STYLE or f"--{kind}:" not in STYLE] == []
    outcomes = {verdict.row.outcome for verdict in Verdict}
    shapes = (Path(build.__file__).parent / "templates" / "base.html").read_text()
    assert [outcome for outcome in outcomes if f".is-{outcome}{{" not in STYLE or f'"shape-{outcome}"' not in shapes] == []


def test_failed_page_is_one_line(tmp_path: Path) -> None:
    """A page that cannot be made is one line; without a measurement there is neither page nor line."""
    folder = folder_of(tmp_path, session_records())
    broken = [replace(session_records()[0], test=None)]  # type: ignore[arg-type]  # what no reader lets pass
    (line,) = build.write_page(folder, SessionResults(broken))
    assert line.startswith("No report.html: ")
    assert build.write_page(folder, SessionResults([])) == []


def test_unfinished_session_has_a_page(tmp_path: Path) -> None:
    """The page of a session without an end states that, and counts the verdicts."""
    folder = SessionFolder.create(tmp_path, cluster="local", command=["pytest"], versions={})
    records = session_records()
    build.write_page(folder, SessionResults(records))
    whole = " ".join("".join(parse_html((folder.path / "report.html").read_text()).itertext()).split())
    assert "5 measurements; not ended: what follows is as far as the session has come" in whole
    assert "1 REGRESSED 1 INCONCLUSIVE 1 NO_BASELINE 1 IMPROVED 1 PASSED" in whole


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (None, "5 measurements; took"),
        ({"REGRESSED": 1, "PASSED": 5}, "5 measurements; the verdicts above are those of 6 tests; took"),
    ],
)
def test_page_shows_whether_tests_are_counted(tmp_path: Path, counts: dict[str, int] | None, words: str) -> None:
    """If the verdicts of the tests are not those of the measurements, the page shows of how many tests they are."""
    folder, records = folder_of(tmp_path, session_records()), session_records()
    folder.finish(exit_code=1, wall_s=60.0, verdicts=counts)
    build.write_page(folder, SessionResults(records))
    whole = " ".join("".join(parse_html((folder.path / "report.html").read_text()).itertext()).split())
    assert words in whole
