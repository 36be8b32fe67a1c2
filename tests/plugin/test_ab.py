"""Tests of `pytest --ab`, which compares software stacks by unchanged tests. Measured rates are simulated and exact."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_bisect import make_repository
from tests.plugin.conftest import COMMANDS_HERE, INI, PerfTests, perf_tests_in
from tests.plugin.test_options import read_error
from tests.plugin.test_verdicts import session

OLD, SLOW, SAME = "--ab=old:", "--ab=new: environment=TOY_STEP_S=0.02", "--ab=new: num_intra_threads=1"
SCALING = """
def test_scaling(train, baseline, gpus, num_ps):
    alone = train(model="trivial", gpus=1, num_ps=num_ps)
    measurement = train(model="trivial", gpus=gpus, num_ps=num_ps)
    baseline.check_efficiency(measurement, anchor=alone)
"""
IN_TURN = """
import pytest

@pytest.mark.parametrize("batch_size", [10, 20])
def test_scaling(train, baseline, batch_size):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial", batch_size=batch_size)
    baseline.check_efficiency(two, anchor=one)
"""
IN_TURN_AND_APART = """
def test_in_turn(train, baseline):
    slow, equal = train.in_turn({"num_ps": 1}, {"num_ps": 2}, model="trivial", gpus=1)
    baseline.check(equal)
    baseline.check(slow)

def test_apart(train, baseline):
    slow, equal = (train(model="trivial", gpus=1, num_ps=num_ps, batch_size=20) for num_ps in (1, 2))
    baseline.check(equal)
"""
OTHER_CHECKS = """
def test_accuracy(train, baseline):
    baseline.check_accuracy(train(model="trivial", gpus=1), at_least=0.5)

def test_pair(train, baseline):
    one, two = train.in_turn({"gpus": 1}, {"gpus": 2}, model="trivial")
    assert one.images_per_sec < two.images_per_sec
"""


COMMAND = """
def test_program(train, baseline):
    program = "import speed; print('total images/sec:', 10 / speed.STEP_S)"
    baseline.check(train(command=["python", "-c", program], gpus=1))
"""


@pytest.fixture
def perf(tmp_path: Path) -> PerfTests:
    return perf_tests_in(tmp_path)


def comparisons(perf: PerfTests) -> list[dict[str, Any]]:
    (folder,) = (perf.folder / "perf_results").iterdir()
    return [json.loads(line) for line in (folder / "comparisons.jsonl").read_text().splitlines()]


def test_ab_fails_tests_of_a_slower_stack(perf: PerfTests) -> None:
    """Each test compares its training and fails with the difference, and all share the error budget of the session."""
    ended = perf.run(OLD, SLOW, "--gpus=1,2", "-v", "--junitxml=junit.xml")
    assert ended.code == 1, ended.out
    ended.line("FAILED (REGRESSED)")
    ended.line("trivial b10 gpus=2 num_ps=1", "new is SLOWER against old: -50")
    found = comparisons(perf)
    assert [(each["spec"]["gpus"], each["verdict"]) for each in found] == [(1, "SLOWER"), (2, "SLOWER")]
    assert found[0]["error"] == pytest.approx(0.025)
    assert found[1]["error"] == pytest.approx(0.05)
    properties = {(each.get("name"), each.get("value")) for each in ET.parse(perf.folder / "junit.xml").iter("property")}
    assert ("dtfperf_verdict", "REGRESSED") in properties
    assert any(name == "dtfperf_comparison" and "new is SLOWER against old" in str(value) for name, value in properties)


def test_trainings_in_turn_share_the_error_of_their_test(perf: PerfTests) -> None:
    """The errors of all comparisons add up to that of the session, also if each test compares two trainings."""
    perf.write(IN_TURN)
    ended = perf.run(OLD, SAME)
    assert ended.code == 0, ended.out
    found = comparisons(perf)
    assert [each["verdict"] for each in found] == ["EQUIVALENT"] * 4
    assert [each["error"] for each in found] == pytest.approx([0.05 / 3, 0.05 / 3, 0.05 / 6, 0.05 / 6])


# Slower with one parameter server, and equal with two or three.
SLOW_WITH_ONE = """--ab=new: environment='TOY_PS_STEP_S={"1": 0.02, "2": 0.01, "3": 0.01}'"""


def read_properties(perf: PerfTests) -> dict[str, list[tuple[str, str]]]:
    """Return the verdicts and comparisons in junit.xml, in their order, by test."""
    found = {}
    for case in ET.parse(perf.folder / "junit.xml").iter("testcase"):
        pairs = [(each.get("name", ""), each.get("value", "")) for each in case.iter("property")]
        found[case.get("name", "")] = [pair for pair in pairs if pair[0] in ("dtfperf_verdict", "dtfperf_comparison")]
    return found


def test_ab_difference_leaves_its_error_to_later_equal_tests(perf: PerfTests) -> None:
    """A difference leaves its part of the error to later tests, equal ones keep theirs, and all have their texts."""
    ended = perf.run(OLD, SLOW_WITH_ONE, "--gpus=1", "--num-ps=1,2,3", "-v", "--junitxml=junit.xml")
    assert ended.code == 1, ended.out
    found = comparisons(perf)
    assert [each["spec"]["num_ps"] for each in found] == [1, 2, 3]
    assert [each["verdict"] for each in found] == ["SLOWER", "EQUIVALENT", "EQUIVALENT"]
    assert [each["error"] for each in found] == pytest.approx([0.05 / 3, 0.05 / 2, 0.05 / 2])
    ended.line("FAILED (REGRESSED)")
    ended.line("1 failed, 2 passed")
    ended.line("trivial b10 gpus=1 num_ps=1 parameter_server, new: the interval excludes equal rates")
    for servers in (2, 3):
        ended.line(f"trivial b10 gpus=1 num_ps={servers} parameter_server, new: the difference is within 0.01")
    properties = list(read_properties(perf).values())
    assert [each[0] for each in properties] == [("dtfperf_verdict", each) for each in ("REGRESSED", "PASSED", "PASSED")]
    assert [each[1][1].partition(" against ")[0].rpartition(": ")[2] for each in properties] == [
        "new is SLOWER",
        "new is EQUIVALENT",
        "new is EQUIVALENT",
    ]
    assert session(perf)["exit_code"] == 1
    assert session(perf)["verdicts"] == {"REGRESSED": 1, "PASSED": 2}


def test_ab_trainings_of_a_test_share_what_differences_leave(perf: PerfTests) -> None:
    """The errors of all equal comparisons add up to that of the session, whether a test trains in turn or one by one."""
    perf.write(IN_TURN_AND_APART)
    ended = perf.run(OLD, SLOW_WITH_ONE, "-v", "--junitxml=junit.xml")
    assert ended.code == 1, ended.out
    found = comparisons(perf)
    assert [each["verdict"] for each in found] == ["SLOWER", "EQUIVALENT"] * 2
    first, equal, *others = (each["error"] for each in found)
    assert first == pytest.approx(0.05 / 3), "one of three: the two in turn, and the next test"
    # In the last round either of both may have been decided first.
    assert any(equal == pytest.approx(each) for each in (0.05 / 3, 0.05 / 2))
    assert others == pytest.approx([0.05 - equal] * 2)
    ended.line("FAILED (REGRESSED)")
    ended.line("1 failed, 1 passed")
    ended.line("trivial b20 gpus=1 num_ps=1 parameter_server, new: the interval excludes equal rates")
    properties = read_properties(perf)
    assert [value for name, value in properties["test_in_turn"] if name == "dtfperf_verdict"] == ["PASSED", "REGRESSED"]
    assert [value for name, value in properties["test_apart"] if name == "dtfperf_verdict"] == ["PASSED"]
    assert session(perf)["verdicts"] == {"REGRESSED": 1, "PASSED": 1}


COUNTS_COMPARISONS = """
def pytest_runtest_logreport(report):
    if report.when == "call":
        print("\\ncomparisons:", sum(name == "dtfperf_comparison" for name, _ in report.user_properties))
"""


def test_ab_repeated_test_has_its_comparison_once(perf: PerfTests) -> None:
    """A test that pytest-rerunfailures repeats has the text of its comparison once among its properties."""
    perf.write(COUNTS_COMPARISONS, "conftest.py")
    ended = perf.run(OLD, SLOW, "--gpus=1", "--reruns=1", "-s")
    ended.line("1 failed", "1 rerun")
    assert [line for line in ended.out.splitlines() if line.startswith("comparisons:")] == ["comparisons: 1"] * 2


def test_ab_passes_equal_stacks_without_baseline_or_history(perf: PerfTests) -> None:
    """Passing tests write comparisons, which the page has, but no measurements, baselines or history, even with --history."""
    ended = perf.run(OLD, SAME, "--gpus=1", "-v", "--history=kept.sqlite")
    assert ended.code == 0, ended.out
    ended.line("PASSED")
    ended.line("old -> new: num_intra_threads: as usual -> 1")
    ended.line("trivial b10 gpus=1", "EQUIVALENT")
    ended.line("Comparisons: ", "comparisons.jsonl")
    (folder,) = (perf.folder / "perf_results").iterdir()
    assert "EQUIVALENT" in (folder / "report.html").read_text()
    assert not (folder / "measurements.jsonl").read_text()
    assert not (perf.folder / "baselines").exists()
    assert not (perf.folder / "kept.sqlite").exists()
    assert session(perf)["exit_code"] == 0


CONFTEST = """
def pytest_dtfperf_judged(judgement):
    print(f"judged {judgement.verdict} {judgement.change:+.2f}")
"""
VARIANTS = '[old]\n[new]\nenvironment = ["TOY_STEP_S=0.02"]\n'


def test_variants_come_from_a_file(perf: PerfTests) -> None:
    """Each table of a TOML file is a variant, a further variant of the command line is compared, too, and the judgement has
    the change of the slower one."""
    perf.write(CONFTEST, "conftest.py")
    (perf.folder / "ab.toml").write_text(VARIANTS)
    ended = perf.run("--ab=ab.toml", "--ab=fast: environment=TOY_STEP_S=0.005", "--gpus=1", "-v", "-s")
    assert ended.code == 1, ended.out
    ended.line("old -> new: environment: ", "TOY_STEP_S=0.02")
    ended.line("judged REGRESSED -0.50")
    assert [(each["variant"]["name"], each["verdict"]) for each in comparisons(perf)] == [("new", "SLOWER"), ("fast", "FASTER")]


def test_ab_reads_variants_from_the_ini_file(perf: PerfTests) -> None:
    """Each line of the ini key is a variant or a file of variants, which is found when pytest runs in another folder."""
    (perf.folder / "pytest.ini").write_text(f"{INI}dtfperf_ab =\n    fast: environment=TOY_STEP_S=0.005\n    perf/ab.toml\n")
    (perf.folder / "perf" / "ab.toml").write_text('[slow]\nenvironment = ["TOY_STEP_S=0.02"]\n')
    elsewhere = replace(perf, folder=perf.folder / "perf")
    ended = elsewhere.run_python(*elsewhere.command("--gpus=1", "--clusters-file=clusters.toml")[1:])
    assert ended.code == 1, ended.out + ended.err
    ended.line("trivial b10 gpus=1", "slow is SLOWER against fast")


def test_ab_compares_efficiencies(perf: PerfTests) -> None:
    """A stack that is slower by the same factor on all devices passes a check of efficiency."""
    perf.write(SCALING)
    ended = perf.run(OLD, SLOW, "--gpus=2", "-v")
    assert ended.code == 0, ended.out
    ended.line("1 passed")
    assert [each["verdict"] for each in comparisons(perf)] == ["SLOWER", "SLOWER"]


def test_ab_skips_checks_of_one_stack(perf: PerfTests) -> None:
    """A check of a threshold is skipped with the reason, and several trainings of a test are compared."""
    perf.write(OTHER_CHECKS)
    ended = perf.run(OLD, SAME, "-v", "-rs")
    assert ended.code == 0, ended.out
    ended.line("baseline.check_accuracy judges one stack, and --ab compares several")
    assert [each["spec"]["gpus"] for each in comparisons(perf)] == [1, 2]


def test_ab_names_a_stack_that_cannot_train(perf: PerfTests) -> None:
    """A failed run fails the test with the name of the variant."""
    ended = perf.run(OLD, "--ab=bad: environment='TOY_DO=die worker:0'", "--gpus=1")
    assert ended.code == 1, ended.out
    ended.line("with variant bad")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([OLD], "a comparison needs two variants, and there is only old"),
        ([OLD, "--ab=new:"], "variants old and new are equal"),
        (["--ab=none.toml"], "--ab none.toml cannot be read: No such file or directory"),
        (["--ab=ab.toml"], "--ab ab.toml: [new] unknown key 'xlaa'"),
        ([OLD, SAME, "--update-baselines"], "--update-baselines is for runs of one stack"),
        ([OLD, SAME, "--num-ps=sweep"], "a comparison needs the number of parameter servers itself, not --num-ps=sweep"),
    ],
)
def test_ab_refuses_impossible_comparisons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    """An impossible comparison is one message before the collection."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "ab.toml").write_text("[old]\n[new]\nxlaa = true\n")
    assert message in read_error(tmp_path, arguments)


def test_ab_with_xdist_is_refused(perf: PerfTests) -> None:
    """A comparison with workers of xdist ends with exit code 4 and one message before anything is started."""
    ended = perf.run(OLD, SAME, "-n2")
    assert ended.code == 4, ended.out
    ended.line("ERROR: ", "--ab: pytest-xdist distributes tests, and a comparison needs all runs in one process")
    assert not (perf.folder / "perf_results").exists()


def test_ab_compares_commits(perf: PerfTests) -> None:
    """A program of two commits is compared in their worktrees, and two refs of one commit are refused before that."""
    (perf.folder / "perf" / "clusters.toml").write_text(COMMANDS_HERE)
    perf.environment["XDG_CACHE_HOME"] = str(perf.folder / "cache")
    perf.write(COMMAND)
    fast, slow = make_repository(perf.folder / "repo", [0.1, 0.2])
    old, new, same = (f"{name}: git={ref} repo=repo" for name, ref in (("old", fast), ("new", slow), ("same", "main~1")))
    refused = perf.run("--ab", old, "--ab", same)
    assert refused.code == 4, refused.out
    refused.line("ERROR: ", "variants old and same are equal: --same compares a variant with itself")
    assert not (perf.folder / "perf_results").exists()
    ended = perf.run("--ab", old, "--ab", new)
    assert ended.code == 1, ended.out
    ended.line("new is SLOWER against old: -50")
