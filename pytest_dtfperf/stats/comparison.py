"""Decide whether one rate is at least so many times another, from repeated measurements of both.

The samples are runs: one rate each. A ratio of rates is a difference of the means of their logarithms, so that the means are
geometric. The scatter is that of the runs, together with the calibrated one, and never less than the latter. Two measurements
of the same training scatter alike, and their runs are pooled. Any other two each have their own scatter, and the error of their
difference is that of B. L. Welch (Biometrika 34, 1947, 28-35). Student's t makes up for few runs.

The interval is a repeated confidence interval (C. Jennison and B. W. Turnbull, Journal of the Royal Statistical Society B 51,
1989, 305-361): it is valid after every run, and measuring may stop at any of them. Critical values of a normal statistic are
converted to those of Student's t at equal significance (Jennison and Turnbull, Group Sequential Methods with Applications to
Clinical Trials, 2000, section 11.4); benchmarks/verdicts.py compares the resulting error rates with the stated ones.
"""

import json
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from itertools import product
from pathlib import Path

from pytest_dtfperf.stats.noise import (
    DEGREES_FOR_ONE_RUN,
    NONE_SLOW,
    Noise,
    SlowRuns,
    drop_slowest,
    pool_spreads,
    runs_to_confirm,
    slow_runs,
    welch,
)

# How early the two error rates are spent. What holds is to be seen soon: most measurements do, and every run costs machine
# time. What is worse has time: people will look at it.
MISSED_GAMMA = 4.0
FALSE_ALARM_GAMMA = -2.0

RARE_SLOWDOWN = 2.0  # times the usual duration that a rare run takes at most, where too few runs show that it is rare
MOST_NEEDED = 1000  # runs, from which on they count as infinitely many

Rates = Sequence[float]  # of the runs of one side


class Answer(StrEnum):
    """The possible answers to a question about a ratio."""

    HOLDS = "holds"  # the ratio reaches the floor
    BETTER = "better"  # it even exceeds the ceiling
    WORSE = "worse"  # it does not reach the floor, more runs agree than can be rare, and the last one has confirmed it
    UNCONFIRMED = "unconfirmed"  # worse by all runs up to now; further ones must confirm it
    OPEN = "open"  # the floor is within the interval, or there are too few runs for one


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question about a ratio of rates, and the permitted error rates of its answer."""

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
    """An estimate of a ratio with its interval, and the answer to the question."""

    ratio: float  # of the geometric means
    low: float  # it is at least this, unless by a miss; 0: unknown
    high: float  # it is at most this, unless by a false alarm
    spread: float  # of single runs of the first side, as assumed: standard deviation of the logarithm
    degrees_of_freedom: float  # degrees of freedom that the spread rests on
    answer: Answer
    current_slow: SlowRuns = NONE_SLOW  # runs that are slower than the others of their side: the rare ones are set aside
    baseline_slow: SlowRuns = NONE_SLOW

    @property
    def has_interval(self) -> bool:
        """Whether there are enough runs for an interval."""
        return self.degrees_of_freedom > 0 and self.low > 0

    def convert_interval(self, convert: Callable[[float], float]) -> tuple[float, float] | None:
        """Return the interval of a number that follows from the ratio, its lower end first; None without an interval.

        The lower end may be that of the higher ratio.
        """
        if not self.has_interval:
            return None
        ends = convert(self.low), convert(self.high)
        return min(ends), max(ends)


def compare_with_stored(
    current: Rates, baseline: Rates, noise: Noise, question: Question, *, baseline_noise: Noise | None = None
) -> RatioEstimate:
    """Compare `current`, run by run, with `baseline`, which was measured in another session and gets no further runs.

    `baseline_noise` is the noise of `baseline`, if it is another training or was measured by others; None: both scatter alike.
    """
    sides = _Sides(current, baseline, noise, baseline_noise or noise, same_training=baseline_noise is None, is_fixed=True)
    return _ask(sides, question)


def compare_alternating(
    current: Rates, baseline: Rates, noise: Noise, baseline_noise: Noise | None, question: Question
) -> RatioEstimate:
    """Compare two trainings with alternating runs in one session. Each has its own noise; None: both scatter alike."""
    sides = _Sides(current, baseline, noise, baseline_noise or noise, same_training=baseline_noise is None, is_fixed=False)
    return _ask(sides, question)


def compare_drifting(
    current: Sequence[Rates], baseline: Sequence[Rates], noise: Noise, baseline_noise: Noise, question: Question
) -> RatioEstimate:
    """Compare two trainings of one session, of which one was measured before and after the other, in two groups of runs.

    Any drift of the machine is assumed to be between the groups. So each group is compared by itself, only a common answer
    counts, and the interval reaches from the lower of their ends to the higher.
    """
    within, baseline_within = replace(noise, session=0.0), replace(baseline_noise, session=0.0)
    found = []
    for one, other in product(current, baseline):
        others = tuple(each for each in current if each is not one), tuple(each for each in baseline if each is not other)
        least = min(max(question.least, len(one) - 1), len(one))  # one analysis, and the one before it for confirmation
        enough = len(one) >= question.least and len(other) >= 1
        once = replace(question, least=least, most=len(one)) if enough else replace(question, least=question.most)
        sides = _Sides(one, other, within, baseline_within, same_training=False, is_fixed=True, further=others)
        found.append(_ask(sides, once))
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
    """Return the common conclusion of all answers."""
    for weaker, either in ((Answer.HOLDS, Answer.BETTER), (Answer.UNCONFIRMED, Answer.WORSE)):
        if answers <= {weaker, either}:
            return either if answers == {either} else weaker
    return Answer.OPEN


@dataclass(frozen=True)
class _Sides:
    current: Sequence[float]
    baseline: Sequence[float]
    current_noise: Noise
    baseline_noise: Noise
    same_training: bool  # both are the same training, which scatters as it did
    is_fixed: bool  # `baseline` was measured at another time and gets no further runs; in another session, which may differ
    further: tuple[Sequence[Sequence[float]], ...] = ((), ())  # further runs of either side, for its scatter
    analysis_count: int = 0  # of analyses, if runs were left out since

    @property
    def analyses(self) -> int:
        """Return the number of analyses so far, one after each new run."""
        return self.analysis_count or (len(self.current) if self.is_fixed else min(len(self.current), len(self.baseline)))

    def drop_last_run(self) -> "_Sides":
        """Return the sides without the last run; where both grow, without the last of the longer one, or of both."""
        current = self.current[:-1] if self.is_fixed or len(self.current) >= len(self.baseline) else self.current
        baseline = self.baseline[:-1] if not self.is_fixed and len(self.baseline) >= len(self.current) else self.baseline
        return replace(self, current=current, baseline=baseline)

    def slow(self, question: Question) -> tuple[SlowRuns, SlowRuns]:
        """Return the slowest runs of either side."""
        baseline_slow = slow_runs(self.baseline, self.baseline_noise, question.missed)
        others = [drop_slowest(self.baseline, baseline_slow.doubtful)] if self.same_training else []
        return slow_runs(self.current, self.current_noise, question.false_alarm, others), baseline_slow

    def drop_slowest(self, current_count: int, baseline_count: int) -> "_Sides":
        """Return the sides without so many of the slowest runs of either."""
        current, baseline = drop_slowest(self.current, current_count), drop_slowest(self.baseline, baseline_count)
        return replace(self, current=current, baseline=baseline, analysis_count=self.analyses)

    def compute_error(self) -> "_Error":
        """Return the error of the difference of means."""
        if self.same_training:
            spread, degrees_of_freedom = pool_spreads([self.current, self.baseline], self.current_noise)
            current_spread, baseline_spread, cautious = spread, spread, degrees_of_freedom
        else:
            current_spread, current_degrees = pool_spreads([self.current, *self.further[0]], self.current_noise)
            baseline_spread, baseline_degrees = pool_spreads([self.baseline, *self.further[1]], self.baseline_noise)
            variances = current_spread**2 / len(self.current), baseline_spread**2 / len(self.baseline)
            degrees_of_freedom, cautious = welch((variances[0], current_degrees), (variances[1], baseline_degrees))
        sessions = self.current_noise.session**2 + self.baseline_noise.session**2 if self.is_fixed else 0.0
        counts = len(self.current), len(self.baseline)
        return _Error(*counts, current_spread, baseline_spread, sessions, degrees_of_freedom, cautious)

    def information(self, error: "_Error", question: Question) -> tuple[list[float], int]:
        """Return the information at each past and future analysis, and the index of the current one."""
        this = 1 / error.relative_variance()
        counts = range(question.least, question.most + 1)
        others = [len(self.baseline) if self.is_fixed else count for count in counts]
        errors = (replace(error, current_runs=one, baseline_runs=other) for one, other in zip(counts, others, strict=True))
        planned = {each.current_runs: 1 / each.relative_variance() for each in errors}
        before = [each for count, each in planned.items() if count < self.analyses and each < this]
        after = [each for count, each in planned.items() if count > self.analyses and each > this]
        return [*before, this, *after], len(before)


@dataclass(frozen=True)
class _Error:
    """The parts of the variance of a difference of means."""

    current_runs: int
    baseline_runs: int
    current_spread: float  # standard deviation of single runs
    baseline_spread: float
    sessions: float  # variance that two sessions add
    degrees_of_freedom: float
    cautious: float  # degrees of freedom for passing: most of its error rate is spent on the first runs, unconfirmed

    @property
    def value(self) -> float:
        variances = self.current_spread**2 / self.current_runs, self.baseline_spread**2 / self.baseline_runs
        return math.sqrt(sum(variances) + self.sessions)

    def relative_variance(self) -> float:
        """Return the variance in units of the two sides' mean variance of single runs.

        It is rounded, so that critical values that were computed once are found again.
        """
        unit = (self.current_spread**2 + self.baseline_spread**2) / 2
        sessions = float(f"{self.sessions / unit:.3g}")
        if self.current_runs == self.baseline_runs:
            return 2 / self.current_runs + sessions
        part = float(f"{self.current_spread**2 / unit:.3g}")
        return part / self.current_runs + (2 - part) / self.baseline_runs + sessions


def _ask(sides: _Sides, question: Question) -> RatioEstimate:
    current_slow, baseline_slow = sides.slow(question)
    kept = sides.drop_slowest(current_slow.rare, baseline_slow.rare)
    ratio = math.exp(_mean_log(kept.current) - _mean_log(kept.baseline))
    error = kept.compute_error()
    low, high, answer = 0.0, math.inf, Answer.OPEN
    if error.degrees_of_freedom and sides.analyses >= question.least:
        low, high = _interval(sides, question)
        if high < question.floor:
            answer = Answer.WORSE if _is_confirmed(sides, high, question) else Answer.UNCONFIRMED
        elif low > question.floor:
            answer = Answer.BETTER if low > question.ceiling else Answer.HOLDS
    return RatioEstimate(
        ratio=ratio,
        low=low,
        high=high,
        spread=error.current_spread,
        degrees_of_freedom=error.degrees_of_freedom,
        answer=answer,
        current_slow=current_slow,
        baseline_slow=baseline_slow,
    )


def _interval(sides: _Sides, question: Question) -> tuple[float, float]:
    """Return the interval without rare runs, as wide as it becomes without the runs that may be rare ones."""
    current_slow, baseline_slow = sides.slow(question)
    low, high = _plain_interval(sides.drop_slowest(current_slow.rare, baseline_slow.rare), question)
    if current_slow.doubtful > current_slow.rare:
        high = max(high, _plain_interval(sides.drop_slowest(current_slow.doubtful, baseline_slow.rare), question)[1])
    if baseline_slow.doubtful > baseline_slow.rare:
        low = min(low, _plain_interval(sides.drop_slowest(current_slow.rare, baseline_slow.doubtful), question)[0])
    return low, high


def _plain_interval(sides: _Sides, question: Question) -> tuple[float, float]:
    from pytest_dtfperf.stats.sequential import compute_critical_values

    error = sides.compute_error()
    if not error.degrees_of_freedom:
        return 0.0, math.inf
    analyses, here = sides.information(error, question)
    centre = _mean_log(sides.current) - _mean_log(sides.baseline)
    so_far, total = tuple(analyses[: here + 1]), analyses[-1]
    below = convert_to_t(compute_critical_values(so_far, question.missed, MISSED_GAMMA, total)[here], error.cautious)
    above = convert_to_t(
        compute_critical_values(so_far, question.false_alarm, FALSE_ALARM_GAMMA, total)[here], error.degrees_of_freedom
    )
    return math.exp(centre - below * error.value), math.exp(centre + above * error.value)


def _is_confirmed(sides: _Sides, high: float, question: Question) -> bool:
    """Return whether a loss is certain.

    It is if it was seen without the last run, that run shows it by itself, and rare runs do not explain it. `high` is the
    interval's upper end. Where fewer runs are permitted than that takes, a loss is certain that would be seen even if all runs
    were rare ones, which take up to `RARE_SLOWDOWN` times as long, and if the noise is known.
    """
    needed = runs_to_confirm(question.false_alarm) - sum(map(len, sides.further[0]))
    if question.most < max(needed, question.least + 1):
        is_known = min(sides.current_noise.degrees_of_freedom, sides.baseline_noise.degrees_of_freedom) >= DEGREES_FOR_ONE_RUN
        return is_known and sides.analyses >= question.most and high * RARE_SLOWDOWN < question.floor
    before = sides.drop_last_run()
    if sides.analyses < needed or not before.current or not before.baseline or before.analyses < question.least:
        return False
    current_slow, baseline_slow = sides.slow(question)
    fastest = sorted(range(len(sides.current)), key=lambda run: -sides.current[run])[: len(sides.current) - current_slow.rare]
    last_ratio = sides.current[-1] / math.exp(_mean_log(drop_slowest(sides.baseline, baseline_slow.rare)))
    is_alike = len(sides.current) - 1 in fastest and last_ratio < question.floor
    return is_alike and _interval(before, question)[1] < question.floor


def runs_needed(baseline_runs: int, noise: Noise, margin: float, false_alarm: float) -> int | None:
    """Return the number of runs that finds a loss of twice the margin in 95 of 100 cases; None: no number suffices.

    The power of the test was simulated (benchmarks/power.py). Between the values of that table the safe side is used.

    Args:
        baseline_runs: The number of runs of the baseline.
        noise: The noise of both sides.
        margin: The tolerated loss, as a fraction.
        false_alarm: The error rate that the check may spend, as `baselines.terms.share` returns it.
    """
    loss = math.log1p(-margin) - math.log1p(-2 * margin) if margin < 0.5 else math.inf
    is_known = noise.degrees_of_freedom >= DEGREES_FOR_ONE_RUN

    def suffices(runs: int) -> bool:
        error = math.sqrt(noise.run**2 * (1 / runs + 1 / baseline_runs) + 2 * noise.session**2)
        return loss >= _count_errors_needed(is_known, baseline_runs, runs, false_alarm) * error

    if not suffices(MOST_NEEDED):
        return None
    return next(runs for runs in range(1, MOST_NEEDED + 1) if suffices(runs))


def _count_errors_needed(is_known: bool, baseline_runs: int, runs: int, false_alarm: float) -> float:
    """Return the smallest loss beyond the margin that is found in 95 of 100 cases, in standard errors."""
    from scipy.special import ndtri

    table = _power()
    baseline = max((each for each in table[is_known] if each <= baseline_runs), default=min(table[is_known]))
    found = []  # for each level of false alarms, the larger result of the two neighbouring numbers of runs
    for level, of_runs in sorted(table[is_known][baseline].items()):
        fewer = max((each for each in of_runs if each <= runs), default=None)
        if fewer is None:
            continue
        more = min((each for each in of_runs if each >= runs), default=fewer)
        found.append((-float(ndtri(level)), max(of_runs[fewer], of_runs[more])))
    wanted = -float(ndtri(false_alarm))
    if runs < runs_to_confirm(false_alarm) or not found:
        return math.inf
    above = [each for each in found if each[0] >= wanted]
    below = [each for each in found if each[0] <= wanted]
    if not below:
        return found[-1][1]
    if not above:  # rarer than any that was simulated, at this number of runs
        value, errors = found[0]
        return errors * wanted / value if len(found) == len(table[is_known][baseline]) else math.inf
    (low, smaller), (high, larger) = below[0], above[-1]
    return smaller if high == low else smaller + (larger - smaller) * (wanted - low) / (high - low)


@lru_cache(maxsize=1)
def _power() -> dict[bool, dict[int, dict[float, dict[int, float]]]]:
    """Return the table of power: by whether noise is known, runs of the baseline, level of false alarms, and runs."""
    table: dict[bool, dict[int, dict[float, dict[int, float]]]] = {}
    for row in json.loads(Path(__file__).with_name("power.json").read_text(encoding="utf-8")):
        levels = table.setdefault(row["calibrated"], {}).setdefault(row["baseline"], {})
        levels.setdefault(row["false_alarm"], {})[row["runs"]] = row["errors"]
    return table


def convert_to_t(critical: float, degrees_of_freedom: float) -> float:
    """Return the quantile of Student's t at the significance of a critical value of the standard normal distribution."""
    from scipy.special import ndtr, stdtrit

    return -float(stdtrit(degrees_of_freedom, ndtr(-critical)))


def _mean_log(rates: Sequence[float]) -> float:
    return math.fsum(map(math.log, rates)) / len(rates)
