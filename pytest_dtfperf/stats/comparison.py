"""Is one rate, measured over and over, at least so many times another? Yes, no, better than that, or not to be told yet.

The samples are runs: one rate each. A ratio of rates is a difference of the means of their logarithms, so the means are
geometric. The scatter is what the runs show, together with what was calibrated; it is never taken to be less than the latter.
Two measurements of the same training scatter alike, and their runs are pooled. Any other two each have their own scatter, and
the error of their difference is that of B. L. Welch (Biometrika 34, 1947, 28-35). Student's t makes up for few runs.

The interval is a repeated confidence interval (C. Jennison and B. W. Turnbull, Journal of the Royal Statistical Society B 51,
1989, 305-361): the answer is read from it after every run, and may be believed at whichever one stops. Critical values of a
normal statistic are turned into those of Student's t at equal significance (Jennison and Turnbull, Group Sequential Methods
with Applications to Clinical Trials, 2000, section 11.4); benchmarks/verdicts.py holds the error rates that come of it against
those that are stated.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product

from pytest_dtfperf.stats.noise import Noise, pooled, welch

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
    spread: float  # of single runs of the first side, as assumed: standard deviation of the logarithm
    degrees_of_freedom: float  # degrees of freedom that the spread rests on
    answer: Answer


def against_stored(
    now: Sequence[float], then: Sequence[float], noise: Noise, question: Question, *, then_noise: Noise | None = None
) -> RatioEstimate:
    """Compare `now`, run by run, with `then`, which was measured in another session and gets no further runs.

    `then_noise`: the noise of `then`, if it is another training or was measured by others; None: both scatter alike.
    """
    return _ask(_Sides(now, then, noise, then_noise or noise, alike=then_noise is None, apart=True), question)


def against_each_other(
    now: Sequence[float], then: Sequence[float], noise: Noise, then_noise: Noise | None, question: Question
) -> RatioEstimate:
    """Compare two trainings whose runs are made in turn, in one session. Each has its own noise; None: both scatter alike."""
    return _ask(_Sides(now, then, noise, then_noise or noise, alike=then_noise is None, apart=False), question)


def against_drifting(
    now: Sequence[Sequence[float]], then: Sequence[Sequence[float]], noise: Noise, then_noise: Noise, question: Question
) -> RatioEstimate:
    """Compare two trainings of one session, of which one was measured before and after the other: it has two groups of runs.

    What the machine did in between is taken to lie between the groups. So each is compared for itself, only what both answer
    is an answer, and the interval reaches from the lower of their ends to the higher.
    """
    within, then_within = replace(noise, session=0.0), replace(then_noise, session=0.0)
    found = []
    for one, other in product(now, then):
        others = tuple(each for each in now if each is not one), tuple(each for each in then if each is not other)
        least = min(max(question.least, len(one) - 1), len(one))  # one look, and the one before it that confirms
        enough = len(one) >= question.least and len(other) >= 1
        once = replace(question, least=least, most=len(one)) if enough else replace(question, least=question.most)
        found.append(_ask(_Sides(one, other, within, then_within, alike=False, apart=True, beside=others), once))
    answers = {each.answer for each in found}
    return RatioEstimate(
        ratio=math.exp(math.fsum(math.log(each.ratio) for each in found) / len(found)),
        low=min(each.low for each in found),
        high=max(each.high for each in found),
        spread=found[0].spread,
        degrees_of_freedom=min(each.degrees_of_freedom for each in found),
        answer=_joint_answer(answers),
    )


def _joint_answer(answers: Set[Answer]) -> Answer:
    """Return what all of these say."""
    for weaker, either in ((Answer.HOLDS, Answer.BETTER), (Answer.UNCONFIRMED, Answer.WORSE)):
        if answers <= {weaker, either}:
            return either if answers == {either} else weaker
    return Answer.OPEN


@dataclass(frozen=True)
class _Sides:
    now: Sequence[float]
    then: Sequence[float]
    now_noise: Noise
    then_noise: Noise
    alike: bool  # both are the same training, which scatters as it did
    apart: bool  # `then` was measured at another time and gets no further runs; in another session, which may differ
    beside: tuple[Sequence[Sequence[float]], ...] = ((), ())  # of either side, further runs that show how it scatters

    @property
    def analyses(self) -> int:
        """How often there was something new to look at."""
        return len(self.now) if self.apart else min(len(self.now), len(self.then))

    def one_analysis_before(self) -> "_Sides":
        """Without the last run; where both sides grow, without the last of the longer one, or of both."""
        shorter_now = self.now[:-1] if self.apart or len(self.now) >= len(self.then) else self.now
        shorter_then = self.then[:-1] if not self.apart and len(self.then) >= len(self.now) else self.then
        return replace(self, now=shorter_now, then=shorter_then)

    def error(self) -> "_Error":
        """Return how far the difference of means may be off."""
        if self.alike:
            spread, degrees_of_freedom = pooled([self.now, self.then], self.now_noise)
            now, then, cautious = spread, spread, degrees_of_freedom
        else:
            now, now_degrees = pooled([self.now, *self.beside[0]], self.now_noise)
            then, then_degrees = pooled([self.then, *self.beside[1]], self.then_noise)
            parts = (now**2 / len(self.now), now_degrees), (then**2 / len(self.then), then_degrees)
            degrees_of_freedom, cautious = welch(*parts)
        sessions = self.now_noise.session**2 + self.then_noise.session**2 if self.apart else 0.0
        return _Error(len(self.now), len(self.then), now, then, sessions, degrees_of_freedom, cautious)

    def information(self, error: "_Error", question: Question) -> tuple[list[float], int]:
        """Return the information at each analysis that there was or may be, and which of them this is."""
        this = 1 / error.relative_variance()
        counts = range(question.least, question.most + 1)
        of = {count: replace(error, now_runs=count, then_runs=len(self.then) if self.apart else count) for count in counts}
        planned = {count: 1 / each.relative_variance() for count, each in of.items()}
        before = [each for count, each in planned.items() if count < self.analyses]
        after = [each for count, each in planned.items() if count > self.analyses and each > this]
        return [*before, this, *after], len(before)


@dataclass(frozen=True)
class _Error:
    """What the variance of a difference of means is made of."""

    now_runs: int
    then_runs: int
    now: float  # standard deviation of single runs
    then: float
    sessions: float  # variance that two sessions add
    degrees_of_freedom: float
    cautious: float  # degrees of freedom for passing, most of whose error rate is spent on the first runs, unconfirmed

    @property
    def value(self) -> float:
        return math.sqrt(self.now**2 / self.now_runs + self.then**2 / self.then_runs + self.sessions)

    def relative_variance(self) -> float:
        """Return the variance in units of the two sides' mean variance of single runs.

        It is rounded, so that critical values that were computed once are found again.
        """
        unit = (self.now**2 + self.then**2) / 2
        sessions = float(f"{self.sessions / unit:.3g}")
        if self.now_runs == self.then_runs:
            return 2 / self.now_runs + sessions
        now = float(f"{self.now**2 / unit:.3g}")
        return now / self.now_runs + (2 - now) / self.then_runs + sessions


def _ask(sides: _Sides, question: Question) -> RatioEstimate:
    ratio = math.exp(_mean_log(sides.now) - _mean_log(sides.then))
    error = sides.error()
    low, high, answer = 0.0, math.inf, Answer.OPEN
    if error.degrees_of_freedom and sides.analyses >= question.least:
        low, high = _interval(sides, error, question)
        if high < question.floor:
            answer = Answer.WORSE if _is_confirmed(sides, question) else Answer.UNCONFIRMED
        elif low > question.floor:
            answer = Answer.BETTER if low > question.ceiling else Answer.HOLDS
    return RatioEstimate(
        ratio=ratio, low=low, high=high, spread=error.now, degrees_of_freedom=error.degrees_of_freedom, answer=answer
    )


def _interval(sides: _Sides, error: _Error, question: Question) -> tuple[float, float]:
    from pytest_dtfperf.stats.sequential import critical_values

    analyses, here = sides.information(error, question)
    centre = _mean_log(sides.now) - _mean_log(sides.then)
    so_far, total = tuple(analyses[: here + 1]), analyses[-1]
    below = _quantile(critical_values(so_far, question.missed, MISSED_GAMMA, total)[here], error.cautious)
    above = _quantile(critical_values(so_far, question.false_alarm, FALSE_ALARM_GAMMA, total)[here], error.degrees_of_freedom)
    return math.exp(centre - below * error.value), math.exp(centre + above * error.value)


def _is_confirmed(sides: _Sides, question: Question) -> bool:
    """Whether it was worse without the last run already, and the last run, which had nothing to do with that, is so too."""
    before = sides.one_analysis_before()
    if not before.now or not before.then or before.analyses < question.least:
        return False
    error = before.error()
    alone = sides.now[-1] / math.exp(_mean_log(sides.then))
    return bool(error.degrees_of_freedom) and alone < question.floor and _interval(before, error, question)[1] < question.floor


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
