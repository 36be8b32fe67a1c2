"""Tests of answers to questions about two rates, and of what must not change them."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.stats.comparison import (
    Answer,
    Question,
    RatioEstimate,
    compare_alternating,
    compare_with_stored,
    runs_needed,
)
from pytest_dtfperf.stats.noise import Noise, runs_to_confirm

CALIBRATED = Noise(run=0.01, degrees_of_freedom=20)
QUESTION = Question(floor=0.95, ceiling=1.05, false_alarm=0.05)
BASELINE = [100.0, 101.0, 99.0, 100.5, 99.5]
RATES = st.lists(st.floats(50, 200), min_size=1, max_size=10)
Compare = Callable[[Sequence[float], Sequence[float], Noise, Question], RatioEstimate]


def compare_in_turn(current: Sequence[float], baseline: Sequence[float], noise: Noise, question: Question) -> RatioEstimate:
    """Compare two sides with the same known noise."""
    return compare_alternating(current, baseline, noise, noise, question)


@pytest.mark.parametrize(
    "current, answer",
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
def test_answer_follows_from_the_runs(current: list[float], answer: Answer) -> None:
    """The answer against 100 at a margin of 5 % follows from the runs, and is worse only if also the last run alone is."""
    assert compare_with_stored(current, BASELINE, CALIBRATED, QUESTION).answer is answer


def test_single_analysis_is_student_s_test() -> None:
    """The bounds of a single analysis are those of a t-test with the pooled spread."""
    question = Question(floor=0.95, false_alarm=0.05, missed=0.05, least=3, most=3)
    found = compare_with_stored([98.0, 99.0, 100.0], [100.0, 101.0, 102.0], Noise(run=1e-6), question)
    squares = sum(
        (math.log(rate) - sum(map(math.log, group)) / 3) ** 2 for group in ([98, 99, 100], [100, 101, 102]) for rate in group
    )
    error = math.sqrt(squares / 4 * (1 / 3 + 1 / 3))
    assert found.degrees_of_freedom == 4
    assert found.spread == pytest.approx(math.sqrt(squares / 4))
    assert math.log(found.ratio / found.low) == pytest.approx(2.131847 * error, rel=1e-5)  # t(0.95; 4) of any table
    assert math.log(found.high / found.ratio) == pytest.approx(2.131847 * error, rel=1e-5)


def test_single_analysis_of_many_runs_is_welch_s_test() -> None:
    """The bounds of a single analysis of many runs are those of a t-test with each side's own spread."""
    question = Question(floor=0.95, false_alarm=0.05, missed=0.05, least=40, most=40)
    current, baseline = [99.0, 101.0] * 20, [90.0, 110.0] * 20
    found = compare_alternating(current, baseline, Noise(run=1e-6), Noise(run=1e-6), question)
    one, other = (statistics.variance(map(math.log, rates)) / 40 for rates in (current, baseline))
    assert found.degrees_of_freedom == pytest.approx((one + other) ** 2 / (one**2 / 39 + other**2 / 39), rel=0.01)
    assert math.log(found.ratio / found.low) == pytest.approx(1.684 * math.sqrt(one + other), rel=1e-3)
    assert found.spread == pytest.approx(math.sqrt(40 * one))


def test_calibrated_noise_of_either_side_widens_the_interval() -> None:
    """Calibrated noise widens the interval equally if it is that of the anchor or that of the runs."""
    quiet, noisy = Noise(run=0.01, degrees_of_freedom=20), Noise(run=0.05, degrees_of_freedom=20)
    both, first, second = (
        compare_alternating(BASELINE, BASELINE, *noises, QUESTION)
        for noises in ((quiet, quiet), (noisy, quiet), (quiet, noisy))
    )
    assert (first.low, first.high) == pytest.approx((second.low, second.high))
    assert first.low < both.low < both.high < first.high


def test_noise_between_sessions_widens_the_interval() -> None:
    """Noise between sessions widens the interval against stored runs, and not within one session."""
    differing = Noise(run=0.01, degrees_of_freedom=20, session=0.02)
    plain, wide = (compare_with_stored(BASELINE, BASELINE, noise, QUESTION) for noise in (CALIBRATED, differing))
    assert wide.low < plain.low < 1 < plain.high < wide.high
    plain, same = (compare_in_turn(BASELINE, BASELINE, noise, QUESTION) for noise in (CALIBRATED, differing))
    assert same == plain


@pytest.mark.parametrize("compare", [compare_with_stored, compare_in_turn])
@pytest.mark.parametrize("current, baseline", [([90.0], [100.0]), ([90.0, 91.0], [100.0, 100.0])])
def test_too_few_runs_have_no_interval(compare: Compare, current: list[float], baseline: list[float]) -> None:
    """There is no interval below the least number of runs, or without knowledge of the scatter."""
    question = Question(floor=0.95, false_alarm=0.05, least=3)
    found = compare(current, baseline, Noise(run=0.01), question)
    assert (found.low, found.high, found.answer) == (0.0, math.inf, Answer.OPEN)
    assert compare(current[:1], baseline[:1], Noise(run=0.01), QUESTION).answer is Answer.OPEN


@pytest.mark.parametrize("compare", [compare_with_stored, compare_in_turn])
@given(current=RATES, baseline=RATES, unit=st.floats(0.01, 100), session=st.sampled_from([0.0, 0.01]))
def test_units_and_order_do_not_change_the_interval(
    compare: Compare, current: list[float], baseline: list[float], unit: float, session: float
) -> None:
    """Rates in other units, and the baseline's runs in another order, have the same interval around the same ratio."""
    noise = Noise(run=0.01, degrees_of_freedom=12, session=session)
    found = compare(current, baseline, noise, QUESTION)
    again = compare([unit * rate for rate in current], [unit * rate for rate in reversed(baseline)], noise, QUESTION)
    assert (again.ratio, again.low, again.high) == pytest.approx((found.ratio, found.low, found.high), rel=1e-6)
    assert found.low < found.ratio < found.high


@given(current=RATES, baseline=RATES, faster=st.floats(1, 1.5))
def test_faster_runs_raise_all_bounds(current: list[float], baseline: list[float], faster: float) -> None:
    """If all runs are faster by a factor, so are both bounds."""
    one, other = (compare_with_stored([by * rate for rate in current], baseline, CALIBRATED, QUESTION) for by in (1.0, faster))
    assert (other.low, other.high) == pytest.approx((faster * one.low, faster * one.high), rel=1e-6)


@given(current=RATES, baseline=RATES, more=st.floats(1.01, 10))
def test_false_alarms_change_the_upper_bound_only(current: list[float], baseline: list[float], more: float) -> None:
    """More false alarms lower the upper bound, and do not change the lower one."""
    one, other = (
        compare_with_stored(current, baseline, CALIBRATED, Question(floor=0.95, false_alarm=level, missed=0.05))
        for level in (0.01, 0.01 * more)
    )
    assert other.high < one.high
    assert other.low == one.low


@pytest.mark.parametrize(
    "cv, margin, known, unknown",
    [(0.005, 0.05, 5, 5), (0.02, 0.05, 10, 11), (0.02, 0.10, 5, 5), (0.05, 0.02, None, None), (0.05, 0.05, None, None)],
    ids=["quiet", "usual", "usual, wide margin", "hopeless", "noisy"],
)
def test_needed_runs_depend_on_noise_and_margin(cv: float, margin: float, known: int | None, unknown: int | None) -> None:
    """The number of runs for a loss of twice the margin follows from noise and margin, and is None if no number suffices."""
    noise = Noise(run=cv, degrees_of_freedom=20)
    assert runs_needed(10, noise, margin, 0.05 / 24) == known
    assert runs_needed(10, replace(noise, degrees_of_freedom=0), margin, 0.05 / 24) == unknown


def test_needed_runs_are_enough_to_confirm() -> None:
    """Rarer false alarms need no fewer runs, and never fewer than confirm a loss."""
    levels = [0.05, 0.02, 0.002, 0.0005, 0.0001, 0.05 / 24 / 420, 1e-9]
    for known in (0, 20):
        noise = Noise(run=0.004, degrees_of_freedom=known)
        for baseline in (1, 2, 4, 5, 10, 30):
            needed = [runs_needed(baseline, noise, 0.05, level) or 10_000 for level in levels]
            assert needed == sorted(needed)
            assert all(runs >= runs_to_confirm(level) for runs, level in zip(needed, levels, strict=True))


def test_noise_between_sessions_can_hide_any_loss() -> None:
    """If sessions differ by as much as the loss, no number of runs suffices."""
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
def test_invalid_question_is_refused(values: dict[str, float], words: str) -> None:
    """A question with an invalid floor, ceiling or number of runs is refused with the reason."""
    with pytest.raises(ValueError, match=words):
        Question(false_alarm=0.05, **values)  # type: ignore[arg-type]  # a table of wrong values
