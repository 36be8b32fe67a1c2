"""Tests of verdicts: outcomes, messages, exit codes and records."""

import json
import os
import re
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.records.session import session_folders
from pytest_dtfperf.report import markdown
from tests.plugin.conftest import Ended, PerfTests


def records(perf: PerfTests) -> list[dict[str, Any]]:
    """All measurements of the last session."""
    folder = max((perf.folder / "perf_results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]


def session(perf: PerfTests) -> dict[str, Any]:
    folder = max((perf.folder / "perf_results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    found: dict[str, Any] = json.loads((folder / "session.json").read_text())
    return found


def baseline_file(perf: PerfTests) -> Path:
    (found,) = (perf.folder / "baselines").glob("*.json")
    return found


def test_first_run_passes_and_shows_how_to_accept(perf: PerfTests) -> None:
    """On a new machine tests pass with NO_BASELINE and their rates, and the option that accepts them is shown."""
    ended = perf.run("-v")
    assert ended.code == 0
    assert ended.out.count("PASSED (NO_BASELINE)") == 2
    ended.line("1000", "gpus=1", "NO_BASELINE")
    ended.line("2000", "gpus=2", "NO_BASELINE")
    ended.line("--update-baselines=new")
    ended.line("2 undecided in")
    assert session(perf)["verdicts"] == {"NO_BASELINE": 2}
    assert not (perf.folder / "baselines").exists()


def test_measurement_without_a_trace_has_the_reason(perf: PerfTests) -> None:
    """With --explain, tasks that send no trace leave a measurement without a step breakdown and with the reason."""
    ended = perf.run("--explain", "--gpus=1")
    assert ended.code == 0
    (record,) = records(perf)
    assert [run.get("unexplained", "").endswith("cannot be traced") for run in record["runs"]] == [False, True]
    assert not any("step_breakdown" in run for run in record["runs"])


def test_strict_verdicts_fail_a_test_without_a_baseline(perf: PerfTests) -> None:
    """With --strict-verdicts a test without a baseline fails, with its own message."""
    ended = perf.run("--gpus=1", "--strict-verdicts")
    assert ended.code == 1
    ended.line("NO_BASELINE: trivial b10 gpus=1")
    assert "Traceback" not in ended.out


def test_accepted_baselines_are_written_and_shown(accepting_session: tuple[PerfTests, Ended]) -> None:
    """--update-baselines stores every run's rate with its provenance and reports what is new, and neither the output nor the
    Markdown summary reports missing baselines."""
    perf, ended = accepting_session
    assert ended.out.count("PASSED (accepted)") == 2
    ended.line("2 passed in")
    ended.line("2000", "gpus=2", "accepted")
    ended.line("trivial b10 gpus=1 num_ps=1 parameter_server: new, 1000")
    (entries,) = [e for k, e in json.loads(baseline_file(perf).read_text())["entries"].items() if "gpus=1 " in k]
    assert entries[0]["samples"] == [1000, 1000, 1000]
    assert entries[0]["provenance"]["test"] == "perf/test_perf.py::test_throughput[gpus1-ps1-parameter_server]"
    (folder,) = session_folders(perf.folder / "perf_results")
    for text in (ended.out, markdown.format_markdown_summary(folder).partition("\n\n")[2].partition("\n\n")[2]):
        assert "NO_BASELINE" not in text
        assert "no baseline" not in text
    assert [record["accepted"] for record in records(perf)] == [True, True]


def test_equal_rate_passes_with_fewest_runs(accepted_tests: PerfTests) -> None:
    """A test with the rate of its baseline passes after two of three runs, with its share of the session's false alarms, of
    which the summary shows the total with -v."""
    ended = accepted_tests.run("-v", "--gpus=1,2", "--false-alarms=0.02")
    assert ended.code == 0
    ended.line("gpus=1", "+0.0 %", "PASSED")
    ended.line("False alarms: at most 2.0 % of such sessions", "a budget shared by 2 tests")
    one, two = records(accepted_tests)
    assert (len(one["runs"]), len(two["runs"])) == (2, 2)
    for record in (one, two):
        assert record["checks"][0]["terms"]["false_alarm"] == pytest.approx(0.02 / 2 / 2)


def test_regression_fails_and_explains_itself(accepted_tests: PerfTests) -> None:
    """A slower rate fails the test with rates, baseline, margin, the step's change and the next command, without a traceback,
    an annotation of GitHub or a warning of few repeats."""
    ended = accepted_tests.run("--gpus=1", TOY_STEP_S="0.02")
    assert ended.code == 1
    ended.line("REGRESSED: trivial b10 gpus=1")
    ended.line("baseline", "1000", "-50.0 %", "margin 10.0 %")
    ended.line("  why ", "+10.0 ms per step (10.0 -> 20.0 ms)")
    ended.line("+10.0 ms   not explained")
    ended.line("rerun", "pytest --gpus=1", "test_throughput[gpus1-ps1-parameter_server]")
    ended.line("  next ", "dtfperf explain perf_results/", records(accepted_tests)[0]["id"])
    ended.line("FAILED (REGRESSED)")
    assert "Traceback" not in ended.out
    assert "def test_throughput" not in ended.out
    assert "::error" not in ended.out
    assert "too few to find" not in ended.out
    logs = Path(ended.line("  logs ").split()[1])
    assert (logs / "1" / "worker-0.log").exists()
    assert records(accepted_tests)[0]["verdict"] == "REGRESSED"


def test_measurement_is_kept_when_its_test_fails(accepted_tests: PerfTests) -> None:
    """A test that fails after training leaves the record of its measurement, without a verdict, and one that fails after a
    passed check is shown as FAILED, without a verdict."""
    accepted_tests.write(
        """
def test_checked(train, baseline):
    baseline.check(train(model="trivial", gpus=1))
    raise RuntimeError("later")

def test_trained(train):
    train(model="trivial", gpus=1, batch_size=20)
    raise RuntimeError("later")
"""
    )
    ended = accepted_tests.run("-v")
    assert ended.code == 1
    assert "FAILED" in ended.out
    assert "FAILED (PASSED)" not in ended.out
    checked, trained = records(accepted_tests)
    assert checked["verdict"] == "PASSED"
    assert trained["images_per_sec"] == pytest.approx(2000)
    assert trained["verdict"] is None


def test_improvement_passes_and_is_shown(accepted_tests: PerfTests) -> None:
    """A faster rate passes, and both the test's line and the table show it."""
    ended = accepted_tests.run("--gpus=1", "-v", TOY_STEP_S="0.005")
    assert ended.code == 0
    ended.line("PASSED (IMPROVED)")
    ended.line("+100.0 %", "IMPROVED")


def test_straddling_runs_are_inconclusive(accepted_tests: PerfTests) -> None:
    """Runs on both sides of the margin use all repeats and are INCONCLUSIVE, which passes unless verdicts are strict."""
    noise = {"TOY_NOISE": "0.15", "TOY_COUNTER": str(accepted_tests.folder / "counter")}
    ended = accepted_tests.run("--gpus=1", "-v", **noise)
    assert ended.code == 0
    ended.line("PASSED (INCONCLUSIVE)")
    ended.line("INCONCLUSIVE: trivial b10 gpus=1 num_ps=1 parameter_server: ", "against 1000 images/sec")
    assert len(records(accepted_tests)[0]["runs"]) == 3
    (accepted_tests.folder / "counter").unlink()
    assert accepted_tests.run("--gpus=1", "--strict-verdicts", **noise).code == 1


def test_slower_baseline_needs_a_reason(accepted_tests: PerfTests) -> None:
    """A regression without a reason does not become a baseline, and a message shows the option for one."""
    before = baseline_file(accepted_tests).read_bytes()
    refused = accepted_tests.run("--gpus=1", "--update-baselines", TOY_STEP_S="0.02")
    assert refused.code == 1
    refused.line("not accepted", "REGRESSED")
    refused.line("--allow-regression")
    assert baseline_file(accepted_tests).read_bytes() == before


def test_update_changes_only_the_measured_entry(accepted_tests: PerfTests) -> None:
    """Accepting one spec leaves every other entry as it was."""
    entries = json.loads(baseline_file(accepted_tests).read_text())["entries"]
    accepted_tests.run("--gpus=1", "--update-baselines", TOY_STEP_S="0.0095")
    after = json.loads(baseline_file(accepted_tests).read_text())["entries"]
    changed = [key for key in entries if after[key] != entries[key]]
    assert len(changed) == 1
    assert "gpus=1 " in changed[0]


def test_update_of_new_baselines_leaves_old_ones(accepted_tests: PerfTests) -> None:
    """--update-baselines=new leaves baselines that exist as they are, even if rates are faster."""
    before = baseline_file(accepted_tests).read_bytes()
    accepted_tests.run("--gpus=1", "--update-baselines=new", TOY_STEP_S="0.0095")
    assert baseline_file(accepted_tests).read_bytes() == before


def test_efficiency_check_writes_no_baseline(perf: PerfTests) -> None:
    """--update-baselines writes no baseline for a test that checks an efficiency only."""
    perf.write(
        """
def test_scaling(train, baseline):
    one = train(model="trivial", gpus=1)
    baseline.check_efficiency(train(model="trivial", gpus=2), anchor=one, at_least=0.9)
"""
    )
    ended = perf.run("--update-baselines")
    assert ended.code == 0
    assert "Baselines written" not in ended.out
    assert "not accepted" not in ended.out
    assert not list((perf.folder / "baselines").glob("*.json"))


def test_injected_slow_down_never_becomes_a_baseline(accepted_tests: PerfTests) -> None:
    """An injected slow-down fails the test, is named, and is refused as a baseline even with a reason."""
    before = baseline_file(accepted_tests).read_bytes()
    ended = accepted_tests.run("--gpus=1", "--update-baselines", "--allow-regression=because", DTFPERF_SLOWDOWN="worker:0=0.05")
    assert ended.code == 1
    ended.line("INJECTED SLOW-DOWN DTFPERF_SLOWDOWN=worker:0=0.05")
    ended.line("not accepted", "injected")
    assert baseline_file(accepted_tests).read_bytes() == before


def test_infinite_loss_is_invalid(perf: PerfTests) -> None:
    """A run with a NaN loss fails as INVALID, names the worker and the step, and leaves no measurement."""
    ended = perf.run("--gpus=1", TOY_LOSS="nan")
    assert ended.code == 1
    ended.line("worker:0: the loss of measured step 1 is nan")
    ended.line("FAILED (INVALID)")
    assert session(perf)["verdicts"] == {"INVALID": 1}
    assert records(perf) == []


def test_invalid_run_does_not_affect_other_specs(perf: PerfTests) -> None:
    """If one of two specs that take turns is INVALID, the record of the other has no verdict."""
    diverges = perf.folder / "diverges"
    diverges.write_text("2")
    perf.write("def test_x(train): train.in_turn({'gpus': 1}, {'gpus': 2}, model='trivial')\n")
    ended = perf.run(TOY_DIVERGES=str(diverges))
    assert ended.code == 1
    ended.line("FAILED (INVALID)")
    (one,) = records(perf)
    assert (one["spec"]["gpus"], one["verdict"], one["reason"]) == (1, None, None)


def test_invalid_further_run_is_recorded(accepted_tests: PerfTests) -> None:
    """If the further run of a check is invalid, its measurement is INVALID, and another test measures again and passes."""
    diverges = accepted_tests.folder / "diverges"
    accepted_tests.write(
        f"""
from pathlib import Path

def test_strict(train, baseline):
    measured = train(model="trivial", gpus=1)
    Path({str(diverges)!r}).write_text("1")
    try:
        baseline.check(measured, margin=0.001)
    finally:
        Path({str(diverges)!r}).unlink()

def test_other(train, baseline):
    baseline.check(train(model="trivial", gpus=1))
"""
    )
    ended = accepted_tests.run(TOY_DIVERGES=str(diverges))
    assert ended.code == 1
    ended.line("1 failed, 1 passed")
    invalid, sound = records(accepted_tests)
    assert (invalid["verdict"], len(invalid["runs"])) == ("INVALID", 2)
    assert "the loss of measured step 1 is nan" in invalid["reason"]
    assert (sound["verdict"], len(sound["runs"])) == ("PASSED", 2)


def test_dead_task_is_named(perf: PerfTests) -> None:
    """A killed task fails the test with its name, the signal, its last lines and its log."""
    ended = perf.run("--gpus=2", TOY_DO="die worker:1")
    assert ended.code == 1
    ended.line("worker:1 on", "was killed by SIGKILL")
    ended.line("| something terrible happened")
    assert Path(ended.line("whole log:").split()[-1]).read_text().strip() == "something terrible happened"


def test_efficiency_uses_an_anchor_of_the_session(perf: PerfTests) -> None:
    """The 1-device anchor of a scaling test is the measurement of another test, and the record names it."""
    perf.write()
    perf.write(
        """
import pytest

@pytest.mark.dtfperf(min_gpus=2)
def test_scaling(train, baseline, gpus):
    baseline.check_efficiency(train(model="trivial", gpus=gpus), anchor=train(model="trivial", gpus=1), at_least=0.9)
""",
        "test_zscaling.py",
    )
    ended = perf.run()
    assert ended.code == 0
    ended.line("gpus=2", "100.0 %")
    found = {record["spec"]["gpus"]: record for record in records(perf)}
    assert len(records(perf)) == 2
    assert (found[2]["efficiency"], found[2]["anchor"]) == (pytest.approx(1.0), found[1]["id"])


def test_poor_efficiency_fails(perf: PerfTests) -> None:
    """Efficiency below the threshold fails the test and names the anchor."""
    perf.write(
        """
def test_scaling(train, baseline):
    one = train(model="trivial", gpus=1)
    baseline.check_efficiency(train(model="trivial", gpus=2), anchor=one, at_least=1.5)
"""
    )
    ended = perf.run()
    assert ended.code == 1
    ended.line("efficiency 100.0 % of 2 devices", "relative to trivial b10 gpus=1", "at least 150.0 %")


def test_stored_session_is_judged_with_the_same_result(accepted_tests: PerfTests, capsys: pytest.CaptureFixture[str]) -> None:
    """`dtfperf judge` gives the same records, byte for byte, without the baseline file."""
    perf_tests = """
import pytest

@pytest.mark.dtfperf(min_gpus=2)
def test_scaling(train, baseline, gpus):
    one, many = train.in_turn({"gpus": 1}, {"gpus": gpus}, model="trivial")
    baseline.check_efficiency(many, anchor=one, at_least=0.9)
"""
    accepted_tests.write(perf_tests, "test_zscaling.py")
    accepted_tests.run("--gpus=1,2", TOY_STEP_S="0.02")
    baseline_file(accepted_tests).unlink()
    folder = max((accepted_tests.folder / "perf_results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert main(["judge", "--json", str(folder)]) == 1
    assert capsys.readouterr().out.encode() == (folder / "measurements.jsonl").read_bytes()
    assert sorted(record["verdict"] for record in records(accepted_tests)) == ["REGRESSED", "REGRESSED"]


def test_compared_specs_take_turns(perf: PerfTests) -> None:
    """in_turn makes a run of each spec in turn, in the opposite order in the second round, and measures none twice."""
    perf.write("def test_x(train):\n    train.in_turn({'gpus': 1}, {'gpus': 2}, {'gpus': 1}, model='trivial')\n")
    ended = perf.run()
    starts = re.findall(r": trivial b10 (gpus=\d) .*\.\.\.\n", ended.out)
    assert starts == ["gpus=1", "gpus=2", "gpus=2", "gpus=1"]


def test_close_efficiency_is_measured_again(perf: PerfTests) -> None:
    """If two runs do not decide a check of efficiency, both specs are measured until the repeats are used."""
    perf.write(
        """
def test_scaling(train, baseline):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial")
    baseline.check_efficiency(two, anchor=one, at_least=1.0)
"""
    )
    ended = perf.run("-v")
    ended.line("PASSED (INCONCLUSIVE)")
    assert [len(record["runs"]) for record in records(perf)] == [3, 3]


def test_second_check_uses_further_runs(accepted_tests: PerfTests) -> None:
    """The further runs of one check are used by the next, which computes its change from all runs."""
    accepted_tests.write(
        """
def test_scaling(train, baseline):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial")
    baseline.check_efficiency(two, anchor=one, at_least=1.0)
    baseline.check(two)
    baseline.check(one)
"""
    )
    accepted_tests.run(TOY_NOISE="0.001", TOY_COUNTER=str(accepted_tests.folder / "counter"))
    one, two = records(accepted_tests)
    assert [len(record["runs"]) for record in (one, two)] == [3, 3]
    assert [check["runs"] for record in (one, two) for check in record["checks"]] == [3, 3, 3]
    for record, stored in ((one, 1000), (two, 2000)):
        mean = statistics.geometric_mean(run["images_per_sec"] for run in record["runs"])
        assert record["change"] == pytest.approx(mean / stored - 1)


def test_declared_checks_share_the_budget_evenly(accepted_tests: PerfTests) -> None:
    """Both checks of a test with checks=2 have half of its share, and a third check fails the test with a message."""
    test = """
import pytest
@pytest.mark.dtfperf(checks={checks})
def test_twice(train, baseline):
    measured = train(model="trivial")
    for _ in range({made}):
        baseline.check(measured)
"""
    accepted_tests.write(test.format(checks=2, made=2))
    accepted_tests.run()
    (record,) = records(accepted_tests)
    assert [check["terms"]["false_alarm"] for check in record["checks"]] == [pytest.approx(0.05 / 2)] * 2
    accepted_tests.write(test.format(checks=2, made=3))
    ended = accepted_tests.run()
    assert ended.code == 1
    ended.line("check 3 of a test that declares checks=2", "dtfperf(checks=3)")


def test_too_few_repeats_are_reported(accepted_tests: PerfTests) -> None:
    """With --repeats=1 one line warns that a slower rate needs 3 runs, and the verdict is INCONCLUSIVE with that reason."""
    ended = accepted_tests.run("--gpus=1", "--repeats=1", TOY_STEP_S="0.03")
    assert ended.out.count("repeats=1 is too few to find a slower rate: it takes 3 runs to confirm one") == 1
    (record,) = records(accepted_tests)
    assert record["verdict"] == "INCONCLUSIVE"
    assert "it is worse, but 3 runs are needed to confirm that (--repeats=3)" in record["reason"]
    assert "lies within" not in record["reason"]


def test_margin_option_overrides_other_margins(accepted_tests: PerfTests) -> None:
    """--margin overrides the margin of the cluster."""
    accepted_tests.run("--gpus=1", "--margin=0.4", TOY_STEP_S="0.0125")
    (record,) = records(accepted_tests)
    assert (record["verdict"], record["checks"][-1]["terms"]["margin"]) == ("PASSED", 0.4)


WHILE_BUSY = """
from pathlib import Path

def test_throughput(train, baseline, gpus):
    Path("busy").touch()
    baseline.check(train(model="trivial", gpus=gpus, num_ps=1, variable_update="parameter_server"))
    Path("busy").unlink()
"""
BUSY = """
import os, time
while not os.path.exists("busy"):
    time.sleep(0.01)
while os.path.exists("busy"):
    sum(range(10_000))
"""


def test_busy_host_taints_a_measurement(accepted_tests: PerfTests) -> None:
    """If other processes use all cores, each run is disturbed, one more than the fewest is made, and the verdict is TAINTED
    with the reason."""
    clusters = accepted_tests.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("dedicated = false", "dedicated = true"))
    accepted_tests.write(WHILE_BUSY)
    command = [sys.executable, "-c", BUSY]
    busy = [subprocess.Popen(command, cwd=accepted_tests.folder) for _ in range(os.cpu_count() or 1)]
    try:
        ended = accepted_tests.run("--gpus=2", "-v", TOY_WALL_S="0.2")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert ended.code == 0
    ended.line("PASSED (TAINTED)")
    (record,) = records(accepted_tests)
    assert len(record["runs"]) == 3
    assert "every run of trivial b10 gpus=2" in record["reason"]
    assert "other processes used" in record["reason"]
    ended.line("TAINTED: every run of trivial b10 gpus=2", "other processes used")


def test_published_rate_of_other_hardware_is_incomparable(perf: PerfTests) -> None:
    """A published rate of other hardware is INCOMPARABLE with both names, and an unknown system or number fails the test."""
    perf.write(
        """
def test_dgx1(train, baseline):
    baseline.check_published(train(model="inception3", gpus=1, batch_size=64), system="dgx1")

def test_unknown(train, baseline):
    baseline.check_published(train(model="inception3", gpus=1, batch_size=64), system="dgx2")

def test_none(train, baseline):
    baseline.check_published(train(model="trivial", gpus=1), system="dgx1")
"""
    )
    ended = perf.run("-v")
    assert ended.code == 1
    ended.line("PASSED (INCOMPARABLE)")
    ended.line(
        "INCOMPARABLE: inception3", "Google 2017-05, DGX-1 / Results was measured on hosts of 8 x NVIDIA Tesla P100, this on"
    )
    ended.line("unknown published system 'dgx2'", "Did you mean 'dgx1'?")
    ended.line("0 published numbers of dgx1 have gpus=1, model=trivial")


@pytest.mark.parametrize(
    "how", [["--color=yes"], ["-q", "--color=yes"], ["-n2", "--color=yes"]], ids=["alone", "quiet", "xdist"]
)
def test_last_line_counts_undecided_tests(accepted_tests: PerfTests, how: list[str]) -> None:
    """Tests without a decision are counted separately from passed ones, and the last line is yellow."""
    accepted_tests.write(
        "def test_decided(train, baseline): baseline.check(train(model='trivial', gpus=1))\n"
        "def test_open(train, baseline): baseline.check(train(model='trivial', gpus=1, batch_size=7))\n"
    )
    ended = accepted_tests.run("--color=yes", *how)
    assert ended.code == 0
    last = [line for line in ended.out.splitlines() if "undecided" in line][-1]
    assert re.sub(r"\x1b\[[0-9;]*m", "", last).strip("= ").startswith("1 passed, 1 undecided in ")
    assert "\x1b[33m\x1b[1m1 undecided" in last


def test_junit_has_errors_and_failures(accepted_tests: PerfTests) -> None:
    """A lost agent is INFRASTRUCTURE, an error in the terminal and in JUnit XML, and a regression is a failure with its step's
    change."""
    accepted_tests.write(
        """
def test_lost(train, monkeypatch):
    monkeypatch.setenv("TOY_DO", "lose agent")
    train(model="trivial", gpus=1)

def test_slow(train, baseline, monkeypatch):
    monkeypatch.setenv("TOY_STEP_S", "0.02")
    baseline.check(train(model="trivial", gpus=1))
"""
    )
    ended = accepted_tests.run("-v", "--junitxml=junit.xml")
    assert ended.code == 1
    ended.line("ERROR (INFRASTRUCTURE)")
    ended.line("1 failed, 1 error")
    assert session(accepted_tests)["verdicts"] == {"INFRASTRUCTURE": 1, "REGRESSED": 1}
    suite = ET.parse(accepted_tests.folder / "junit.xml").getroot().find(".//testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "errors", "failures")} == {"tests": "2", "errors": "1", "failures": "1"}
    found = {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in suite.iter("testcase")}
    assert found == {"test_lost": ["error"], "test_slow": ["failure", "system-out"]}
    why = suite.findtext(".//system-out") or ""
    assert why.splitlines()[0] == "+10.0 ms per step (10.0 -> 20.0 ms)"
    assert why.splitlines()[1] == "+10.0 ms   not explained"


def test_regression_has_numbers_in_junit_and_an_annotation_in_github(accepted_tests: PerfTests) -> None:
    """JUnit XML has the failure, verdict, rate, runs and limit of a regressed test, as its record has them, and in GitHub
    Actions a line annotates the test's file."""
    github = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(accepted_tests.folder.parent)}
    ended = accepted_tests.run("--gpus=1", "--junitxml=junit.xml", "--explain=auto", TOY_STEP_S="0.02", **github)
    assert ended.code == 1
    (line,) = [line for line in ended.out.splitlines() if line.startswith("::")]
    assert re.match(rf"::error file={accepted_tests.folder.name}/\S+\.py,line=\d+,title=REGRESSED%3A .* gpus=1 ", line)
    (case,) = cases(accepted_tests)
    properties = properties_of(case)
    assert properties["dtfperf_verdict"] == "REGRESSED"
    (record,) = records(accepted_tests)
    assert record["images_per_sec"] == pytest.approx(500)
    label = "dtfperf trivial b10 gpus=1 num_ps=1 parameter_server: "
    assert {name.removeprefix(label): value for name, value in properties.items() if name.startswith(label)} == {
        "images_per_sec": str(record["images_per_sec"]),
        "runs": str(len(record["runs"])),
        "limit": str(record["limit"]["images_per_sec"]),
        "share_of_limit": str(record["share_of_limit"]),
        "bound_by": "cores",
    }
    assert case.find("failure") is not None


def test_junit_counts_further_runs(perf: PerfTests) -> None:
    """After further runs of a measurement and its anchor JUnit XML has the number and rate of all runs."""
    perf.write(
        """
def test_scales(train, baseline):
    one, two = train(model="trivial", gpus=1), train(model="trivial", gpus=2)
    baseline.check_efficiency(two, anchor=one, at_least=0.97)
"""
    )
    perf.run("--junitxml=junit.xml", TOY_NOISE="0.02", TOY_COUNTER=str(perf.folder / "counter"))
    (case,) = cases(perf)
    found = records(perf)
    assert [len(record["runs"]) > 2 for record in found] == [True, True]
    properties = properties_of(case)
    for record in found:
        label = f"dtfperf trivial b10 gpus={record['spec']['gpus']} num_ps=1 parameter_server"
        assert properties[f"{label}: runs"] == str(len(record["runs"]))
        assert properties[f"{label}: images_per_sec"] == str(record["images_per_sec"])


def test_junit_separates_trainings_of_one_label(perf: PerfTests) -> None:
    """Two trainings of a test with the same short label have separate rates, named by the fields that differ, and no limit
    without a probe of the hosts."""
    perf.write(
        """
def test_both(train):
    for optimizer in ("sgd", "momentum"):
        train(model="trivial", gpus=1, optimizer=optimizer)
"""
    )
    perf.run("--junitxml=junit.xml")
    (case,) = cases(perf)
    properties = properties_of(case)
    label = "dtfperf trivial b10 gpus=1 num_ps=1 parameter_server optimizer="
    assert properties == {
        f"{label}{record['spec']['optimizer']}: {name}": str(value)
        for record in records(perf)
        for name, value in (("images_per_sec", record["images_per_sec"]), ("runs", len(record["runs"])))
    }


def cases(perf: PerfTests) -> list[ET.Element]:
    return list(ET.parse(perf.folder / "junit.xml").getroot().iter("testcase"))


def properties_of(case: ET.Element) -> dict[str, str]:
    found = [(str(each.get("name")), str(each.get("value"))) for each in case.iter("property")]
    assert len(dict(found)) == len(found), "one stands there twice"
    return dict(found)


def test_session_folder_is_complete(perf: PerfTests) -> None:
    """A session leaves its command, exit code, a CSV file with the ideal line, a figure and a page."""
    perf.draws = True
    ended = perf.run()
    folder = Path(ended.line("Session folder:").split()[-1])
    assert session(perf)["exit_code"] == 0
    assert session(perf)["command"][0] == "pytest"
    assert (folder / "trivial_b10.csv").read_text().splitlines()[2].startswith("2,2000,2000,1,1,parameter_server,synthetic")
    assert (folder / "figures" / "trivial_b10.svg").read_text().startswith("<?xml")
    assert Path(ended.line("Report:").split()[-1]).samefile(folder / "report.html")
    assert '<td data-label="images/sec">2000' in (folder / "report.html").read_text()


def test_best_parameter_server_count_without_baselines_fails(perf: PerfTests) -> None:
    """--num-ps=best without a baseline fails and names the sweep."""
    unknown = perf.run("--gpus=2", "--num-ps=best")
    assert unknown.code == 1
    unknown.line("--num-ps=sweep")


def test_unused_hosts_do_not_affect_the_baseline(accepted_tests: PerfTests) -> None:
    """A run on one host of an allocation of two passes against the baseline of one host."""
    clusters = accepted_tests.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("devices_per_host = 2", "devices_per_host = 2\nhosts = 2"))
    accepted_tests.run("--gpus=1,4").line("trivial b10 gpus=1", "1000", "PASSED")
    one, four = records(accepted_tests)
    assert (len(one["hosts"]), len(four["hosts"])) == (1, 2)
    assert one["fingerprint"]["placement"]["granted"] == ["1 node"]
    assert four["fingerprint"]["placement"]["granted"] == ["2 nodes"]


def test_missing_module_on_a_host_skips_a_test(perf: PerfTests) -> None:
    """A test of a mode with a missing module is skipped, with the host, the module and the command that installs it."""
    ended = perf.run("-rs", "--variable-update=horovod")
    assert ended.code == 0
    assert "2 skipped" in ended.out
    ended.line("SKIPPED", "worker:0 on", "has no module horovod.tensorflow, which variable_update=horovod needs", "pip install")
