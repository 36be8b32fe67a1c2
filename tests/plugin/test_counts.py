"""The numbers of verdicts in all outputs of one session: terminal, records, CSV, page, Markdown, JUnit, metrics, exit code."""

import csv
import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable

import html5lib

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.records.session import SessionFolder, session_folders
from pytest_dtfperf.report.markdown import format_markdown_summary
from tests.plugin.conftest import PerfTests

HTML = "{http://www.w3.org/1999/xhtml}"
COUNTS = {verdict: 1 + (at + 1) % 3 for at, verdict in enumerate(Verdict)}  # of tests
WITHOUT_RECORD = (Verdict.INVALID, Verdict.INFRASTRUCTURE)
MADE_UP = f"""
import pytest

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.errors import InfrastructureError, InvalidMeasurement
from pytest_dtfperf.plugin.plugin_state import get_state
from tests.records.samples import make_comparison

ERRORS = {{"INVALID": InvalidMeasurement, "INFRASTRUCTURE": InfrastructureError}}
CASES = {[str(verdict) for verdict, count in COUNTS.items() for _ in range(count)]}

@pytest.mark.parametrize("at", range(len(CASES)), ids=lambda at: f"{{CASES[at]}}-{{at}}")
def test_it(train, baseline, pytestconfig, at):
    name = CASES[at]
    if name in ERRORS:
        raise ERRORS[name]("made up")
    record = train(model="trivial", gpus=1, batch_size=10 + at, repeats=1)
    made_up = make_comparison(1000.0, 0.0, verdict=Verdict(name), reason=f"because {{name}}")
    folder = get_state(pytestconfig).session.folder
    baseline._conclude(lambda: folder.add_judgement(record.id, made_up).checks[-1], record)
"""
TWICE = """
import pytest

@pytest.fixture
def resource():
    yield
    raise RuntimeError("it cannot be closed")

def test_twice(train, baseline, resource):
    measured = train(model="trivial", gpus=1)
    baseline.check(measured, margin=0.0001)
    baseline.check(measured)
"""
EFFICIENCY = """
def test_both(train, baseline):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial")
    baseline.check(two)
    baseline.check_efficiency(two, anchor=one, at_least=1.0)
"""


def count(texts: Iterable[str]) -> dict[str, int]:
    """Return how many of the texts are each verdict."""
    return dict(Counter(text for text in texts if text in list(Verdict)))


def test_all_outputs_have_the_same_counts(perf: PerfTests) -> None:
    """Each output has the number of tests or measurements with each verdict, and red tests give exit code 1."""
    perf.write(MADE_UP)
    ended = perf.run("-v", "--junitxml=junit.xml")
    expected = {str(verdict): count for verdict, count in COUNTS.items()}
    measured = {name: number for name, number in expected.items() if name not in WITHOUT_RECORD}
    failed, errors = expected["REGRESSED"] + expected["INVALID"], expected["INFRASTRUCTURE"]
    undecided = sum(number for verdict, number in COUNTS.items() if verdict.row.outcome == "warn")
    passed = sum(COUNTS.values()) - failed - errors - undecided
    (folder,) = session_folders(perf.folder / "perf_results")

    session = json.loads((folder.path / "session.json").read_text())
    assert ended.code == session["exit_code"] == 1, ended.out
    assert session["verdicts"] == expected

    statuses = re.findall(r"(?:^| )(?:PASSED|FAILED|ERROR)(?: \((\w+)\))? +\[ *\d+%\]$", ended.out, re.MULTILINE)
    assert count(status or "PASSED" for status in statuses) == expected
    ended.line(f"{failed} failed", f"{passed} passed", f"{undecided} undecided", f"{errors} error")
    rows = [line.split() for line in ended.out.splitlines() if re.match(r"trivial b\d+ .* -?\d", line)]
    assert count(word for row in rows for word in row) == measured

    records = [json.loads(line) for line in (folder.path / "measurements.jsonl").read_text().splitlines()]
    assert count(record["verdict"] for record in records) == measured
    table = list(csv.DictReader((folder.path / "measurements.csv").read_text().splitlines()))
    assert count(row["verdict"] for row in table) == measured
    assert sum(row["tainted"] == "true" for row in table) == measured["TAINTED"]

    page = html5lib.parse((folder.path / "report.html").read_text())
    (counts,) = (each for each in page.iter(f"{HTML}ul") if each.get("class") == "counts")
    shown = ["".join(item.itertext()).split() for item in counts.iter(f"{HTML}li")]
    assert {name: int(number) for number, name in shown} == expected
    (rates,) = (each for each in page.iter(f"{HTML}table") if each.get("id") == "rates")
    assert count("".join(next(iter(row)).itertext()).strip() for row in rates.iter(f"{HTML}tr")) == measured

    summary = format_markdown_summary(SessionFolder.open(folder.path))
    assert {name: int(number) for number, name in re.findall(r"(\d+) ([A-Z_]+)", summary.splitlines()[2])} == expected

    junit = ET.parse(perf.folder / "junit.xml")
    properties = junit.iterfind(".//testcase/properties/property[@name='dtfperf_verdict']")
    assert count(each.get("value", "") for each in properties) == expected
    (suite,) = junit.iterfind(".//testsuite")
    assert (suite.get("failures"), suite.get("errors")) == (str(failed), str(errors))
    assert (len(junit.findall(".//testcase/failure")), len(junit.findall(".//testcase/error"))) == (failed, errors)

    command = ("-m", "pytest_dtfperf.cli", "history", "export", "--format=openmetrics", str(folder.path))
    metrics = perf.run_python(*command).out
    assert {name: int(n) for name, n in re.findall(r'dtfperf_tests\{.*verdict="(\w+)"\} (\d+)', metrics)} == expected
    assert metrics.count("dtfperf_rate_images_per_second{") == sum(measured.values()) - measured["TAINTED"]


def test_undecided_tests_give_exit_code_0(perf: PerfTests) -> None:
    """A session with all verdicts that fail no test ends with exit code 0, and with --strict-verdicts with 1."""
    perf.write(MADE_UP)
    without = "not REGRESSED and not INVALID and not INFRASTRUCTURE"
    assert [perf.run("-k", without, *options).code for options in ((), ("--strict-verdicts",))] == [0, 1]


def test_gravest_verdict_of_a_test_counts_once(accepted_tests: PerfTests) -> None:
    """A test with an INCONCLUSIVE check before one that passes is undecided, as its measurement is, also if its end fails."""
    accepted_tests.write(TWICE)
    ended = accepted_tests.run("-v")
    ended.line("PASSED (INCONCLUSIVE)")
    ended.line("1 undecided", "1 error")
    (folder,) = session_folders(accepted_tests.folder / "perf_results")
    assert [[check.verdict for check in record.checks] for record in folder.measurements()] == [["INCONCLUSIVE", "PASSED"]]
    assert folder.session.verdicts == {"INCONCLUSIVE": 1}


def test_undecided_test_is_not_shown_as_accepted(perf: PerfTests) -> None:
    """A rate with an INCONCLUSIVE efficiency does not become a baseline, and its test is undecided."""
    perf.write(EFFICIENCY)
    ended = perf.run("-v", "--update-baselines")
    ended.line("PASSED (INCONCLUSIVE)")
    ended.line("1 undecided")
    (folder,) = session_folders(perf.folder / "perf_results")
    assert not any(record.accepted for record in folder.measurements())
