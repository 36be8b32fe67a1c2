"""Runs that are slow once in a while: what is set aside, what must not decide alone, and what is no rare run."""

import math

import pytest

from pytest_dtfperf.stats.comparison import Answer, Question, against_stored
from pytest_dtfperf.stats.noise import Noise, estimate_noise, most_rare, runs_to_confirm, slow_runs, without_slowest

STEADY = [100.0, 101.0, 99.0, 100.5, 99.5]
KNOWN = Noise(run=0.01, degrees_of_freedom=20)
QUESTION = Question(floor=0.95, ceiling=1.05, false_alarm=0.002)


@pytest.mark.parametrize("bad", [60.0, 80.0, 90.0])
def test_one_slow_run_of_five_is_set_aside(bad: float) -> None:
    """A run that is clearly slower than four others is found in any place, with how much slower it is."""
    for index in range(5):
        rates = [*STEADY[:index], bad, *STEADY[index + 1 :]]
        found = slow_runs(rates, KNOWN, 0.05)
        assert (found.of, found.slow, found.rare) == (5, 1, 1)
        assert found.slower == pytest.approx(1 - bad / 100, abs=0.01)
        assert without_slowest(rates, found.rare) == [rate for rate in rates if rate != bad]


@pytest.mark.parametrize("rates", [[100.0, 80.0], [80.0, 100.0, 101.0], [100.0, 80.0, 101.0, 80.5, 99.0]], ids=str)
def test_many_slow_runs_are_not_rare(rates: list[float]) -> None:
    """More than one slow run in five is no rare run: all count."""
    found = slow_runs(rates, KNOWN, 0.05)
    assert found.slow > 0
    assert found.rare == 0


def test_a_loss_in_half_of_the_runs_is_not_hidden() -> None:
    """Where half of the runs are 20 % slower, nothing is set aside and the answer is no pass."""
    found = against_stored([100.0, 80.0] * 5, STEADY, KNOWN, QUESTION)
    assert (found.now_slow.slow, found.now_slow.rare) == (5, 0)
    assert found.ratio == pytest.approx(math.sqrt(0.8), rel=1e-3)
    assert found.answer is not Answer.HOLDS


@pytest.mark.parametrize("bad", [60.0, 80.0])
def test_rare_runs_change_no_answer(bad: float) -> None:
    """A rare run on either side leaves the answer that the others give: passed, and worse."""
    for rates, answer in ((STEADY, Answer.HOLDS), ([0.85 * rate for rate in STEADY], Answer.WORSE)):
        slower = bad / 100 * rates[0]
        assert against_stored([rates[0], slower, *rates[1:]], STEADY, KNOWN, QUESTION).answer is answer
        assert against_stored(rates, [slower / rates[0] * 100, *STEADY], KNOWN, QUESTION).answer is answer


def test_runs_that_may_all_be_rare_confirm_nothing() -> None:
    """Two slow runs are no loss where the test may alarm once in 500 times: up to one run in ten is slow by chance."""
    answers = [against_stored([80.0] * runs, STEADY, KNOWN, QUESTION).answer for runs in (1, 2, 3)]
    assert answers == [Answer.UNCONFIRMED, Answer.UNCONFIRMED, Answer.WORSE]


def test_runs_that_confirm_grow_with_the_tests_of_a_session() -> None:
    """One test takes two runs, 24 tests three, 200 four, and 2,000 five."""
    assert [runs_to_confirm(0.05 / tests) for tests in (1, 24, 200, 2000)] == [2, 3, 4, 5]
    assert [most_rare(runs, 0.002) for runs in (1, 2, 3, 10)] == [1, 2, 2, 4]


@pytest.mark.parametrize(
    "noise, rate, answer",
    [
        (KNOWN, 26.0, Answer.WORSE),
        (KNOWN, 60.0, Answer.UNCONFIRMED),
        (Noise(run=0.01), 26.0, Answer.UNCONFIRMED),
    ],
    ids=["beyond doubt", "may be a rare run", "noise is not known"],
)
def test_one_run_tells_what_is_beyond_doubt(noise: Noise, rate: float, answer: Answer) -> None:
    """Where one run is all there may be, it is worse only if the noise is known and even twice the rate would be too slow."""
    question = Question(floor=0.95, false_alarm=0.002, least=1, most=1)
    assert against_stored([rate], STEADY, noise, question).answer is answer


def test_noise_is_estimated_without_rare_runs() -> None:
    """A calibration counts the slow runs it sets aside, and has the noise of the others; none of few runs is set aside."""
    sessions = [STEADY, STEADY[::-1], [99.0, 60.0, 101.0, 100.0, 100.5], [100.0, 99.5, 80.0, 100.5, 99.0], STEADY]
    found, rare = estimate_noise(sessions)
    plain, none = estimate_noise([STEADY, STEADY[::-1], STEADY])
    assert (rare, none) == (2, 0)
    assert found.run == pytest.approx(plain.run, rel=0.3)
    assert found.degrees_of_freedom == 23 - 5
    assert estimate_noise([[100.0, 80.0], [100.0, 101.0]])[1] == 0
