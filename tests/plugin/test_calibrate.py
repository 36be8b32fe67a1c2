"""Sessions that are to show how rates scatter: all runs are made, whatever is known of the verdict."""

from tests.plugin.conftest import PerfTests
from tests.plugin.test_verdicts import records


def test_all_repeats_are_made(accepted: PerfTests) -> None:
    """With --all-repeats a verdict that two runs decide has three, as in --repeats, and does not change."""
    ended = accepted.run("--gpus=1", "--repeats=3", "--all-repeats")
    assert ended.code == 0
    assert [(len(record["runs"]), record["verdict"]) for record in records(accepted)] == [(3, "PASSED")]


def test_a_tests_own_count_goes_first(perf: PerfTests) -> None:
    """A test with its own number of runs gets it, with --all-repeats, too."""
    perf.write("def test_it(train, baseline):\n    baseline.check(train(model='trivial', gpus=1, repeats=1))\n")
    perf.run("--all-repeats", "--repeats=3")
    assert [len(record["runs"]) for record in records(perf)] == [1]
