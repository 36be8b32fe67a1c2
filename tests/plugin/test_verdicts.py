"""Verdicts from the user's view: outcomes, messages, exit codes, and records."""

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


def test_first_run_passes_and_says_how_to_accept(perf: PerfTests) -> None:
    """On a new machine tests pass with NO_BASELINE, the rates are the cluster's, and the way to accept them is shown."""
    ended = perf.run("-v")
    assert ended.code == 0
    assert ended.out.count("PASSED (NO_BASELINE)") == 2
    ended.line("1000", "gpus=1", "NO_BASELINE")
    ended.line("2000", "gpus=2", "NO_BASELINE")
    ended.line("--update-baselines=new")
    ended.line("2 undecided in")
    assert session(perf)["verdicts"] == {"NO_BASELINE": 2}
    assert not (perf.folder / "baselines").exists()


def test_github_shows_a_regression_beside_its_test(perf: PerfTests) -> None:
    """In GitHub Actions a failed test has a line that becomes an annotation of its file; elsewhere there is none."""
    perf.run("--gpus=1", "--update-baselines")
    workspace = str(perf.folder.parent)
    here = perf.run("--gpus=1", TOY_STEP_S="0.02", GITHUB_ACTIONS="true", GITHUB_WORKSPACE=workspace)
    (line,) = [line for line in here.out.splitlines() if line.startswith("::")]
    assert re.match(rf"::error file={perf.folder.name}/\S+\.py,line=\d+,title=REGRESSED%3A .* gpus=1 ", line)
    elsewhere = perf.run("--gpus=1", TOY_STEP_S="0.02")
    assert elsewhere.code == here.code == 1
    assert "::error" not in elsewhere.out


def test_what_cannot_be_explained_is_measured_all_the_same(perf: PerfTests) -> None:
    """With --explain, tasks that send no trace cost a measurement its step breakdown, with a reason, and nothing else."""
    ended = perf.run("--explain", "--gpus=1")
    assert ended.code == 0
    (record,) = records(perf)
    assert [run.get("unexplained", "").endswith("cannot be traced") for run in record["runs"]] == [False, True]
    assert not any("step_breakdown" in run for run in record["runs"])


def test_strict_verdicts_fail_what_proves_nothing(perf: PerfTests) -> None:
    """With --strict-verdicts a test without a baseline fails, with its own message."""
    ended = perf.run("--strict-verdicts")
    assert ended.code == 1
    ended.line("NO_BASELINE: trivial b10 gpus=1")
    assert "Traceback" not in ended.out


def test_accepted_baselines_are_written_and_shown(perf: PerfTests) -> None:
    """--update-baselines stores every run's rate with its provenance, and reports what is new."""
    ended = perf.run("--update-baselines")
    ended.line("trivial b10 gpus=1 num_ps=1 parameter_server: new, 1000")
    (entries,) = [e for k, e in json.loads(baseline_file(perf).read_text())["entries"].items() if "gpus=1 " in k]
    assert entries[0]["samples"] == [1000, 1000, 1000]
    assert entries[0]["provenance"]["test"] == "perf/test_perf.py::test_throughput[gpus1-ps1-parameter_server]"


def test_equal_rate_passes_with_fewest_runs(accepted: PerfTests) -> None:
    """What is as fast as its baseline passes as soon as two runs agree, though three may be made."""
    ended = accepted.run()
    assert ended.code == 0
    ended.line("gpus=1", "+0.0 %", "PASSED")
    assert [len(record["runs"]) for record in records(accepted)] == [2, 2]


def test_regression_fails_and_explains_itself(accepted: PerfTests) -> None:
    """A slower rate fails the test with rates, baseline, margin, the step's change and how to go on, without a traceback."""
    ended = accepted.run("--gpus=1", TOY_STEP_S="0.02")
    assert ended.code == 1
    ended.line("REGRESSED: trivial b10 gpus=1")
    ended.line("baseline", "1000", "-50.0 %", "margin 10.0 %")
    ended.line("  why ", "+10.0 ms per step (10.0 -> 20.0 ms)")
    ended.line("+10.0 ms   not explained")
    ended.line("rerun", "pytest --gpus=1", "test_throughput[gpus1-ps1-parameter_server]")
    ended.line("  next ", "dtfperf explain perf_results/", records(accepted)[0]["id"])
    ended.line("FAILED (REGRESSED)")
    assert "Traceback" not in ended.out
    assert "def test_throughput" not in ended.out
    logs = Path(ended.line("  logs ").split()[1])
    assert (logs / "1" / "worker-0.log").exists()
    assert records(accepted)[0]["verdict"] == "REGRESSED"


def test_a_failure_of_something_else_is_not_its_verdicts(accepted: PerfTests) -> None:
    """A test that fails after a passed check is shown as FAILED, and not as passed."""
    accepted.write(
        "def test_x(train, baseline):\n    baseline.check(train(model='trivial', gpus=1))\n    raise RuntimeError('later')\n"
    )
    ended = accepted.run("-v")
    assert ended.code == 1
    assert "FAILED" in ended.out
    assert "FAILED (PASSED)" not in ended.out


def test_improvement_passes_aloud(accepted: PerfTests) -> None:
    """A faster rate passes, and both the test's line and the table show it."""
    ended = accepted.run("--gpus=1", "-v", TOY_STEP_S="0.005")
    assert ended.code == 0
    ended.line("PASSED (IMPROVED)")
    ended.line("+100.0 %", "IMPROVED")


def test_straddling_runs_are_inconclusive(accepted: PerfTests) -> None:
    """Runs on both sides of the margin spend all repeats and end INCONCLUSIVE: a pass, but not a strict one."""
    noise = {"TOY_NOISE": "0.15", "TOY_COUNTER": str(accepted.folder / "counter")}
    ended = accepted.run("--gpus=1", "-v", **noise)
    assert ended.code == 0
    ended.line("PASSED (INCONCLUSIVE)")
    ended.line("INCONCLUSIVE: trivial b10 gpus=1 num_ps=1 parameter_server: ", "against 1000 images/sec")
    assert len(records(accepted)[0]["runs"]) == 3
    (accepted.folder / "counter").unlink()
    assert accepted.run("--gpus=1", "--strict-verdicts", **noise).code == 1


def test_slower_baseline_needs_a_reason(accepted: PerfTests) -> None:
    """A regression becomes no baseline without a reason, and a message shows how to give one; test_accepting.py gives one."""
    before = baseline_file(accepted).read_bytes()
    refused = accepted.run("--gpus=1", "--update-baselines", TOY_STEP_S="0.02")
    assert refused.code == 1
    refused.line("not accepted", "REGRESSED")
    refused.line("--allow-regression")
    assert baseline_file(accepted).read_bytes() == before


def test_update_touches_only_what_ran(accepted: PerfTests) -> None:
    """Accepting one spec leaves every other entry as it was, to the byte."""
    entries = json.loads(baseline_file(accepted).read_text())["entries"]
    accepted.run("--gpus=1", "--update-baselines", TOY_STEP_S="0.0095")
    after = json.loads(baseline_file(accepted).read_text())["entries"]
    changed = [key for key in entries if after[key] != entries[key]]
    assert len(changed) == 1
    assert "gpus=1 " in changed[0]


def test_new_only_leaves_old_baselines(accepted: PerfTests) -> None:
    """--update-baselines=new adds what has no baseline and leaves what has one, even if it got faster."""
    before = baseline_file(accepted).read_bytes()
    accepted.run("--update-baselines=new", TOY_STEP_S="0.0095")
    assert baseline_file(accepted).read_bytes() == before


def test_what_was_held_against_a_threshold_alone_is_no_baseline(perf: PerfTests) -> None:
    """--update-baselines accepts what `check` compares with baselines, not what passed an efficiency or accuracy threshold."""
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


def test_an_injected_slow_down_fails_and_never_becomes_a_baseline(accepted: PerfTests) -> None:
    """An injected slow-down fails the test, is named, and is refused as a baseline whatever reason is given."""
    before = baseline_file(accepted).read_bytes()
    ended = accepted.run("--update-baselines", "--allow-regression=because", DTFPERF_SLOWDOWN="worker:0=0.05")
    assert ended.code == 1
    ended.line("INJECTED SLOW-DOWN DTFPERF_SLOWDOWN=worker:0=0.05")
    ended.line("not accepted", "injected")
    assert baseline_file(accepted).read_bytes() == before


def test_infinite_loss_is_invalid(perf: PerfTests) -> None:
    """A run with a NaN loss fails as INVALID, names the worker and the step, and leaves no measurement."""
    ended = perf.run("--gpus=1", TOY_LOSS="nan")
    assert ended.code == 1
    ended.line("worker:0: the loss of measured step 1 is nan")
    ended.line("FAILED (INVALID)")
    assert session(perf)["verdicts"] == {"INVALID": 1}
    assert records(perf) == []


def test_only_what_is_invalid_is_called_so(perf: PerfTests) -> None:
    """Of specs that take turns, one with an inconsistent run does not affect the other's earlier runs."""
    diverges = perf.folder / "diverges"
    diverges.write_text("2")
    perf.write("def test_x(train): train.in_turn({'gpus': 1}, {'gpus': 2}, model='trivial')\n")
    ended = perf.run(TOY_DIVERGES=str(diverges))
    assert ended.code == 1
    ended.line("FAILED (INVALID)")
    (one,) = records(perf)
    assert (one["spec"]["gpus"], one["verdict"], one["reason"]) == (1, None, None)


def test_a_further_run_that_is_invalid_is_written_down(accepted: PerfTests) -> None:
    """Where a check asks for one more run, and that cannot be true, the measurement is INVALID, and no test builds upon it."""
    diverges = accepted.folder / "diverges"
    accepted.write(
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
    ended = accepted.run(TOY_DIVERGES=str(diverges))
    assert ended.code == 1
    ended.line("1 failed, 1 passed")
    invalid, sound = records(accepted)
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


def test_lost_agent_is_an_error_not_a_failure(perf: PerfTests) -> None:
    """A cluster that fails is INFRASTRUCTURE: an error, never a regression, and the next test can train again."""
    ended = perf.run("--gpus=1", "-v", TOY_DO="lose agent")
    assert ended.code == 1
    ended.line("ERROR (INFRASTRUCTURE)")
    ended.line("1 error")
    assert session(perf)["verdicts"] == {"INFRASTRUCTURE": 1}


def test_measurement_is_kept_when_judging_fails(perf: PerfTests) -> None:
    """What was measured is on disk before anything is judged: a test that breaks after training loses nothing."""
    perf.write("def test_x(train):\n    train(model='trivial', gpus=1)\n    raise RuntimeError('later')\n")
    assert perf.run().code == 1
    (record,) = records(perf)
    assert record["images_per_sec"] == pytest.approx(1000)
    assert record["verdict"] is None


def test_efficiency_is_anchored_in_the_session(perf: PerfTests) -> None:
    """The 1-device anchor of a scaling test is the measurement another test of the session made; it is named in the record."""
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


def test_stored_sessions_are_judged_again_to_the_byte(accepted: PerfTests, capsys: pytest.CaptureFixture[str]) -> None:
    """`dtfperf judge` repeats the verdicts of a session's folder, independent of later baselines."""
    perf_tests = """
import pytest

@pytest.mark.dtfperf(min_gpus=2)
def test_scaling(train, baseline, gpus):
    one, many = train.in_turn({"gpus": 1}, {"gpus": gpus}, model="trivial")
    baseline.check_efficiency(many, anchor=one, at_least=0.9)
"""
    accepted.write(perf_tests, "test_zscaling.py")
    accepted.run("--gpus=1,2", TOY_STEP_S="0.02")
    baseline_file(accepted).unlink()
    folder = max((accepted.folder / "perf_results").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    assert main(["judge", "--json", str(folder)]) == 1
    assert capsys.readouterr().out.encode() == (folder / "measurements.jsonl").read_bytes()
    assert sorted(record["verdict"] for record in records(accepted)) == ["REGRESSED", "REGRESSED"]


def test_specs_that_are_compared_take_turns(perf: PerfTests) -> None:
    """in_turn makes a run of each in turn, the other way round in every second round, and measures none twice."""
    perf.write("def test_x(train):\n    train.in_turn({'gpus': 1}, {'gpus': 2}, {'gpus': 1}, model='trivial')\n")
    ended = perf.run()
    starts = re.findall(r": trivial b10 (gpus=\d) .*\.\.\.\n", ended.out)
    assert starts == ["gpus=1", "gpus=2", "gpus=2", "gpus=1"]


def test_close_efficiency_is_measured_again(perf: PerfTests) -> None:
    """Where two runs do not decide, a check of efficiency has both measured on, in turn, until the repeats are spent."""
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


def test_a_second_check_is_of_the_further_runs_too(accepted: PerfTests) -> None:
    """Further runs of one check are available to the next, which computes its change from all runs."""
    accepted.write(
        """
def test_scaling(train, baseline):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial")
    baseline.check_efficiency(two, anchor=one, at_least=1.0)
    baseline.check(two)
    baseline.check(one)
"""
    )
    accepted.run(TOY_NOISE="0.001", TOY_COUNTER=str(accepted.folder / "counter"))
    one, two = records(accepted)
    assert [len(record["runs"]) for record in (one, two)] == [3, 3]
    assert [check["runs"] for record in (one, two) for check in record["checks"]] == [3, 3, 3]
    for record, stored in ((one, 1000), (two, 2000)):
        mean = statistics.geometric_mean(run["images_per_sec"] for run in record["runs"])
        assert record["change"] == pytest.approx(mean / stored - 1)


def test_budget_of_false_alarms_is_shared(accepted: PerfTests) -> None:
    """Each test is judged at its part of the session's false alarms, and with -v the summary shows their total."""
    ended = accepted.run("-v", "--gpus=1,2", "--false-alarms=0.02")
    ended.line("False alarms: at most 2.0 % of such sessions", "a budget shared by 2 tests")
    assert [record["checks"][0]["terms"]["false_alarm"] for record in records(accepted)] == [pytest.approx(0.02 / 2 / 2)] * 2


def test_declared_checks_share_the_budget_evenly(accepted: PerfTests) -> None:
    """Both checks of a test with checks=2 have half of its part; a third is refused in one line."""
    test = """
import pytest
@pytest.mark.dtfperf(checks={checks})
def test_twice(train, baseline):
    measured = train(model="trivial")
    for _ in range({made}):
        baseline.check(measured)
"""
    accepted.write(test.format(checks=2, made=2))
    accepted.run()
    (record,) = records(accepted)
    assert [check["terms"]["false_alarm"] for check in record["checks"]] == [pytest.approx(0.05 / 2)] * 2
    accepted.write(test.format(checks=2, made=3))
    ended = accepted.run()
    assert ended.code == 1
    ended.line("check 3 of a test that declares checks=2", "dtfperf(checks=3)")


def test_too_few_repeats_are_said_at_the_start(accepted: PerfTests) -> None:
    """--repeats=1 cannot confirm a loss: one line warns first, and the reason has the number of runs needed."""
    ended = accepted.run("--gpus=1", "--repeats=1", TOY_STEP_S="0.03")
    assert ended.out.count("repeats=1 is too few to find a slower rate: it takes 3 runs to confirm one") == 1
    (record,) = records(accepted)
    assert record["verdict"] == "INCONCLUSIVE"
    assert "it is worse, but 3 runs are needed to confirm that (--repeats=3)" in record["reason"]
    assert "lies within" not in record["reason"]
    enough = accepted.run("--gpus=1", "--repeats=3", TOY_STEP_S="0.03")
    assert enough.code == 1
    assert "too few to find" not in enough.out


def test_margin_on_the_command_line_goes_first(accepted: PerfTests) -> None:
    """--margin decides before the test's, the baseline file's and the cluster's."""
    accepted.run("--gpus=1", "--margin=0.4", TOY_STEP_S="0.0125")
    (record,) = records(accepted)
    assert (record["verdict"], record["checks"][-1]["terms"]["margin"]) == ("PASSED", 0.4)


def test_busy_hosts_taint_what_is_measured(accepted: PerfTests) -> None:
    """While others keep all cores busy, no run is believed: one more than the fewest is made, and the reason names them."""
    clusters = accepted.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("alone = false", "alone = true"))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        ended = accepted.run("--gpus=2", "-v", TOY_WALL_S="0.2")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert ended.code == 0
    ended.line("PASSED (TAINTED)")
    (record,) = records(accepted)
    assert len(record["runs"]) == 3
    assert "every run of trivial b10 gpus=2" in record["reason"]
    assert "other processes used" in record["reason"]
    ended.line("TAINTED: every run of trivial b10 gpus=2", "other processes used")


def test_published_rates_are_for_the_hardware_they_were_published_of(perf: PerfTests) -> None:
    """check_published finds the one published rate of such a training; on other hardware only that is reported."""
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
def test_the_last_line_counts_what_is_left_undecided(accepted: PerfTests, how: list[str]) -> None:
    """Tests that decided nothing are no green passes: they are counted by themselves, and the line is yellow."""
    accepted.write(
        "def test_decided(train, baseline): baseline.check(train(model='trivial', gpus=1))\n"
        "def test_open(train, baseline): baseline.check(train(model='trivial', gpus=1, batch_size=7))\n"
    )
    ended = accepted.run("--color=yes", *how)
    assert ended.code == 0
    last = [line for line in ended.out.splitlines() if "undecided" in line][-1]
    assert re.sub(r"\x1b\[[0-9;]*m", "", last).strip("= ").startswith("1 passed, 1 undecided in ")
    assert "\x1b[33m\x1b[1m1 undecided" in last


def test_what_was_accepted_lacks_nothing(perf: PerfTests) -> None:
    """After a session has stored baselines, no output of it claims that there are none, nor does the Markdown summary."""
    ended = perf.run("-v", "--update-baselines=new")
    assert ended.code == 0
    assert ended.out.count("PASSED (accepted)") == 2
    ended.line("2 passed in")
    ended.line("2000", "gpus=2", "accepted")
    (folder,) = session_folders(perf.folder / "perf_results")
    for text in (ended.out, markdown.format_markdown_summary(folder).partition("\n\n")[2].partition("\n\n")[2]):
        assert "NO_BASELINE" not in text
        assert "no baseline" not in text
    assert [record["accepted"] for record in records(perf)] == [True, True]


def test_a_place_that_failed_is_an_error_in_junit(accepted: PerfTests) -> None:
    """INFRASTRUCTURE is an error in the XML file, too, and is counted as one; what regressed is a failure."""
    accepted.write(
        """
def test_lost(train, monkeypatch):
    monkeypatch.setenv("TOY_DO", "lose agent")
    train(model="trivial", gpus=1)

def test_slow(train, baseline, monkeypatch):
    monkeypatch.setenv("TOY_STEP_S", "0.02")
    baseline.check(train(model="trivial", gpus=1))
"""
    )
    accepted.run("--junitxml=junit.xml")
    suite = ET.parse(accepted.folder / "junit.xml").getroot().find(".//testsuite")
    assert suite is not None
    assert {name: suite.get(name) for name in ("tests", "errors", "failures")} == {"tests": "2", "errors": "1", "failures": "1"}
    found = {case.get("name"): [child.tag for child in case if child.tag != "properties"] for case in suite.iter("testcase")}
    assert found == {"test_lost": ["error"], "test_slow": ["failure", "system-out"]}
    why = suite.findtext(".//system-out") or ""
    assert why.splitlines()[0] == "+10.0 ms per step (10.0 -> 20.0 ms)"
    assert why.splitlines()[1] == "+10.0 ms   not explained"


def test_junit_carries_numbers_and_verdict(accepted: PerfTests) -> None:
    """JUnit XML has the failure and verdict of a regressed test, its rate and the limit beside that, as its record has them."""
    accepted.run("--gpus=1", "--junitxml=junit.xml", "--explain=auto", TOY_STEP_S="0.02")
    (case,) = cases(accepted)
    properties = properties_of(case)
    assert properties["dtfperf_verdict"] == "REGRESSED"
    (record,) = records(accepted)
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


def test_junit_has_no_limit_where_none_is_known(perf: PerfTests) -> None:
    """Where no host was probed there is no property of a limit, instead of one without a number."""
    perf.run("--gpus=1", "--junitxml=junit.xml", "--explain=never")
    (case,) = cases(perf)
    label = "dtfperf trivial b10 gpus=1 num_ps=1 parameter_server: "
    assert properties_of(case).keys() == {"dtfperf_verdict", f"{label}images_per_sec", f"{label}runs"}


def test_junit_counts_further_runs(perf: PerfTests) -> None:
    """Where a check has asked for further runs, of the measurement and of its anchor, JUnit XML has the rate of all of them."""
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


def test_junit_tells_trainings_of_one_label_apart(perf: PerfTests) -> None:
    """Two trainings of a test with the same short label have separate numbers, named by the fields that differ."""
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
    for record in records(perf):
        label = f"dtfperf trivial b10 gpus=1 num_ps=1 parameter_server optimizer={record['spec']['optimizer']}"
        assert properties[f"{label}: images_per_sec"] == str(record["images_per_sec"])
    assert len([name for name in properties if name.endswith(": images_per_sec")]) == 2


def cases(perf: PerfTests) -> list[ET.Element]:
    return list(ET.parse(perf.folder / "junit.xml").getroot().iter("testcase"))


def properties_of(case: ET.Element) -> dict[str, str]:
    found = [(str(each.get("name")), str(each.get("value"))) for each in case.iter("property")]
    assert len(dict(found)) == len(found), "one stands there twice"
    return dict(found)


def test_session_folder_is_complete(perf: PerfTests) -> None:
    """A session leaves its command, versions, verdicts and exit code, a CSV file with the ideal line, a figure and a page."""
    perf.draws = True
    ended = perf.run()
    folder = Path(ended.line("Session folder:").split()[-1])
    assert session(perf)["exit_code"] == 0
    assert session(perf)["command"][0] == "pytest"
    assert (folder / "trivial_b10.csv").read_text().splitlines()[2].startswith("2,2000,2000,1,1,parameter_server,synthetic")
    assert (folder / "figures" / "trivial_b10.svg").read_text().startswith("<?xml")
    assert Path(ended.line("Report:").split()[-1]).samefile(folder / "report.html")
    assert '<td data-label="images/sec">2000' in (folder / "report.html").read_text()


def test_best_parameter_server_count_comes_from_baselines(perf: PerfTests) -> None:
    """--num-ps=best shows how to search if nothing is known, and takes the fastest stored count otherwise."""
    unknown: Ended = perf.run("--gpus=2", "--num-ps=best")
    assert unknown.code == 1
    unknown.line("--num-ps=sweep")
    swept = perf.run("--gpus=2", "--num-ps=sweep", "--update-baselines", "-v")
    swept.line("gpus2-pssweep-parameter_server")
    known = perf.run("--gpus=2", "--num-ps=best")
    assert known.code == 0
    assert [record["spec"]["num_ps"] for record in records(perf)] == [1]


def test_hosts_that_a_run_does_not_use_change_nothing(accepted: PerfTests) -> None:
    """A baseline of one host holds for the same run in an allocation of two, of which it uses one."""
    clusters = accepted.folder / "perf" / "clusters.toml"
    clusters.write_text(clusters.read_text().replace("devices_per_host = 2", "devices_per_host = 2\nhosts = 2"))
    accepted.run("--gpus=1,4").line("trivial b10 gpus=1", "1000", "PASSED")
    one, four = records(accepted)
    assert (len(one["hosts"]), len(four["hosts"])) == (1, 2)
    assert one["fingerprint"]["placement"]["granted"] == ["1 node"]
    assert four["fingerprint"]["placement"]["granted"] == ["2 nodes"]


def test_what_its_hosts_lack_skips_a_test(perf: PerfTests) -> None:
    """A mode with a missing package is no failure: the reason names the host, the package, and how to install it."""
    ended = perf.run("-rs", "--variable-update=horovod")
    assert ended.code == 0
    assert "2 skipped" in ended.out
    ended.line("SKIPPED", "worker:0 on", "has no module horovod.tensorflow, which variable_update=horovod needs", "pip install")
