"""Tests of the hooks that a conftest.py or another plugin may implement."""

import json
import re
from collections import Counter

from tests.plugin.conftest import PerfTests

CONFTEST = """
def pytest_dtfperf_measured(item, measured):
    print("measured", item.name, measured.spec.gpus, measured.verdict)

def pytest_dtfperf_judged(item, measured, judgement):
    print("judged", measured.spec.gpus, judgement.verdict)
    {judged}

def pytest_dtfperf_report_section(config, records):
    {section}
"""
SECTION = """
def pytest_dtfperf_report_section(records):
    {section}
"""
TESTS = """
def test_both(train, baseline):
    for each in train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial", num_ps=1):
        baseline.check(each)
"""


def run(perf: PerfTests, judged: str = "pass", section: str = "return None") -> str:
    perf.write(CONFTEST.format(judged=judged, section=section), "conftest.py")
    perf.write(TESTS)
    return perf.run("-s").out


def test_hooks_receive_measurements_and_judgements(perf: PerfTests) -> None:
    """Each measurement is passed to the hook without a verdict, each check with its verdict, and all measurements to the
    section, which comes after those of this package, and once on the page with characters of HTML escaped."""
    out = run(perf, section="return '<b>ours</b>', [f'{r.spec.gpus} & {r.verdict}' for r in records] + [3]")
    lines = [line for line in out.splitlines() if line.startswith(("measured", "judged"))]
    assert lines == ["measured test_both 1 None", "measured test_both 2 None", "judged 1 NO_BASELINE", "judged 2 NO_BASELINE"]
    ours, _, after = out.partition("= <b>ours</b> =")
    assert "distributed training performance" in ours
    assert "\n1 & NO_BASELINE\n2 & NO_BASELINE\n3\n" in after
    (page,) = (perf.folder / "perf_results").glob("*/report.html")
    text = page.read_text()
    assert text.count("<h2>&lt;b&gt;ours&lt;/b&gt;</h2>") == 1
    assert ">1 &amp; NO_BASELINE\n2 &amp; NO_BASELINE\n3\n</pre>" in text


def test_failing_section_leaves_the_table(perf: PerfTests) -> None:
    """If a section fails, the table is shown, and one line reports the failure."""
    out = run(perf, section="return 1 / 0")
    assert re.search(r"\ndtfperf: a report section of \S*conftest\.py failed: ZeroDivisionError: division by zero\n", out)
    assert "NO_BASELINE" in out
    assert "1 undecided" in out


def test_sections_of_several_plugins_are_independent(perf: PerfTests) -> None:
    """Each valid section is shown once, in pytest's order, a text line by line, and each invalid or failing one is one line."""
    valid = {"first": "return 'one', 'two\\nlines'", "none": "return None", "third": "return 'three', ['3']"}
    for name, section in valid.items():
        perf.write(SECTION.format(section=section), f"{name}.py")
    perf.write(SECTION.format(section="return 1 / 0"), "raises.py")
    perf.write(SECTION.format(section="import pytest; pytest.fail('too slow')"), "fails.py")
    perf.write(SECTION.format(section="return 'a title alone'"), "shapeless.py")
    perf.write("pytest_plugins = ['first', 'raises', 'fails', 'none', 'shapeless', 'third']", "conftest.py")
    perf.write(TESTS)
    out = perf.run().out
    assert re.findall(r"= (one|three) =", out) == ["three", "one"]
    assert "\ntwo\nlines\n" in out.partition("= one =")[2]
    assert "\ndtfperf: a report section of raises failed: ZeroDivisionError: division by zero\n" in out
    assert "\ndtfperf: a report section of fails failed: Failed: too slow\n" in out
    assert "\ndtfperf: a report section of shapeless failed: TypeError: " in out
    assert "1 undecided" in out


def test_section_of_megabytes_is_shown_whole(perf: PerfTests) -> None:
    """The summary and the page have a long section whole and once, and no other file of the session grows."""
    run(perf, section="return None")
    out = run(perf, section="return 'ours', ['<' * 2_000_000, *(f'row {number}' for number in range(20_000))]")
    rows = "\n".join(f"row {number}" for number in range(20_000))
    assert out.count(f"{'<' * 2_000_000}\n{rows}\n") == 1
    before, after = sorted((perf.folder / "perf_results").iterdir())
    sizes = [{path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()} for folder in (before, after)]
    assert sizes[0].keys() == sizes[1].keys()
    page = (after / "report.html").read_text()
    assert page.count(f"{'&lt;' * 2_000_000}\n{rows}\n</pre>") == 1
    grown = {name: size - sizes[0][name] for name, size in sizes[1].items() if size > sizes[0][name] + 1000}
    assert grown.keys() == {"report.html"}
    assert grown["report.html"] < 4 * 2_000_000 + len(rows) + 2000


def test_failing_hook_fails_its_test(perf: PerfTests) -> None:
    """An exception in a hook fails the test, and the measurements are kept."""
    out = run(perf, judged="raise RuntimeError('not so')")
    assert "RuntimeError: not so" in out
    assert "1 failed" in out
    (lines,) = (perf.folder / "perf_results").glob("*/measurements.jsonl")
    assert [json.loads(line)["spec"]["gpus"] for line in lines.read_text().splitlines()] == [1, 2]


WHERE = """
import os

def note(*words):
    with open("hooks.txt", "a") as file:
        print(os.environ.get("PYTEST_XDIST_WORKER", "controller")[:2], *words, file=file)

def pytest_dtfperf_measured(item, measured):
    note("measured", item.name)

def pytest_dtfperf_judged(item, measured, judgement):
    note("judged", item.name, judgement.verdict)

def pytest_dtfperf_report_section(config, records):
    note("section", *sorted(record.spec.batch_size for record in records))
    return "ours", ["a line"]
"""
FOUR = """
import pytest

@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_it(train, baseline, size):
    baseline.check(train(model="trivial", batch_size=size))
"""


def test_hooks_run_once_with_xdist(perf: PerfTests) -> None:
    """With xdist each measurement and judgement is reported once, by its worker, and the section once, by the controller with
    all measurements."""
    perf.write(WHERE, "conftest.py")
    perf.write(FOUR)
    ended = perf.run("-n2", "--gpus=1")
    assert ended.code == 0, ended.out
    counts = Counter((perf.folder / "hooks.txt").read_text().splitlines())
    names = [f"test_it[{size}]" for size in (1, 2, 3, 4)]
    expected = [f"gw {word}" for name in names for word in (f"measured {name}", f"judged {name} NO_BASELINE")]
    assert counts == Counter([*expected, "co section 1 2 3 4"])
    assert ended.out.count("= ours =") == 1
