"""Estimate how much rates scatter, from run to run and from session to session, and set rare slow runs aside.

All computations are with logarithms of rates, so that they are about fractions of a rate.

The model of rare slow runs: at most one run in ten (`RARE`) is slow by any amount, independently of the others; all others are
normally distributed. A run that is clearly slower than the rest of its sample counts as rare and is set aside, as long as no
more than one run in five is. Several slow runs may also be rare ones by chance: a loss must hold without as many of the slowest
as could be rare. benchmarks/verdicts.py and docs/statistics.md have the error rates with and without such runs.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

LEAST_SESSIONS = 2  # the fewest sessions for a spread of their means
DEGREES_FOR_ONE_RUN = (
    10.0  # degrees of freedom from which on a single run is judged: the error of the spread is 22 %, with two runs 71 %
)
ROUNDING = 1e-9  # measured rates differ by more
BY_CHANCE = 0.01  # of the cases with nothing wrong in the noise that are reported
PERMUTATIONS = 2000


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The standard deviations of the logarithm of a rate. 0.02 is a coefficient of variation of about 2 %."""

    run: float  # of the runs of one session, and the least that is assumed
    degrees_of_freedom: float = 0.0  # degrees of freedom that `run` was estimated with; 0: it was assumed
    session: float = 0.0  # of what all runs of a session have in common: other hosts, another boot, another day

    def __post_init__(self) -> None:
        if not (self.run > 0 and self.degrees_of_freedom >= 0 and self.session >= 0):
            raise ValueError(f"noise is positive, not {self}")


def pool_spreads(groups: Iterable[Sequence[float]], noise: Noise) -> tuple[float, float]:
    """Return the spread of single runs, and its degrees of freedom.

    The spreads of the groups and the known noise are weighted by their degrees of freedom.
    """
    squares, degrees_of_freedom = noise.degrees_of_freedom * noise.run**2, noise.degrees_of_freedom
    for group in groups:
        logs = [math.log(rate) for rate in group]
        squares += sum_squares(logs)
        degrees_of_freedom += len(logs) - 1
    return max(math.sqrt(squares / degrees_of_freedom) if degrees_of_freedom else 0.0, noise.run), degrees_of_freedom


def sum_squares(logs: Sequence[float]) -> float:
    """Return the sum of squared differences from the mean."""
    mean = statistics.fmean(logs)
    return math.fsum((log - mean) ** 2 for log in logs)


def welch(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """Return the degrees of freedom of the sum of two variances of means, given as (variance, its degrees of freedom).

    B. L. Welch (Biometrika 34, 1947, 28-35) takes the sum for a multiple of chi-squared. Where a variance rests on one or two
    degrees of freedom and is five times the other, a test at 5 % then errs in up to 9 %, one at 0.18 % in up to 0.4 %. The
    smaller of the two sides' degrees of freedom is safe, but costs a run more (M. R. Mickey, M. B. Brown, Annals of
    Mathematical Statistics 37, 1966, 639-643). From two degrees of freedom on, both numbers go from the geometric mean of the
    two to Welch's. For one, the first stays there: that suffices for an error rate that is spent late, by what a further run
    confirms; the second is the smaller one, for an error rate that is spent early.
    """
    least = min(one[1], other[1])
    if not least:
        return 0.0, 0.0
    approximate = (one[0] + other[0]) ** 2 / (one[0] ** 2 / one[1] + other[0] ** 2 / other[1])
    late, early = (approximate * (least / approximate) ** (1 / max(at_least, least)) for at_least in (2.0, 1.0))
    return late, early


def estimate_variance_components(sessions: Sequence[Sequence[float]]) -> Noise:
    """Return the noise of sessions between which nothing changed, from one sequence of rates each.

    Random effects, one way, with groups of any size: S. R. Searle, G. Casella, C. E. McCulloch, Variance Components, 1992,
    section 3.6. A negative estimate of the variance between sessions is 0, as usual. Raises `ValueError` for too few rates.
    """
    groups = [[math.log(rate) for rate in rates] for rates in sessions if rates]
    total = sum(map(len, groups))
    degrees_of_freedom = total - len(groups)
    if len(groups) < LEAST_SESSIONS or degrees_of_freedom < 1:
        raise ValueError(
            f"{total} runs in {len(groups)} sessions are too few for noise: there must be at least {LEAST_SESSIONS} sessions, "
            "and in one of them two runs"
        )
    within = sum(map(sum_squares, groups)) / degrees_of_freedom
    mean = statistics.fmean(log for logs in groups for log in logs)
    between = sum(len(logs) * (statistics.fmean(logs) - mean) ** 2 for logs in groups) / (len(groups) - 1)
    size = (total - sum(len(logs) ** 2 for logs in groups) / total) / (len(groups) - 1)
    if within < ROUNDING**2:
        raise ValueError("all runs of each session have the very same rate: that is no measurement")
    return Noise(
        run=math.sqrt(within), degrees_of_freedom=degrees_of_freedom, session=math.sqrt(max(0.0, (between - within) / size))
    )


def compute_correlation(sessions: Sequence[Sequence[float]]) -> float | None:
    """Return the correlation of runs with the run before them in their session; None if it may be chance.

    By permutation of the runs within their sessions (E. S. Edgington, Randomization Tests, 1980), one-sided: of independent
    runs, a fraction `BY_CHANCE` is reported. The estimate corrects for the sessions' means, which are estimated, too.
    """
    import numpy as np

    groups = [np.log(rates) - np.log(rates).mean() for rates in sessions if len(rates) > 1]
    squares = sum(float(group @ group) for group in groups)
    if len(groups) < LEAST_SESSIONS or squares < ROUNDING**2:
        return None
    random = np.random.default_rng(len(groups))
    shuffled = [random.permuted(np.tile(group, (PERMUTATIONS, 1)), axis=1) for group in groups]
    permuted = sum((group[:, 1:] * group[:, :-1]).sum(axis=1) for group in shuffled)
    found = sum(float(group[1:] @ group[:-1]) for group in groups)
    if (1 + np.count_nonzero(permuted >= found - ROUNDING * squares)) / (1 + PERMUTATIONS) > BY_CHANCE:
        return None
    return min(1.0, (found - float(np.mean(permuted))) / squares)


def do_sessions_differ(sessions: Sequence[Sequence[float]]) -> bool:
    """Return whether sessions differ by more than their runs explain: an F test, with `BY_CHANCE` of errors."""
    import numpy as np
    from scipy.special import fdtrc

    groups = [np.log(rates) for rates in sessions if rates]
    total = sum(map(len, groups))
    degrees_of_freedom = total - len(groups)
    if len(groups) < LEAST_SESSIONS or degrees_of_freedom < 1:
        return False
    mean = np.concatenate(groups).mean()
    between = sum(len(group) * float(group.mean() - mean) ** 2 for group in groups) / (len(groups) - 1)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / degrees_of_freedom
    if within < ROUNDING**2:
        return False
    return bool(fdtrc(len(groups) - 1, degrees_of_freedom, between / within) <= BY_CHANCE)


RARE = 0.1  # the largest fraction of runs that may be slow for reasons outside of the training
RUNS_FOR_EACH = 5  # runs that a sample needs for each run that is set aside
CLEARLY = 0.001  # a run is set aside if one as slow among the others is less probable than this
PERHAPS = 0.02  # a loss must also be seen without a run less probable than this


@dataclass(frozen=True, kw_only=True)
class SlowRuns:
    """The slowest runs of a sample."""

    runs: int = 0  # the number of runs
    slow: int = 0  # runs that are clearly slower than the rest
    doubtful: int = 0  # slowest runs that may be rare ones, and must not decide alone
    slower: float = 0.0  # how much slower the slow ones are than the rest, as a fraction

    @property
    def rare(self) -> int:
        """Return the number of the slowest runs that are set aside."""
        return self.slow if self.slow * RUNS_FOR_EACH <= self.runs else 0


NONE_SLOW = SlowRuns()


def slow_runs(rates: Sequence[float], noise: Noise, level: float, others: Sequence[Sequence[float]] = ()) -> SlowRuns:
    """Find the runs of a sample that are slower than its other runs.

    Args:
        noise: what was calibrated.
        level: the largest probability with which rare runs alone may decide.
        others: further samples that scatter as this one does.
    """
    logs = sorted(map(math.log, rates), reverse=True)
    runs, slow, doubtful = len(logs), 0, 0
    for slowest in range(1, runs):
        rest = logs[: runs - slowest]
        spread, degrees_of_freedom = pool_spreads([[math.exp(log) for log in rest], *others], noise)
        if not degrees_of_freedom:
            continue
        distance = (math.fsum(rest) / len(rest) - logs[len(rest)]) / (spread * math.sqrt(1 + 1 / len(rest)))
        if distance > compute_t_quantile(CLEARLY, degrees_of_freedom):
            slow = slowest
        if distance > compute_t_quantile(PERHAPS, degrees_of_freedom) and slowest <= count_most_rare(runs, level):
            doubtful = slowest
    slower = (
        1 - math.exp(math.fsum(logs[runs - slow :]) / slow - math.fsum(logs[: runs - slow]) / (runs - slow)) if slow else 0.0
    )
    found = SlowRuns(runs=runs, slow=slow, slower=slower)
    return SlowRuns(runs=runs, slow=slow, slower=slower, doubtful=max(doubtful, found.rare))


def drop_slowest(rates: Sequence[float], slowest: int) -> list[float]:
    """Return the rates without so many of the slowest, in their order; of equal ones the last go first."""
    fastest = sorted(range(len(rates)), key=lambda run: -rates[run])[: len(rates) - slowest]
    return [rates[run] for run in sorted(fastest)]


@lru_cache(maxsize=1024)
def count_most_rare(runs: int, level: float) -> int:
    """Return the largest number of rare runs among so many that is seen with a probability of more than `level`."""
    from scipy.special import bdtrc

    return max(slow for slow in range(runs + 1) if slow == 0 or bdtrc(slow - 1, runs, RARE) > level)


@lru_cache(maxsize=1024)
def runs_to_confirm(false_alarm: float) -> int:
    """Return the number of runs that are, if all are slow, not all rare ones but with a probability of `false_alarm`."""
    return next(runs for runs in count(1) if count_most_rare(runs, false_alarm) < runs)


def estimate_noise(sessions: Sequence[Sequence[float]]) -> tuple[Noise, int]:
    """Estimate the noise of sessions without the runs that count as rare, and return how many those are.

    Raises `ValueError` if the sessions are too few.
    """
    sessions = [list(rates) for rates in sessions if rates]
    medians = [_median(rates) for rates in sessions]
    slowest_first = sorted(
        (
            (rate / median, session, run)
            for session, (rates, median) in enumerate(zip(sessions, medians, strict=True))
            for run, rate in enumerate(rates)
        ),
        key=lambda each: each[0],
    )
    rare = 0
    for slowest in range(1, len(slowest_first) // RUNS_FOR_EACH + 1):
        rest = _drop_runs(sessions, slowest_first[:slowest])
        spread, degrees_of_freedom = pool_spreads(rest, Noise(run=1e-12))
        _, session, run = slowest_first[slowest - 1]
        if not all(rest) or not degrees_of_freedom:
            continue
        own = [math.log(rate) for rate in rest[session]]
        distance = math.fsum(own) / len(own) - math.log(sessions[session][run])
        if distance > compute_t_quantile(CLEARLY, degrees_of_freedom) * spread * math.sqrt(1 + 1 / len(own)):
            rare = slowest
    return estimate_variance_components(_drop_runs(sessions, slowest_first[:rare])), rare


def _drop_runs(sessions: Sequence[Sequence[float]], left_out: Sequence[tuple[float, int, int]]) -> list[list[float]]:
    gone = {(session, run) for _, session, run in left_out}
    return [[rate for run, rate in enumerate(rates) if (session, run) not in gone] for session, rates in enumerate(sessions)]


def _median(rates: Sequence[float]) -> float:
    """Return the geometric median: of an even number the geometric mean of the middle two."""
    ordered = sorted(rates)
    return math.sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])


@lru_cache(maxsize=4096)
def compute_t_quantile(probability: float, degrees_of_freedom: float) -> float:
    """Return the value that Student's t exceeds with this probability."""
    from scipy.special import stdtrit

    return -float(stdtrit(degrees_of_freedom, probability))


NIGHT_CONFIDENCE = 0.95  # of the interval of a night's mean


def compute_half_widths(nights: Sequence[tuple[int, float | None]]) -> list[float | None]:
    """Return half of the 95 % interval of each night's mean. `nights`: (number of runs, their spread); both in one unit.

    The spread is a standard deviation with n - 1; None of a single run. Nights are taken to scatter alike within: variances are
    pooled by degrees of freedom, and the interval is Student's t with all of these (as in a one-way layout: H. Scheffe, The
    Analysis of Variance, 1959, section 3.2). It knows nothing of what a whole night has in common. All None where no night
    has two runs.
    """
    from scipy.special import stdtrit

    known = [(runs, spread) for runs, spread in nights if runs > 1 and spread is not None]
    degrees_of_freedom = sum(runs - 1 for runs, _ in known)
    if not degrees_of_freedom:
        return [None for _ in nights]
    pooled = math.sqrt(sum((runs - 1) * spread**2 for runs, spread in known) / degrees_of_freedom)
    critical = float(stdtrit(degrees_of_freedom, (1 + NIGHT_CONFIDENCE) / 2))
    return [critical * pooled / math.sqrt(runs) for runs, _ in nights]


# Drift within a run: whether its end was slower or faster than its beginning by more than chance.

LEAST_BLOCKS, MOST_BLOCKS = 3, 10  # of each half: fewer show no spread, more would be shorter than necessary
STEPS_OF_A_BLOCK = 12  # or more: consecutive steps are alike, sums of so many hardly
LEAST_STEPS = 30  # five to a block: with fewer, steps that are alike pass for a drift more often than stated
FALSE_FLAGS = 0.01  # at most, of runs that were steady
LEVEL = FALSE_FLAGS / 2  # of the test: blocks are still slightly alike, which doubles the number of flags at most
STEP_ROUNDING = 1e-12  # of a step's time: a smaller difference is rounding


@dataclass(frozen=True)
class Drift:
    """How the second half of a run differs from the first."""

    change: float  # (rate of the second half - of the first) / of the first
    p_value: float  # probability of at least so much in a steady run

    def is_more_than(self, fraction: float) -> bool:
        """Return whether there is a drift, and one of more than this part of the rate."""
        return self.p_value < LEVEL and abs(self.change) > fraction


def compute_drift(step_s: Sequence[float]) -> Drift | None:
    """Compare the halves of a run, by the means of blocks of steps. None: too few steps to compare.

    Steps within a run are correlated, which a test on single steps would take for certainty: batch means (G. S. Fishman,
    Management Science 24, 1978, 510-521). They are regressed on what a change can look like, a jump between the halves and an
    even ramp; the likelier of the two counts, at twice its probability for there being two (Bonferroni).
    """
    if len(step_s) < LEAST_STEPS:
        return None
    count = 2 * min(max(LEAST_BLOCKS, len(step_s) // (2 * STEPS_OF_A_BLOCK)), MOST_BLOCKS)
    size = len(step_s) // count
    used = step_s[-count * size :]  # steps that do not fill a block are left out at the beginning
    blocks = [math.fsum(used[i : i + size]) / size for i in range(0, len(used), size)]
    change = math.fsum(blocks[: count // 2]) / math.fsum(blocks[count // 2 :]) - 1
    ramp = [i - (count - 1) / 2 for i in range(count)]
    jump = [math.copysign(1, each) for each in ramp]
    return Drift(change, min(1.0, 2 * min(_compute_drift_p_value(blocks, pattern) for pattern in (jump, ramp))))


def _compute_drift_p_value(values: Sequence[float], pattern: Sequence[float]) -> float:
    """Probability that values which only scatter follow this course as closely, one way or the other. Its mean is 0."""
    from scipy.special import stdtr

    mean, size = statistics.fmean(values), math.fsum(each**2 for each in pattern)
    slope = math.fsum(value * each for value, each in zip(values, pattern, strict=True)) / size
    left = math.fsum((value - mean - slope * each) ** 2 for value, each in zip(values, pattern, strict=True))
    degrees_of_freedom = len(values) - 2
    if left <= degrees_of_freedom * (STEP_ROUNDING * mean) ** 2:
        return 0.0 if abs(slope) > STEP_ROUNDING * mean else 1.0
    return 2 * float(stdtr(degrees_of_freedom, -abs(slope) / math.sqrt(left / degrees_of_freedom / size)))
