"""Is one rate, measured over and over, at least so many times another? Yes, no, better than that, or not to be told yet.

The samples are runs: one rate each. Their logarithms are taken to scatter alike on both sides, so that a ratio of rates is a
difference of means, and the means are geometric. The scatter is what the runs themselves show, together with what was found out
about the place before; it is never taken to be less than the latter. Student's t makes up for how few runs that rests on.

The interval is a repeated confidence interval (C. Jennison and B. W. Turnbull, Journal of the Royal Statistical Society B 51,
1989, 305-361): the answer is read from it after every run, and may be believed at whichever one stops. Critical values of a
normal statistic are turned into those of Student's t at equal significance (Jennison and Turnbull, Group Sequential Methods
with Applications to Clinical Trials, 2000, section 11.4); benchmarks/verdicts.py holds the error rates that come of it against
those that are stated.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pytest_dtfperf.stats.noise import Noise, pooled

# How early the two error rates are spent. What holds is to be seen soon: most measurements do, and every run costs machine
# time. What is worse has time: people will look at it.
MISSED_GAMMA = 4.0
FALSE_ALARM_GAMMA = -2.0

POWER = 0.95  # with which `runs_needed` wants to see a loss
SEQUENTIAL = 1.2  # times as small an error is needed for looking after every run, with Student's t, and for a confirmation
MOST_NEEDED = 1000  # runs, beyond which they are as good as infinitely many


class Answer(StrEnum):
    HOLDS = "holds"  # the ratio reaches the floor
    BETTER = "better"  # it even exceeds the ceiling
    WORSE = "worse"  # it does not reach the floor, and the last run has confirmed what those before it said
    UNCONFIRMED = "unconfirmed"  # worse by all runs up to now; one more must say so
    OPEN = "open"  # the floor lies within the interval, or nothing is known of the scatter


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and how often the answer may be wrong."""

    floor: float  # the ratio that must be reached: 0.95 where 5 % may be lost
    ceiling: float = math.inf  # above it is better
    false_alarm: float  # largest probability of WORSE where the ratio reaches the floor
    missed: float = 0.05  # largest probability of HOLDS where it does not
    least: int = 1  # runs before the first answer
    most: int = 10  # runs there can be

    def __post_init__(self) -> None:
        if not 0 < self.floor <= self.ceiling:
            raise ValueError(f"the floor must be positive and at most the ceiling, not {self.floor} and {self.ceiling}")
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least must be 1 to most={self.most}, not {self.least}")


@dataclass(frozen=True, kw_only=True)
class RatioEstimate:
    """A ratio as far as it is known."""

    ratio: float  # of the geometric means
    low: float  # it is at least this, unless by a miss; 0: nothing can be said
    high: float  # it is at most this, unless by a false alarm
    spread: float  # of single runs, as assumed: standard deviation of the logarithm, about the coefficient of variation
    degrees_of_freedom: float  # degrees of freedom that the spread rests on
    answer: Answer


def against_stored(now: Sequence[float], then: Sequence[float], noise: Noise, question: Question) -> RatioEstimate:
    """How `now`, run by run, compares with `then`, which was measured in another session and grows no more."""
    return _ask(_Sides(now, then, apart=True), noise, question)


def against_each_other(now: Sequence[float], then: Sequence[float], noise: Noise, question: Question) -> RatioEstimate:
    """How two rates compare that are measured in turn, in one session."""
    return _ask(_Sides(now, then, apart=False), noise, question)


@dataclass(frozen=True)
class _Sides:
    now: Sequence[float]
    then: Sequence[float]
    apart: bool  # in two sessions, which may differ as sessions do

    @property
    def analyses(self) -> int:
        """How often there was something new to look at."""
        return len(self.now) if self.apart else min(len(self.now), len(self.then))

    def one_analysis_before(self) -> "_Sides":
        """Without the last run; where both sides grow, without the last of the longer one, or of both."""
        shorter_now = self.now[:-1] if self.apart or len(self.now) >= len(self.then) else self.now
        shorter_then = self.then[:-1] if not self.apart and len(self.then) >= len(self.now) else self.then
        return _Sides(shorter_now, shorter_then, self.apart)

    def variance(self, extra: float) -> float:
        """Of the difference of means, in variances of a single run. `extra`: what two sessions add."""
        return 1 / len(self.now) + 1 / len(self.then) + extra

    def information(self, question: Question, extra: float) -> tuple[list[float], int]:
        """At every analysis there was or may be, and which of them this is."""
        this = 1 / self.variance(extra)
        if self.apart:
            planned = {
                count: 1 / (1 / count + 1 / len(self.then) + extra) for count in range(question.least, question.most + 1)
            }
        else:
            planned = {count: count / 2 for count in range(question.least, question.most + 1)}
        before = [each for count, each in planned.items() if count < self.analyses]
        after = [each for count, each in planned.items() if count > self.analyses and each > this]
        return [*before, this, *after], len(before)


def _ask(sides: _Sides, noise: Noise, question: Question) -> RatioEstimate:
    ratio = math.exp(_mean_log(sides.now) - _mean_log(sides.then))
    spread, degrees_of_freedom = pooled([sides.now, sides.then], noise)
    if not degrees_of_freedom or sides.analyses < question.least:
        return RatioEstimate(
            ratio=ratio, low=0.0, high=math.inf, spread=spread, degrees_of_freedom=degrees_of_freedom, answer=Answer.OPEN
        )
    low, high = _interval(sides, noise, question)
    answer = Answer.OPEN
    if high < question.floor:
        answer = Answer.WORSE if _is_confirmed(sides, noise, question) else Answer.UNCONFIRMED
    elif low > question.floor:
        answer = Answer.BETTER if low > question.ceiling else Answer.HOLDS
    return RatioEstimate(ratio=ratio, low=low, high=high, spread=spread, degrees_of_freedom=degrees_of_freedom, answer=answer)


def _interval(sides: _Sides, noise: Noise, question: Question) -> tuple[float, float]:
    from pytest_dtfperf.stats.sequential import critical_values

    spread, degrees_of_freedom = pooled([sides.now, sides.then], noise)
    extra = 2 * (noise.session / spread) ** 2 if sides.apart else 0.0
    analyses, here = sides.information(
        question, float(f"{extra:.3g}")
    )  # rounded, so that what was computed once is found again
    centre = _mean_log(sides.now) - _mean_log(sides.then)
    error = spread * math.sqrt(sides.variance(extra))
    so_far, total = tuple(analyses[: here + 1]), analyses[-1]
    below = _quantile(critical_values(so_far, question.missed, MISSED_GAMMA, total)[here], degrees_of_freedom)
    above = _quantile(critical_values(so_far, question.false_alarm, FALSE_ALARM_GAMMA, total)[here], degrees_of_freedom)
    return math.exp(centre - below * error), math.exp(centre + above * error)


def _is_confirmed(sides: _Sides, noise: Noise, question: Question) -> bool:
    """Whether it was worse without the last run already, and the last run, which had nothing to do with that, is so too."""
    before = sides.one_analysis_before()
    if not before.now or not before.then or before.analyses < question.least or not pooled([before.now, before.then], noise)[1]:
        return False
    alone = sides.now[-1] / math.exp(_mean_log(sides.then))
    return alone < question.floor and _interval(before, noise, question)[1] < question.floor


def runs_needed(then: int, noise: Noise, margin: float, false_alarm: float) -> int | None:
    """How many runs there must be allowed, to see a loss of twice the margin with a power of 0.95; None: no number suffices.

    `then`: how many runs the baseline has. Reckoned for a single look at a normal statistic, and then some (`SEQUENTIAL`).
    """
    from scipy.special import ndtri

    loss = math.log1p(-margin) - math.log1p(-2 * margin) if margin < 0.5 else math.inf
    error = loss / float(ndtri(1 - false_alarm) + ndtri(POWER)) / SEQUENTIAL
    left = (error**2 - 2 * noise.session**2) / noise.run**2 - 1 / then
    if left <= 1 / MOST_NEEDED:
        return None
    return max(1, math.ceil(1 / left))


def _quantile(critical: float, degrees_of_freedom: float) -> float:
    """Of Student's t, where a normal statistic would have this critical value."""
    from scipy.special import ndtr, stdtrit

    return -float(stdtrit(degrees_of_freedom, ndtr(-critical)))


def _mean_log(rates: Sequence[float]) -> float:
    return math.fsum(map(math.log, rates)) / len(rates)
