"""Tests of rare slow runs: which are set aside, which confirm nothing, and which are not rare."""

import math

import pytest

from pytest_dtfperf.stats.comparison import Answer, Question, compare_with_stored
from pytest_dtfperf.stats.noise import Noise, count_most_rare, drop_slowest, estimate_noise, runs_to_confirm, slow_runs

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]
KNOWN = Noise(run=0.01, degrees_of_freedom=20)
QUESTION = Question(floor=0.95, ceiling=1.05, false_alarm=0.002)


@pytest.mark.parametrize("bad", [60.0, 80.0, 90.0])
def test_one_slow_run_of_five_is_set_aside(bad: float) -> None:
    """A run that is clearly slower than four others is set aside at any position, with its loss."""
    for index in range(5):
        rates = [*STEADY[:index], bad, *STEADY[index + 1 :]]
        found = slow_runs(rates, KNOWN, 0.05)
        assert (found.runs, found.slow, found.rare) == (5, 1, 1)
        assert found.slower == pytest.approx(1 - bad / 100, abs=0.01)
        assert drop_slowest(rates, found.rare) == [rate for rate in rates if rate != bad]


@pytest.mark.parametrize("rates", [[100.0, 80.0], [80.0, 100.0, 101.0], [100.0, 80.0, 101.0, 80.5, 99.0]], ids=str)
def test_many_slow_runs_are_not_rare(rates: list[float]) -> None:
    """If more than one run in five is slow, none is rare."""
    found = slow_runs(rates, KNOWN, 0.05)
    assert found.slow > 0
    assert found.rare == 0


def test_loss_in_half_of_the_runs_is_not_hidden() -> None:
    """If half of the runs are 20 % slower, none is set aside, and the comparison does not pass."""
    found = compare_with_stored([100.0, 80.0] * 5, STEADY, KNOWN, QUESTION)
    assert (found.current_slow.slow, found.current_slow.rare) == (5, 0)
    assert found.ratio == pytest.approx(math.sqrt(0.8), rel=1e-3)
    assert found.answer is not Answer.HOLDS


@pytest.mark.parametrize("bad", [60.0, 80.0])
def test_rare_run_does_not_change_the_answer(bad: float) -> None:
    """A rare run on either side does not change the answer of the other runs, passed or worse."""
    for rates, answer in ((STEADY, Answer.HOLDS), ([0.85 * rate for rate in STEADY], Answer.WORSE)):
        slower = bad / 100 * rates[0]
        assert compare_with_stored([rates[0], slower, *rates[1:]], STEADY, KNOWN, QUESTION).answer is answer
        assert compare_with_stored(rates, [slower / rates[0] * 100, *STEADY], KNOWN, QUESTION).answer is answer


def test_runs_that_may_all_be_rare_do_not_confirm() -> None:
    """Two slow runs do not confirm a loss if one false alarm in 500 is allowed, and three do."""
    answers = [compare_with_stored([80.0] * runs, STEADY, KNOWN, QUESTION).answer for runs in (1, 2, 3)]
    assert answers == [Answer.UNCONFIRMED, Answer.UNCONFIRMED, Answer.WORSE]


def test_confirming_runs_grow_with_the_number_of_tests() -> None:
    """One test needs two runs, 24 tests three, 200 four and 2,000 five, and more runs may have more rare ones."""
    assert [runs_to_confirm(0.05 / tests) for tests in (1, 24, 200, 2000)] == [2, 3, 4, 5]
    assert [count_most_rare(runs, 0.002) for runs in (1, 2, 3, 10)] == [1, 2, 2, 4]


@pytest.mark.parametrize(
    "noise, rate, answer",
    [
        (KNOWN, 26.0, Answer.WORSE),
        (KNOWN, 60.0, Answer.UNCONFIRMED),
        (Noise(run=0.01), 26.0, Answer.UNCONFIRMED),
    ],
    ids=["beyond doubt", "may be a rare run", "noise is not known"],
)
def test_single_run_is_worse_only_beyond_doubt(noise: Noise, rate: float, answer: Answer) -> None:
    """A single run is worse only if the noise is known and even twice its rate would be too slow."""
    question = Question(floor=0.95, false_alarm=0.002, least=1, most=1)
    assert compare_with_stored([rate], STEADY, noise, question).answer is answer


def test_noise_is_estimated_without_rare_runs() -> None:
    """A calibration counts the rare runs and has the noise of the others; of few runs none is rare."""
    sessions = [STEADY, STEADY[::-1], [99.0, 60.0, 101.0, 100.0, 100.5], [100.0, 99.5, 80.0, 100.5, 99.0], STEADY]
    found, rare = estimate_noise(sessions)
    plain, none = estimate_noise([STEADY, STEADY[::-1], STEADY])
    assert (rare, none) == (2, 0)
    assert found.run == pytest.approx(plain.run, rel=0.3)
    assert found.degrees_of_freedom == 23 - 5
    assert estimate_noise([[100.0, 80.0], [100.0, 101.0]])[1] == 0
