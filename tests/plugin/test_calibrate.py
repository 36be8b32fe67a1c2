"""Tests of sessions for the calibration of noise, which make all runs with any verdict."""

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records


def test_all_repeats_makes_each_run(accepted_tests: PerfTests) -> None:
    """With --all-repeats a test that two runs decide makes all three, and passes."""
    ended = accepted_tests.run("--gpus=1", "--repeats=3", "--all-repeats")
    assert ended.code == 0
    assert [(len(record["runs"]), record["verdict"]) for record in records(accepted_tests)] == [(3, "PASSED")]


def test_repeats_of_a_test_override_all_repeats(perf: PerfTests) -> None:
    """A test with its own number of runs makes that number, even with --all-repeats."""
    perf.write("def test_it(train, baseline):\n    baseline.check(train(model='trivial', gpus=1, repeats=1))\n")
    perf.run("--all-repeats", "--repeats=3")
    assert [len(record["runs"]) for record in records(perf)] == [1]
