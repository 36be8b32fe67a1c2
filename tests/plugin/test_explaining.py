"""Tests of --explain: which runs of a session are traced, without an effect on verdicts."""

import shutil
from typing import Any

import pytest

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records

SLOW = {"TOY_STEP_S": "0.02", "TOY_TRACES": "1"}


def runs_of(perf: PerfTests) -> list[dict[str, Any]]:
    (record,) = records(perf)
    found: list[dict[str, Any]] = record["runs"]
    return found


@pytest.mark.parametrize("option", ["--explain=always", "--explain=auto"])
def test_new_baseline_has_a_step_breakdown(perf: PerfTests, option: str) -> None:
    """With --update-baselines the last run of a measurement, and no other, has a step breakdown."""
    assert perf.run("--gpus=1", "--update-baselines", option, TOY_TRACES="1").code == 0
    assert ["step_breakdown" in run for run in runs_of(perf)] == [False, False, True]
    assert runs_of(perf)[-1]["step_breakdown"]["tasks"]["worker:0"]["parts"] == {"forward": 0.001}


def test_passing_test_has_no_traced_run(accepted_tests: PerfTests) -> None:
    """A measurement that passes has no traced run, no step breakdown and no experiments, also with --diagnose."""
    assert accepted_tests.run("--gpus=1", "--explain=auto", "--diagnose", TOY_TRACES="1").code == 0
    (record,) = records(accepted_tests)
    assert "traced" not in record
    assert "experiments" not in record
    assert not any("step_breakdown" in run for run in record["runs"])


def test_test_without_a_baseline_has_no_traced_run(perf: PerfTests) -> None:
    """A measurement without a baseline has no traced run."""
    assert perf.run("--gpus=1", "--explain=auto", TOY_TRACES="1").code == 0
    assert "traced" not in records(perf)[0]


def test_regression_has_a_traced_run_that_does_not_count(accepted_tests: PerfTests) -> None:
    """A regression has a short traced run with the step breakdown, which is not among the runs of the measurement, and without
    --diagnose no experiments."""
    ended = accepted_tests.run("--gpus=1", "--steps=40", "--explain=auto", **SLOW)
    assert ended.code == 1
    (record,) = records(accepted_tests)
    assert record["verdict"] == "REGRESSED"
    assert "experiments" not in record
    assert record["traced"]["step_breakdown"]["steps"] == 5
    assert {len(run["step_s"]["worker:0"]) for run in record["runs"]} == {40}
    assert len(record["traced"]["step_s"]["worker:0"]) == 10
    assert not any("step_breakdown" in run for run in record["runs"])
    ended.line("500", "REGRESSED")


def test_traced_regression_has_no_further_run(accepted_tests: PerfTests) -> None:
    """With --explain one of the regular runs is traced, and a regression has no further one."""
    assert accepted_tests.run("--gpus=1", "--explain", **SLOW).code == 1
    (record,) = records(accepted_tests)
    assert "traced" not in record
    assert sum("step_breakdown" in run for run in record["runs"]) == 1


def test_explain_never_traces_nothing(accepted_tests: PerfTests) -> None:
    """With --explain=never in the ini file a regression has no traced run."""
    assert accepted_tests.run("--gpus=1", **SLOW).code == 1
    (record,) = records(accepted_tests)
    assert "traced" not in record
    assert not any("step_breakdown" in run for run in record["runs"])


def test_traced_run_that_fails_changes_no_verdict(accepted_tests: PerfTests) -> None:
    """If a task dies in the traced run, the verdict stays REGRESSED, and a line names the task."""
    ended = accepted_tests.run("--gpus=1", "--explain=auto", TOY_DO="die when traced", **SLOW)
    assert ended.code == 1
    (record,) = records(accepted_tests)
    assert record["verdict"] == "REGRESSED"
    assert "traced" not in record
    ended.line("REGRESSED: trivial b10 gpus=1")
    ended.line("trivial b10 gpus=1", "worker:0 on ", "was killed by SIGKILL")


READS = """
def test_throughput(train, baseline):
    baseline.check(train(model="mnist", data="mnist", data_dir="/data", gpus=1))
"""


def test_experiment_confirms_a_slow_input(perf: PerfTests) -> None:
    """With --diagnose a regression by slow input is tried with synthetic input, and the output shows that this confirms it. If
    a task dies in the experiment, its outcome is open, and the verdict stays REGRESSED."""
    perf.write(READS)
    assert perf.run("--update-baselines").code == 0
    shutil.rmtree(perf.folder / "perf_results")
    ended = perf.run("--diagnose", TOY_INPUT_S="0.02")
    assert ended.code == 1
    (record,) = records(perf)
    tried = {each["trial"]: each for each in record["experiments"]}
    assert tried["synthetic input"]["outcome"] == "confirmed"
    assert (tried["synthetic input"]["step_s"], tried["synthetic input"]["instead_of_s"]) == pytest.approx((0.01, 0.03))
    assert record["verdict"] == "REGRESSED"
    assert {round(run["images_per_sec"]) for run in record["runs"]} == {333}
    ended.line("tried: input: with synthetic input the step takes 0.01 instead of 0.03 s: confirmed")

    shutil.rmtree(perf.folder / "perf_results")
    ended = perf.run("--diagnose", "--explain=never", TOY_INPUT_S="0.02", TOY_DO="die of synthetic input")
    assert ended.code == 1
    (record,) = records(perf)
    tried = {each["trial"]: each for each in record["experiments"]}
    assert (tried["synthetic input"]["outcome"], tried["synthetic input"]["step_s"]) == ("open", None)
    assert record["verdict"] == "REGRESSED"
