"""What a user sees while tests train."""

import re

import pytest

from tests.plugin.conftest import PerfTests

TESTS = """
import pytest

@pytest.mark.parametrize("batch_size", [1, 2, 3])
def test_rate(train, batch_size):
    train(model="trivial", batch_size=batch_size)

def test_foreign():
    print("not ours")
"""


@pytest.mark.campaign
@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("words", [[], ["-q"], ["-v"]], ids=["as ever", "quiet", "verbose"])
def test_runs_are_shown_on_lines_of_their_own(perf: PerfTests, words: list[str], workers: list[str]) -> None:
    """Every run is shown, with its test's place and, once one has ended, how long it may take; never on pytest's own line."""
    perf.write(TESTS)
    ended = perf.run(*workers, *words)
    assert ended.code == 0, ended.out
    shown = [line for line in ended.out.splitlines() if ", run " in line]
    worker = r"gw[01]: " if workers else ""
    where = rf"{worker}test ([123]) of 3(, about \d+ s left)?: trivial b\d gpus=1 num_ps=1 parameter_server, run [12] of 3"
    found = [re.fullmatch(rf"{where}( \.\.\.|: \d+(\.\d+)? images/sec \(\d+\.\d s\))", line) for line in shown]
    assert len(found) == 3 * 2 * 2
    assert all(found), ended.out
    assert {match[1] for match in found if match} == {"1", "2", "3"}
    assert [match[2] for match in found if match][-1]
    assert ended.err == ""


def test_a_second_session_knows_how_long_tests_take(perf: PerfTests) -> None:
    """From the first run on it is said how long all of them may take, as earlier sessions tell."""
    perf.write(TESTS)
    perf.run()
    ended = perf.run()
    first = next(line for line in ended.out.splitlines() if ", run " in line)
    assert re.match(r"test 1 of 3, about \d+ s left: ", first)
