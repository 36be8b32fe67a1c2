"""Tests of `--time-budget`: cheap tests run first, and tests without time are skipped and named."""

from pytest_dtfperf.clusters import local
from pytest_dtfperf.clusters.locks import LockHolder, lock_hosts
from tests.plugin.conftest import PerfTests

TESTS = """
from pytest_dtfperf.plugin.plugin_state import get_state

def test_resnet50(train, gpus):
    train(model="resnet50", gpus=gpus)

def test_mnist(train, gpus, pytestconfig):
    train(model="mnist", gpus=gpus)
    if budget := get_state(pytestconfig).session.time_budget:
        budget._began_s -= 3600.0  # as if an hour had passed
"""


def test_expensive_test_is_left_out(perf: PerfTests) -> None:
    """The cheap test runs first, though it is the second of its module, and the other is skipped and named."""
    perf.write(TESTS)
    ended = perf.run("--gpus=1", "--time-budget=1h", "-v", "-rs")
    assert ended.code == 0, ended.out
    assert ended.out.index("::test_mnist") < ended.out.index("::test_resnet50")
    assert "1 passed, 1 skipped" in ended.out
    assert "left out, for --time-budget=1h has no time for it" in ended.out
    assert "--time-budget=1h had no time for 1 test. Left out: test_perf.py::test_resnet50" in ended.out
    assert "1 test skipped" not in ended.out, "the line about the time budget names it"


def test_tests_without_a_budget_keep_their_order(perf: PerfTests) -> None:
    """Without a budget tests run in the order of their module, and all pass."""
    perf.write(TESTS)
    ended = perf.run("--gpus=1", "-v")
    assert ended.out.index("test_resnet50") < ended.out.index("test_mnist")
    assert "2 passed" in ended.out


def test_wait_for_another_session_ends_with_the_budget(perf: PerfTests) -> None:
    """A session that waits for one on the same machine ends when its time is spent, and names the tests that it left out."""
    perf.write("def test_x(train): train(model='mnist')\n")
    tickets = perf.folder / "runtime" / "dtfperf"
    tickets.mkdir(mode=0o700)
    with lock_hosts(local.get_machine(), 1, LockHolder.make_own("other", "test_of_another_session"), print, folder=tickets):
        ended = perf.run("--time-budget=1s", "-rs")
    assert ended.code == 0, ended.out
    assert "1 skipped" in ended.out
    assert "left out, for --time-budget=1s" in ended.out
    assert "--time-budget=1s had no time for 1 test. Left out: test_perf.py::test_x." in ended.out
