"""--explain: which steps of a session are traced, and that no verdict has anything to do with it."""

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
def test_what_becomes_a_baseline_has_a_breakdown(perf: PerfTests, option: str) -> None:
    """Where all repeats are made, the last of them is traced, and no other: a later session can be held against it."""
    assert perf.run("--gpus=1", "--update-baselines", option, TOY_TRACES="1").code == 0
    assert ["step_breakdown" in run for run in runs_of(perf)] == [False, False, True]
    assert runs_of(perf)[-1]["step_breakdown"]["tasks"]["worker:0"]["parts"] == {"forward": 0.001}


def test_what_is_green_is_not_run_again(accepted: PerfTests) -> None:
    """By default a measurement that passes has no traced run and no step breakdown: it costs what it did."""
    assert accepted.run("--gpus=1", "--explain=auto", TOY_TRACES="1").code == 0
    (record,) = records(accepted)
    assert "traced" not in record
    assert not any("step_breakdown" in run for run in record["runs"])


def test_what_has_no_baseline_is_not_run_again(perf: PerfTests) -> None:
    """There is nothing that it could be slower than."""
    assert perf.run("--gpus=1", "--explain=auto", TOY_TRACES="1").code == 0
    assert "traced" not in records(perf)[0]


def test_what_is_red_has_one_more_run_that_counts_for_nothing(accepted: PerfTests) -> None:
    """A short run is made for the step breakdown that causes need; it is none of the measurement's, and changes no rate."""
    ended = accepted.run("--gpus=1", "--steps=40", "--explain=auto", **SLOW)
    assert ended.code == 1
    (record,) = records(accepted)
    assert record["verdict"] == "REGRESSED"
    assert record["traced"]["step_breakdown"]["steps"] == 5
    assert {len(run["step_s"]["worker:0"]) for run in record["runs"]} == {40}
    assert len(record["traced"]["step_s"]["worker:0"]) == 10
    assert not any("step_breakdown" in run for run in record["runs"])
    ended.line("500", "REGRESSED")


def test_what_is_red_and_was_traced_is_not_run_again(accepted: PerfTests) -> None:
    """With --explain a run of each measurement is traced anyway."""
    assert accepted.run("--gpus=1", "--explain", **SLOW).code == 1
    (record,) = records(accepted)
    assert "traced" not in record
    assert sum("step_breakdown" in run for run in record["runs"]) == 1


def test_whoever_wants_none_has_none(accepted: PerfTests) -> None:
    """With --explain=never, as here in the ini file, nothing is traced whatever becomes of it."""
    assert accepted.run("--gpus=1", **SLOW).code == 1
    (record,) = records(accepted)
    assert "traced" not in record
    assert not any("step_breakdown" in run for run in record["runs"])


def test_traced_run_that_fails_changes_no_verdict(accepted: PerfTests) -> None:
    """A task that dies of being traced costs the step breakdown: the test is red for its rate, and says so."""
    ended = accepted.run("--gpus=1", "--explain=auto", TOY_DO="die when traced", **SLOW)
    assert ended.code == 1
    (record,) = records(accepted)
    assert record["verdict"] == "REGRESSED"
    assert "traced" not in record
    ended.line("REGRESSED: trivial b10 gpus=1")
    ended.line("trivial b10 gpus=1", "worker:0 on ", "was killed by SIGKILL")


READS = """
def test_throughput(train, baseline):
    baseline.check(train(model="mnist", data="mnist", data_dir="/data", gpus=1))
"""


def test_experiment_confirms_a_slow_input(perf: PerfTests) -> None:
    """With --diagnose, what is red is tried with synthetic input: it is as fast as it was, and the test's own words say so."""
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


def test_nothing_is_tried_unasked(accepted: PerfTests) -> None:
    """Experiments cost time: without --diagnose there are none, and with it none of what is green."""
    assert accepted.run("--gpus=1", TOY_STEP_S="0.02").code == 1
    assert "experiments" not in records(accepted)[0]
    shutil.rmtree(accepted.folder / "perf_results")
    assert accepted.run("--gpus=1", "--diagnose").code == 0
    assert "experiments" not in records(accepted)[0]


def test_experiment_that_fails_changes_no_verdict(perf: PerfTests) -> None:
    """A task that dies of what was changed is said so, and the test is red for its rate."""
    perf.write(READS)
    assert perf.run("--update-baselines").code == 0
    shutil.rmtree(perf.folder / "perf_results")
    ended = perf.run("--diagnose", "--explain=never", TOY_INPUT_S="0.02", TOY_DO="die of synthetic input")
    assert ended.code == 1
    (record,) = records(perf)
    tried = {each["trial"]: each for each in record["experiments"]}
    assert (tried["synthetic input"]["outcome"], tried["synthetic input"]["step_s"]) == ("open", None)
    assert record["verdict"] == "REGRESSED"
