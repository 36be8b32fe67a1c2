"""A site as files: valid and linked pages of limited size, written only where data is new."""

import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from urllib.parse import urldefrag

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.fingerprint import Fingerprint, Hardware
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.enter import enter_all
from pytest_dtfperf.history.watching import HistoryData, load_history
from pytest_dtfperf.report.site.build import build_site
from pytest_dtfperf.report.site.files import MANIFEST, SiteFolder
from pytest_dtfperf.report.site.training import make_training_view
from tests.plugin import zygote
from tests.report.page.test_html import parse_html
from tests.report.site.made import CONTENT, event, make_history_data, point, series, session
from tests.report.site.samples import enter_history, get_address, make_trainings, write_night, write_nights

LIMIT = 1_000_000  # bytes of a page
NIGHTS, EACH = 30, 3


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("results")
    write_nights(root, NIGHTS, each=EACH)
    return root


@pytest.fixture(scope="module")
def history_data(results: Path) -> HistoryData:
    """Return a history with one session without its folder."""
    from pytest_dtfperf.records.session import session_folders

    found = enter_history(session_folders(results), results)
    shutil.rmtree(found.sessions[3]["folder"])
    return found


@pytest.fixture(scope="module")
def site(history_data: HistoryData, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("site")
    build_site(history_data, out, results=results)
    return out


def list_pages(site: Path) -> list[Path]:
    return sorted(site.rglob("*.html"))


def read_state(site: Path) -> dict[str, tuple[int, int]]:
    """Return the inode and time of each file, which change when a page is written again."""
    files = [path for path in site.rglob("*") if path.is_file() and path.name != MANIFEST]
    return {path.relative_to(site).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def list_changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> set[str]:
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def test_pages_are_valid_and_linked(site: Path) -> None:
    """A strict parser accepts all pages, ids are unique, and every link has its page and anchor."""
    ids, links = {}, []
    for path in list_pages(site):
        page = parse_html(path.read_text(encoding="utf-8"))
        found = Counter(node.get("id") for node in page.iter() if node.get("id"))
        assert [name for name, count in found.items() if count > 1] == [], path
        ids[path] = set(found)
        links += [(path, node.get("href")) for node in page.iter() if node.get("href") and node.get("href") != "data:,"]
    assert len(ids) == 3 + EACH + 3 * NIGHTS
    for path, link in links:
        target, anchor = urldefrag(link)
        aim = Path(os.path.normpath(path.parent / target)) if target else path
        assert aim.is_file(), (path, link)
        assert aim.is_relative_to(site)
        assert not anchor or anchor in ids[aim], (path, link)
    linked = {Path(os.path.normpath(path.parent / urldefrag(link)[0])) for path, link in links}
    assert set(ids) - linked == set()  # no page that nothing leads to


def test_pages_load_nothing(site: Path) -> None:
    """No page has an address or import, and its policy allows only its own script."""
    for path in [site / "index.html", *sorted((site / "trainings").iterdir()), site / "changes.html", site / "sessions.html"]:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"""\s(?:src|srcset|action)=|@import|url\(|https?://""", text) == [], path
        assert "default-src 'none'" in text


def test_overview_has_the_state_of_each_training(site: Path) -> None:
    """The overview has the three systems, and the changes with their dates and sizes."""
    whole_text = " ".join("".join(parse_html((site / "index.html").read_text()).itertext()).split())
    for words in ("1x-nvidia-gh200-480gb", "8x-tesla-v100-sxm2-16gb", "cpu-amd-epyc-9b45-2c", "3 systems"):
        assert words in whole_text
    assert re.search(r"since 2[012] January 2026: -[23]\.\d % .* in 3 series", whole_text)
    assert whole_text.count("no change") == 9 - 3 - 1  # all of the first system, one of the second


def test_training_page_has_rates_changes_and_baselines(site: Path, history_data: HistoryData) -> None:
    """A training's page has a chart for each system with all nights, baselines and changes, and a table."""
    assert len(list((site / "trainings").iterdir())) == EACH
    (path,) = (site / "trainings").glob("inception3-*")
    text = path.read_text(encoding="utf-8")
    dots = re.findall(r'd="([^"]*)" class="nights"', text)
    assert [dot.count("h0") for dot in dots] == [NIGHTS] * 3
    assert len(re.findall(r'class="intervals"', text)) == len(re.findall(r'class="baseline"', text)) == 3
    assert len(re.findall(r'class="marks"', text)) == len(
        [e for e in history_data.events if any("inception3" in m["label"] for m in e["members"])]
    )
    rows = parse_html(text).findall(".//{http://www.w3.org/1999/xhtml}tbody/{http://www.w3.org/1999/xhtml}tr")
    assert len(rows) == 3 * NIGHTS
    last = history_data.all_series[0].points[-1]
    assert last["runs"] == 2
    assert f"{last['images_per_sec']:.2f}" in text or f"{last['images_per_sec']:.1f}" in text


def test_training_page_has_the_judged_change() -> None:
    """A training's page has the change of the verdict, not that of the medians."""
    night = point(session(0), rate=95.0, baseline=100.0, change=-0.041)
    (part,) = make_training_view([series([night])], {}, {"f": CONTENT}).parts
    assert part.facts[0].text.endswith("(-4.1 % against 100.0)")


def test_session_page_has_the_report(site: Path, history_data: HistoryData) -> None:
    """A session's page has the content of report.html; without its folder it has that of the history."""
    last, gone = (site / "sessions" / f"{history_data.sessions[i]['id']}.html" for i in (-1, 3))
    text = last.read_text(encoding="utf-8")
    assert all(
        words in text for words in ("Each measurement", "In earlier sessions", "To run it again", "What the numbers are")
    )
    short = gone.read_text(encoding="utf-8")
    assert "Its folder is not there any more" in short
    assert "NO_BASELINE" in short
    assert "Each measurement" not in short


def test_build_without_new_data_writes_nothing(site: Path, history_data: HistoryData, results: Path) -> None:
    """A build without new data writes no page."""
    before = read_state(site)
    built = build_site(history_data, site, results=results)
    assert (built.written, built.removed) == ([], [])
    assert read_state(site) == before


def test_new_night_writes_only_changed_pages(history_data: HistoryData, results: Path, tmp_path: Path) -> None:
    """A new session writes its page, its trainings, the lists and feeds, and no others."""
    out, night = tmp_path / "site", tmp_path / "night"
    own = tmp_path / "history"
    folders = write_nights(tmp_path / "results", 6, systems=2, each=2)
    build_site(enter_history(folders, own), out, results=results)
    before = read_state(out)
    (alone,) = [each for each in make_trainings(2, 2) if (each.system, each.spec.model) == (1, "resnet50")]
    new = write_night(night, 6, [alone])
    enter_all([new], get_address(own))
    built = build_site(load_history(Database.open(get_address(own))), out, results=results)
    after = list_changed(before, read_state(out))
    assert after == set(built.written)
    assert {re.sub(r"-[0-9a-f]{12}\.html", ".html", name) for name in after} == {
        "index.html", "sessions.html", "trainings/resnet50.html", f"sessions/{new.id}.html", "changes.atom",
    }  # fmt: skip


def test_damaged_pages_are_made_again(site: Path, history_data: HistoryData, results: Path, tmp_path: Path) -> None:
    """Truncated, changed and removed pages are made again, and no others."""
    out = tmp_path / "site"
    shutil.copytree(site, out)
    whole_site = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    broken = list_pages(out)[:3]
    broken[0].write_bytes(broken[0].read_bytes()[:500])
    broken[1].write_text("changed")
    broken[2].unlink()
    built = build_site(history_data, out, results=results)
    assert sorted(built.written) == sorted(path.relative_to(out).as_posix() for path in broken)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == whole_site


KILLED = """
import sys
from pathlib import Path
from pytest_dtfperf.cli import main
from pytest_dtfperf.report.page import html
real, count = html.render_template, 0

def rendered(*args, **kwargs):
    global count
    count += 1
    if count == 5:
        import os, signal
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args, **kwargs)

html.render_template = rendered
main(sys.argv[1:])
"""


def test_killed_build_is_continued(tmp_path: Path) -> None:
    """A killed build leaves valid pages, and the next one gives the same site as a new build."""
    found = enter_history(write_nights(tmp_path / "results", 4, systems=1, each=1), tmp_path)
    killed, fresh = tmp_path / "killed", tmp_path / "fresh"
    arguments = ["site", f"--history={get_address(tmp_path)}", f"--results={tmp_path / 'results'}"]
    ended = zygote.python("-c", KILLED, *arguments, f"--out={killed}")
    assert ended.returncode == -signal.SIGKILL
    left = list_pages(killed)
    assert len(left) == 4
    for path in left:
        parse_html(path.read_text())
    for out in (killed, fresh):
        assert main([*arguments, f"--out={out}"]) == 0
    contents = [
        {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (killed, fresh)
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == len(found.sessions) + 1 + 3 + 3


def test_pages_of_pruned_sessions_are_removed(tmp_path: Path) -> None:
    """Pages of removed sessions and trainings are removed, and no other files."""
    nights = [session(night) for night in range(3)]
    kept, other = series([point(night) for night in nights]), series([point(nights[0], 1)])
    build_site(make_history_data(nights, [kept, other]), tmp_path, results=tmp_path)
    (tmp_path / "CNAME").write_text("perf.example.org")
    built = build_site(make_history_data(nights[1:], [kept]), tmp_path, results=tmp_path)
    assert len(built.removed) == 2
    assert {name.partition("/")[0] for name in built.removed} == {"sessions", "trainings"}
    assert (tmp_path / "CNAME").read_text() == "perf.example.org"
    assert not (tmp_path / f"sessions/{nights[0]['id']}.html").exists()


@pytest.mark.parametrize("content", ["{}", "[]", "no json", '{"dtfperf_site": 1, "pages": 7}'])
def test_folder_with_other_files_is_refused(tmp_path: Path, content: str) -> None:
    """A folder with other files, or with another site.json, is refused and not changed."""
    (tmp_path / "index.html").write_text("mine")
    with pytest.raises(UsageError, match="has files that are not of a site"):
        SiteFolder(tmp_path)
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(UsageError, match="is not of a site"):
        SiteFolder(tmp_path)
    assert (tmp_path / "index.html").read_text() == "mine"


def test_manifest_cannot_name_files_outside(tmp_path: Path) -> None:
    """Names of other files in site.json are ignored, and these files are not removed."""
    out, other = tmp_path / "site", tmp_path / "precious.html"
    other.write_text("mine")
    out.mkdir()
    names = ["../precious.html", str(other), "sessions/../../precious.html"]
    (out / MANIFEST).write_text(json.dumps({"dtfperf_site": 1, "pages": {name: {} for name in names}}))
    assert build_site(make_history_data([]), out, results=tmp_path).removed == []
    assert other.read_text() == "mine"


def test_empty_history_has_valid_pages(tmp_path: Path) -> None:
    """An empty history has valid pages, which have the command to import sessions."""
    build_site(make_history_data([]), tmp_path, results=tmp_path)
    for path in list_pages(tmp_path):
        parse_html(path.read_text())
    assert [path.name for path in list_pages(tmp_path)] == ["changes.html", "index.html", "sessions.html"]
    assert "dtfperf history import DIR" in (tmp_path / "index.html").read_text()
    assert "No session is in the history yet" in (tmp_path / "sessions.html").read_text()


def test_single_night_has_a_chart(tmp_path: Path) -> None:
    """A single point has a chart with one dot, without a trend or an interval."""
    night = session(0)
    build_site(make_history_data([night], [series([point(night, runs=1, spread=None)])]), tmp_path, results=tmp_path)
    (path,) = (tmp_path / "trainings").iterdir()
    text = path.read_text()
    parse_html(text)
    assert text.count("h0") == 1
    assert 'class="intervals"' not in text
    assert "one session, 100.0 images/sec" in text
    assert "<polyline" not in (tmp_path / "index.html").read_text()


def test_pages_have_a_limited_size(tmp_path: Path) -> None:
    """With 3,000 nights, 450 series and 60 changes no page reaches 1 MB, and notes count what is left out."""
    nights = [session(night) for night in range(3000)]
    rates = [100 + night % 7 for night in range(3000)]
    long = [series([point(n, rate=rate, hosts=hosts) for n, rate in zip(nights, rates, strict=True)]) for hosts in (1, 2)]
    many = [series([point(n, number % 50 + 1, hosts=number) for n in nights[-20:]]) for number in range(1, 450)]
    events = [event(number, many, 5 + number % 10) for number in range(1, 61)]
    found = make_history_data(nights[-20:], [*long, *many], events)
    built = build_site(found, tmp_path, results=tmp_path)
    assert built.largest == max(path.stat().st_size for path in tmp_path.rglob("*") if path.name != MANIFEST)
    assert built.largest < LIMIT
    (path,) = [path for path in (tmp_path / "trainings").iterdir() if "training 0" in path.read_text()]
    assert "2250 earlier nights: dtfperf history export" in path.read_text()
    assert "all of them" in (tmp_path / "index.html").read_text()
    listed = sum(path.read_text().count("<tr><th>") for path in (tmp_path / "systems").iterdir())
    assert listed == 451
    assert (tmp_path / "changes-2.html").exists()


def test_new_series_has_the_reason(tmp_path: Path) -> None:
    """A series that replaces another one has the difference between them."""
    nights = [session(night) for night in range(4)]
    more = Fingerprint(hardware=Hardware(cpu="any", cores=4))
    one, two = series([point(n) for n in nights[:2]]), series([point(n, fingerprint="g") for n in nights[2:]])
    build_site(make_history_data(nights, [one, two], contents={"g": more}), tmp_path, results=tmp_path)
    (path,) = (tmp_path / "trainings").iterdir()
    assert "cores: 2 before, 4 after" in path.read_text()


def test_site_command_reports_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`dtfperf site` prints the written pages and the first one; a wrong address or folder is exit code 2."""
    results, out = tmp_path / "results", tmp_path / "site"
    history_data = enter_history(write_nights(results, 2, each=EACH), tmp_path)
    arguments = ["site", f"--history={get_address(tmp_path)}", f"--results={results}"]
    assert main([*arguments, f"--out={out}", "--url=https://example.org/perf/", "--title=Ours"]) == 0
    count = len(history_data.sessions) + EACH + 3 + 2
    assert capsys.readouterr().out == (
        f"dtfperf: {len(history_data.sessions)} sessions in {count} pages: {count} written, 0 unchanged. "
        f"Begin at {out / 'index.html'}\n"
    )
    assert "<h1>Ours</h1>" in (out / "index.html").read_text()
    assert 'href="https://example.org/perf/changes.atom"' in (out / "changes.atom").read_text()
    assert main([*arguments, f"--out={out}", "--url=https://example.org/perf/", "--title=Ours", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["written"] == []
    assert main([*arguments, f"--out={results}"]) == 2
    assert "has files that are not of a site" in capsys.readouterr().err
    assert main([*arguments, f"--out={out}", "--url=javascript:alert(1)"]) == 2
    assert "--url takes an address" in capsys.readouterr().err
    assert main(["site", f"--out={out}", f"--history={tmp_path / 'none.sqlite'}"]) == 2
    assert "there is no history" in capsys.readouterr().err


def test_moved_session_folders_are_found(results: Path, tmp_path: Path) -> None:
    """A moved session folder among the results has its whole page."""
    (folder,) = write_nights(tmp_path / "then", 1, systems=1, each=1)
    found = enter_history([folder], tmp_path)
    (tmp_path / "then").rename(tmp_path / "now")
    build_site(found, tmp_path / "site", results=tmp_path / "now")
    assert "Each measurement" in (tmp_path / "site" / "sessions" / f"{folder.id}.html").read_text()


def test_damaged_session_folder_has_a_short_page(tmp_path: Path) -> None:
    """A session with a damaged folder has a page from the history with the reason; others have their whole page."""
    folders = write_nights(tmp_path / "results", 2, systems=1, each=1)
    found = enter_history(folders, tmp_path)
    (folders[0].path / "measurements.jsonl").write_bytes(b"{\n")
    build_site(found, tmp_path / "site", results=tmp_path)
    broken, whole_page = ((tmp_path / "site" / "sessions" / f"{folder.id}.html").read_text() for folder in folders)
    assert "Its folder cannot be shown (SessionFileError" in broken
    assert "Each measurement" in whole_page
