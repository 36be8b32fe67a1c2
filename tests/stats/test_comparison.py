"""Answers to a question about two rates: what they are read from, and what must not change them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_dtfperf.stats.comparison import Answer, Question, RatioEstimate, against_each_other, against_stored, runs_needed
from pytest_dtfperf.stats.noise import Noise, runs_to_confirm

CALIBRATED = Noise(run=0.01, degrees_of_freedom=20)
QUESTION = Question(floor=0.95, ceiling=1.05, false_alarm=0.05)
BASELINE = [100.0, 101.0, 99.0, 100.5, 99.5]
RATES = st.lists(st.floats(50, 200), min_size=1, max_size=10)
Compare = Callable[[Sequence[float], Sequence[float], Noise, Question], RatioEstimate]


def in_turn(now: Sequence[float], then: Sequence[float], noise: Noise, question: Question) -> RatioEstimate:
    """Compare with the same noise known of both."""
    return against_each_other(now, then, noise, noise, question)


@pytest.mark.parametrize(
    "now, answer",
    [
        ([100.0], Answer.HOLDS),
        ([97.0], Answer.OPEN),
        ([97.0, 99.5], Answer.HOLDS),
        ([112.0], Answer.BETTER),
        ([105.5], Answer.HOLDS),
        ([85.0], Answer.UNCONFIRMED),
        ([85.0, 86.0], Answer.WORSE),
        ([80.0, 96.0], Answer.OPEN),
        ([80.0, 80.0, 96.0], Answer.UNCONFIRMED),
        ([95.0, 95.0, 95.0], Answer.OPEN),
    ],
    ids=str,
)
def test_answers(now: list[float], answer: Answer) -> None:
    """Against 100 with a noise of 1 %, at a margin of 5 %; worse only where the last run alone shows it as well."""
    assert against_stored(now, BASELINE, CALIBRATED, QUESTION).answer is answer


def test_one_analysis_is_students_test() -> None:
    """Where there is but one analysis, the bounds are those of a t-test with the pooled spread."""
    question = Question(floor=0.95, false_alarm=0.05, missed=0.05, least=3, most=3)
    found = against_stored([98.0, 99.0, 100.0], [100.0, 101.0, 102.0], Noise(run=1e-6), question)
    squares = sum(
        (math.log(rate) - sum(map(math.log, group)) / 3) ** 2 for group in ([98, 99, 100], [100, 101, 102]) for rate in group
    )
    error = math.sqrt(squares / 4 * (1 / 3 + 1 / 3))
    assert found.degrees_of_freedom == 4
    assert found.spread == pytest.approx(math.sqrt(squares / 4))
    assert math.log(found.ratio / found.low) == pytest.approx(2.131847 * error, rel=1e-5)  # t(0.95; 4) of any table
    assert math.log(found.high / found.ratio) == pytest.approx(2.131847 * error, rel=1e-5)


def test_one_analysis_of_unlike_sides_is_welch_s_test() -> None:
    """Where there is but one analysis of many runs, the bounds are those of a t-test with each side's own spread."""
    question = Question(floor=0.95, false_alarm=0.05, missed=0.05, least=40, most=40)
    now, then = [99.0, 101.0] * 20, [90.0, 110.0] * 20
    found = against_each_other(now, then, Noise(run=1e-6), Noise(run=1e-6), question)
    one, other = (statistics.variance(map(math.log, rates)) / 40 for rates in (now, then))
    assert found.degrees_of_freedom == pytest.approx((one + other) ** 2 / (one**2 / 39 + other**2 / 39), rel=0.01)
    assert math.log(found.ratio / found.low) == pytest.approx(1.684 * math.sqrt(one + other), rel=1e-3)
    assert found.spread == pytest.approx(math.sqrt(40 * one))


def test_each_side_is_taken_to_scatter_as_was_calibrated_of_it() -> None:
    """A noisy anchor widens the interval as much as noisy runs of many devices, whichever of the two is calibrated so."""
    quiet, noisy = Noise(run=0.01, degrees_of_freedom=20), Noise(run=0.05, degrees_of_freedom=20)
    both, first, second = (
        against_each_other(BASELINE, BASELINE, *noises, QUESTION) for noises in ((quiet, quiet), (noisy, quiet), (quiet, noisy))
    )
    assert (first.low, first.high) == pytest.approx((second.low, second.high))
    assert first.low < both.low < both.high < first.high


def test_sessions_that_differ_widen_the_interval() -> None:
    """Two sessions are distinguished less well where sessions are known to differ; within one session that does not matter."""
    differing = Noise(run=0.01, degrees_of_freedom=20, session=0.02)
    plain, wide = (against_stored(BASELINE, BASELINE, noise, QUESTION) for noise in (CALIBRATED, differing))
    assert wide.low < plain.low < 1 < plain.high < wide.high
    plain, same = (in_turn(BASELINE, BASELINE, noise, QUESTION) for noise in (CALIBRATED, differing))
    assert same == plain


@pytest.mark.parametrize("compare", [against_stored, in_turn])
@pytest.mark.parametrize("now, then", [([90.0], [100.0]), ([90.0, 91.0], [100.0, 100.0])])
def test_nothing_is_said_too_early(compare: Compare, now: list[float], then: list[float]) -> None:
    """Below the least number of runs, and where nothing is known of the scatter, there is no interval."""
    question = Question(floor=0.95, false_alarm=0.05, least=3)
    found = compare(now, then, Noise(run=0.01), question)
    assert (found.low, found.high, found.answer) == (0.0, math.inf, Answer.OPEN)
    assert compare(now[:1], then[:1], Noise(run=0.01), QUESTION).answer is Answer.OPEN


@pytest.mark.parametrize("compare", [against_stored, in_turn])
@given(now=RATES, then=RATES, unit=st.floats(0.01, 100), session=st.sampled_from([0.0, 0.01]))
@settings(max_examples=60, deadline=None)
def test_units_and_order_do_not_matter(
    compare: Compare, now: list[float], then: list[float], unit: float, session: float
) -> None:
    """Rates in other units, and the baseline's runs in another order, give the same interval around the same ratio."""
    noise = Noise(run=0.01, degrees_of_freedom=12, session=session)
    found = compare(now, then, noise, QUESTION)
    again = compare([unit * rate for rate in now], [unit * rate for rate in reversed(then)], noise, QUESTION)
    assert (again.ratio, again.low, again.high) == pytest.approx((found.ratio, found.low, found.high), rel=1e-6)
    assert found.low < found.ratio < found.high


@given(now=RATES, then=RATES, faster=st.floats(1, 1.5))
@settings(max_examples=60, deadline=None)
def test_faster_is_no_worse(now: list[float], then: list[float], faster: float) -> None:
    """Were all runs faster by the same factor, so would be all bounds."""
    one, other = (against_stored([by * rate for rate in now], then, CALIBRATED, QUESTION) for by in (1.0, faster))
    assert (other.low, other.high) == pytest.approx((faster * one.low, faster * one.high), rel=1e-6)


@given(now=RATES, then=RATES, more=st.floats(1.01, 10))
@settings(max_examples=60, deadline=None)
def test_more_false_alarms_lower_the_upper_bound_only(now: list[float], then: list[float], more: float) -> None:
    """Each bound keeps to its own error rate."""
    one, other = (
        against_stored(now, then, CALIBRATED, Question(floor=0.95, false_alarm=level, missed=0.05))
        for level in (0.01, 0.01 * more)
    )
    assert other.high < one.high
    assert other.low == one.low


@pytest.mark.parametrize(
    "cv, margin, known, unknown",
    [(0.005, 0.05, 5, 5), (0.02, 0.05, 10, 11), (0.02, 0.10, 5, 5), (0.05, 0.02, None, None), (0.05, 0.05, None, None)],
    ids=["quiet", "usual", "usual, wide margin", "hopeless", "noisy"],
)
def test_runs_needed(cv: float, margin: float, known: int | None, unknown: int | None) -> None:
    """How many runs a loss of twice the margin takes against a baseline of ten; none suffice where that is too noisy."""
    noise = Noise(run=cv, degrees_of_freedom=20)
    assert runs_needed(10, noise, margin, 0.05 / 24) == known
    assert runs_needed(10, replace(noise, degrees_of_freedom=0), margin, 0.05 / 24) == unknown


def test_runs_needed_are_enough_to_confirm() -> None:
    """Rarer false alarms, smaller baselines and unknown noise take no fewer runs, and never fewer than confirm a loss."""
    levels = [0.05, 0.02, 0.002, 0.0005, 0.0001, 0.05 / 24 / 420, 1e-9]
    for known in (0, 20):
        noise = Noise(run=0.004, degrees_of_freedom=known)
        for baseline in (1, 2, 4, 5, 10, 30):
            needed = [runs_needed(baseline, noise, 0.05, level) or 10_000 for level in levels]
            assert needed == sorted(needed)
            assert all(runs >= runs_to_confirm(level) for runs, level in zip(needed, levels, strict=True))


def test_sessions_set_a_limit_to_what_runs_can_do() -> None:
    """Where sessions differ by as much as is to be found, no number of runs finds it."""
    assert runs_needed(10, Noise(run=0.01, session=0.0), 0.05, 0.05) == 3
    assert runs_needed(10, Noise(run=0.01, session=0.02), 0.05, 0.05) is None


@pytest.mark.parametrize(
    "values, words",
    [
        ({"floor": 0.0}, "the floor must be positive and .* the ceiling, not 0.0 and inf"),
        ({"floor": 1.1, "ceiling": 1.05}, "the ceiling, not 1.1 and 1.05"),
        ({"floor": 0.95, "least": 0}, "least must be 1 to most=10, not 0"),
        ({"floor": 0.95, "least": 11}, "least must be 1 to most=10, not 11"),
    ],
)
def test_what_is_no_question(values: dict[str, float], words: str) -> None:
    """Questions without an answer raise an error with a message."""
    with pytest.raises(ValueError, match=words):
        Question(false_alarm=0.05, **values)  # type: ignore[arg-type]  # a table of wrong values
