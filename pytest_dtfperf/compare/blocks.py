"""Judge a variant against the reference by blocks of four runs, after each block.

A block is ABBA or BAAB, where A is the reference and B the variant. The sample is the log-ratio of the block's rates. A linear
drift of the machine cancels within a block. The first run of a block can be slower than the others: this cancels over blocks of
both orders, which are drawn in pairs. Runs in blocks have neither the effect of different allocations nor most of that of time
(A. Abedi and T. Brecht, ICPE 2017, 287-292).

The interval is a repeated confidence interval, as in `stats/comparison.py`, of the trimmed mean of the log-ratios (K. K. Yuen,
Biometrika 61, 1974, 165-170). The mean is trimmed because single runs can be much slower than the others.

The comparisons of a session often have similar variances, or similar ratios of the variance of blocks to that of runs within
blocks. The variance of each is then moderated by those of all others (G. K. Smyth, Statistical Applications in Genetics and
Molecular Biology 3, 2004, article 3). This adds degrees of freedom, so that fewer blocks find a difference.

`benchmarks/ab.py` simulates the error rates.
"""

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Self

from pytest_dtfperf.baselines.terms import share
from pytest_dtfperf.codec import JsonData, describe
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.formats import change, format_count
from pytest_dtfperf.stats.comparison import convert_to_t

ORDERS = ("ABBA", "BAAB")
LEAST_BLOCKS = 4  # for an interval
HOPELESS_BLOCKS = 3  # a comparison ends if so many blocks were made and all are disturbed
BLOCKS_PER_TRIMMED = 8  # one of so many blocks is left out at either end of the trimmed mean
# Degrees of freedom that are subtracted: for the ratio, for the effect of the order, and one more. Without the last one,
# intervals that are read after each block miss the ratio more often than stated (benchmarks/ab.py).
ESTIMATED = 3
# The error is spent late, about as by O'Brien and Fleming (1979). The last interval is hardly wider than that of a single
# analysis, and a large difference needs one block more than with early spending.
SPENDING_GAMMA = -4.0
FEWEST_FOR_PRIOR = 4  # comparisons that are needed to estimate how similar their variances are
LEAST_PRIOR_DEGREES, MOST_PRIOR_DEGREES = 1.0, 100.0  # degrees of freedom of a prior
LEAST_FOR_PRIOR = 10  # blocks of a comparison, before its variance is compared with others
SCATTER_ERRORS = 3.0  # standard errors that are added to the scatter of the variances
LEAST_VARIANCE = 1e-12  # of log-ratios, because 0 has no logarithm
MOST_REASONS = 2  # disturbances in a message
WIDEST = 3.0  # half the width of a log-interval, from which on the ratio is unknown
POWER = 0.9  # probability that the smallest detectable difference is found


class ABVerdict(StrEnum):
    """The verdicts on a variant against the reference."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    TAINTED = "TAINTED"
    INVALID = "INVALID"
    FAILED = "FAILED"
    INFRASTRUCTURE = "INFRASTRUCTURE"

    @property
    def is_difference(self) -> bool:
        """Whether the two variants were found to differ in speed."""
        return self in (ABVerdict.FASTER, ABVerdict.SLOWER)

    @property
    def is_bad(self) -> bool:
        """Whether the variant is slower, or cannot be compared."""
        return self in (ABVerdict.SLOWER, ABVerdict.TAINTED, ABVerdict.INVALID, ABVerdict.FAILED, ABVerdict.INFRASTRUCTURE)


@dataclass(frozen=True)
class Block:
    """Four runs on the same hosts, in the order ABBA or BAAB."""

    order: str
    runs: Sequence[Run]

    def rates(self, side: str) -> list[float]:
        """Return the images per second of the runs of "A" or "B"."""
        return [run.images_per_sec for each, run in zip(self.order, self.runs, strict=True) if each == side]

    @property
    def sample(self) -> "BlockSample":
        """The log-ratio of its rates."""
        return BlockSample.from_logs(self.order, [math.log(run.images_per_sec) for run in self.runs])

    @property
    def disturbances(self) -> list[str]:
        """The messages of all disturbances of its runs, without duplicates."""
        return list(dict.fromkeys(str(each) for run in self.runs for each in run.disturbances))


@dataclass(frozen=True)
class BlockSample:
    """The log-ratio of a block's rates, variant to reference.

    Attributes:
        reference_first: whether the order is ABBA.
        changes: the log-ratios of the last run to the first one, and of the third to the second. Each pair is of one stack.
    """

    log_ratio: float
    reference_first: bool
    changes: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def from_logs(cls, order: str, logs: Sequence[float]) -> Self:
        """Return the sample of a block from the logarithms of its four rates."""
        first, second, third, last = logs
        sign = 1 if order == ORDERS[0] else -1
        return cls(sign * (second + third - first - last) / 2, order == ORDERS[0], (last - first, third - second))


@dataclass(frozen=True, kw_only=True)
class ABPolicy(JsonData):
    """The permitted error of verdicts, and the limits of blocks and of equivalence."""

    error: float = field(
        default=0.05, metadata=describe("Largest probability of any wrong verdict in the session", at_least=1e-12, below=1)
    )
    equivalence: float = field(
        default=0.01, metadata=describe("Largest difference of equivalent variants, as a fraction", at_least=1e-6, below=1)
    )
    max_blocks: int = field(
        default=20, metadata=describe("Blocks of each comparison at most", at_least=LEAST_BLOCKS, at_most=1000)
    )


@dataclass(frozen=True, kw_only=True)
class ABEstimate(JsonData):
    """An estimate of the ratio of the variant's rate to the reference's, with its interval."""

    ratio: float = field(metadata=describe("Of the variant's rate to the reference's", at_least=0))
    low: float = field(metadata=describe("It is at least this", at_least=0))
    high: float | None = field(metadata=describe("It is at most this; null: unknown", at_least=0))
    spread: float = field(metadata=describe("Standard deviation of the blocks' log-ratios", at_least=0))
    blocks: int = field(metadata=describe("Undisturbed blocks", at_least=1))
    order_effect: float = field(metadata=describe("Log-ratio of blocks that begin with the reference, less the mean"))

    def __str__(self) -> str:
        if self.high is None:
            return change(self.ratio - 1)
        return f"{change(self.ratio - 1)} ({change(self.low - 1)} to {change(self.high - 1)})"


@dataclass(frozen=True)
class BlockNoise:
    """The scatter of a comparison's blocks.

    Attributes:
        variance: of the blocks' log-ratios.
        degrees_of_freedom: of the variance.
        run_variance: the variance that blocks would have if only single runs scattered. It is estimated from runs of one stack
            within blocks.
    """

    variance: float
    degrees_of_freedom: float
    run_variance: float


@dataclass(frozen=True)
class NoisePrior:
    """A prior of the variance of each comparison, estimated from all comparisons of a session.

    Attributes:
        variance: of blocks, as a multiple of the comparison's own `run_variance` if `is_relative`.
        degrees_of_freedom: of the prior, which are added to those of the comparison.
    """

    variance: float
    degrees_of_freedom: float
    is_relative: bool = False

    def moderate(self, noise: BlockNoise) -> tuple[float, float]:
        """Return a comparison's variance and degrees of freedom, combined with those of the prior."""
        total = self.degrees_of_freedom + noise.degrees_of_freedom
        expected = self.variance * (noise.run_variance if self.is_relative else 1.0)
        return (self.degrees_of_freedom * expected + noise.degrees_of_freedom * noise.variance) / total, total


@dataclass(frozen=True)
class Decision:
    """A verdict with its reason. It is open if further blocks can change it."""

    verdict: ABVerdict
    reason: str
    estimate: ABEstimate | None
    is_open: bool


def draw_orders(generator: random.Random) -> Iterator[str]:
    """Yield the orders of blocks: each pair has both, in random order."""
    while True:
        yield from generator.sample(ORDERS, 2)


def estimate_ratio(
    samples: Sequence[BlockSample], policy: ABPolicy, error: float, prior: NoisePrior | None = None
) -> ABEstimate:
    """Return the ratio after these blocks, with its interval.

    Args:
        error: largest probability that the interval misses the ratio after any block, in either direction.
        prior: the prior of the noise, from all comparisons of the session.
    """
    count = len(samples)
    values, order_effect = _remove_order_effect(samples, [each.log_ratio for each in samples])
    centre = statistics.fmean(_trim(values))
    degrees: float = count_degrees(count)
    variance = _measure_variance(values, degrees)
    if prior and count >= LEAST_FOR_PRIOR:
        variance, degrees = prior.moderate(measure_noise(samples))
    spread = math.sqrt(variance)
    low, high = 0.0, None
    if count >= LEAST_BLOCKS and degrees > 0 and (balanced := count_balanced(samples)):
        width = _find_critical_value(count, policy.max_blocks, degrees, error) * spread / math.sqrt(balanced)
        if width < WIDEST:
            low, high = math.exp(centre - width), math.exp(centre + width)
    return ABEstimate(ratio=math.exp(centre), low=low, high=high, spread=spread, blocks=count, order_effect=order_effect)


def _find_critical_value(count: int, max_blocks: int, degrees_of_freedom: float, error: float) -> float:
    """Return the half width of the interval after `count` blocks, in standard errors."""
    from pytest_dtfperf.stats.sequential import compute_critical_values

    information = tuple(float(each) for each in range(LEAST_BLOCKS, min(count, max_blocks) + 1))
    value = compute_critical_values(information, error / 2, SPENDING_GAMMA, float(max(count, max_blocks)))[-1]
    return convert_to_t(value, degrees_of_freedom)


def count_degrees(blocks: int) -> int:
    """Return the degrees of freedom of the variance after so many blocks."""
    return blocks - 2 * (blocks // BLOCKS_PER_TRIMMED) - ESTIMATED


def count_balanced(samples: Sequence[BlockSample]) -> float:
    """Return how many blocks, as many of either order, have a mean with the same standard error.

    Disturbed blocks can leave more of one order. Without the effect of the order, the mean is that of the means of both orders:
    its variance is (1 / a + 1 / b) / 4 of a block's. Blocks of one order alone do not show the ratio.
    """
    firsts = sum(each.reference_first for each in samples)
    return 4 * firsts * (len(samples) - firsts) / len(samples)


def measure_noise(samples: Sequence[BlockSample]) -> BlockNoise:
    """Return the scatter of blocks, without the effect of the order.

    A drift that differs from block to block adds to the changes within blocks, and makes `run_variance` greater.
    """
    degrees_of_freedom = count_degrees(len(samples))

    def measure(values: Sequence[float]) -> float:
        return _measure_variance(_remove_order_effect(samples, values)[0], degrees_of_freedom)

    ratios = measure([each.log_ratio for each in samples])
    outer, inner = (measure([each.changes[at] for each in samples]) for at in (0, 1))
    return BlockNoise(ratios, degrees_of_freedom, (outer + inner) / 4)


def estimate_prior(comparisons: Iterable[Sequence[BlockSample]]) -> NoisePrior | None:
    """Return the prior of the noise of a session's comparisons; None if they are too few, or too different.

    It is a prior of the variances or of their ratios to the variances of runs, whichever has more degrees of freedom.
    """
    noises = [measure_noise(samples) for samples in comparisons if len(samples) >= LEAST_FOR_PRIOR]
    if len(noises) < FEWEST_FOR_PRIOR:
        return None
    fits = [_fit_prior(noises, MOST_PRIOR_DEGREES, is_relative=False)]
    if min(each.run_variance for each in noises) > LEAST_VARIANCE:
        # The changes of both stacks together have twice as many degrees of freedom, without the one for the ratio.
        most_degrees = 2 * (statistics.fmean(each.degrees_of_freedom for each in noises) + 1)
        fits.append(_fit_prior(noises, most_degrees, is_relative=True))
    return max(filter(None, fits), key=lambda each: each.degrees_of_freedom, default=None)


def _fit_prior(noises: Sequence[BlockNoise], most_degrees: float, *, is_relative: bool) -> NoisePrior | None:
    """Return the prior of these variances, or of their ratios to the variances of runs; None if they are too different.

    It is a scaled inverse chi-squared distribution, fitted by the moments of the logarithms (Smyth, section 6.2).
    """
    logs = [
        math.log(max(each.variance, LEAST_VARIANCE) / (each.run_variance if is_relative else 1.0))
        - _expect_log(each.degrees_of_freedom)
        for each in noises
    ]
    degrees = _fit_degrees(logs, [each.degrees_of_freedom for each in noises], most_degrees)
    if degrees is None:
        return None
    return NoisePrior(math.exp(statistics.fmean(logs) + _expect_log(degrees)), degrees, is_relative)


def _fit_degrees(logs: Sequence[float], degrees: Sequence[float], most: float) -> float | None:
    """Return the degrees of freedom of the prior, at most `most`; None if the variances are too different for a prior.

    A few variances show only roughly how different they are. The upper end of that is used: with the estimate itself,
    comparisons with more noise than most would be called different too often.
    """
    from scipy.optimize import brentq

    scatter = statistics.variance(logs) * (1 + SCATTER_ERRORS * math.sqrt(2 / (len(logs) - 1)))
    excess = scatter - statistics.fmean(_expect_scatter(each) for each in degrees)
    if excess >= _expect_scatter(LEAST_PRIOR_DEGREES):
        return None
    if excess <= _expect_scatter(most):
        return most
    return float(brentq(lambda each: _expect_scatter(each) - excess, LEAST_PRIOR_DEGREES, most))


def _expect_log(degrees_of_freedom: float) -> float:
    """Return the expected logarithm of an estimate of a variance of 1, with so many degrees of freedom."""
    from scipy.special import digamma

    return float(digamma(degrees_of_freedom / 2)) - math.log(degrees_of_freedom / 2)


def _expect_scatter(degrees_of_freedom: float) -> float:
    """Return the variance of the logarithm of an estimate of a variance, with so many degrees of freedom."""
    from scipy.special import polygamma

    return float(polygamma(1, degrees_of_freedom / 2))


def decide(blocks: Sequence[Block], policy: ABPolicy, error: float, prior: NoisePrior | None = None) -> Decision:
    """Return the verdict after these blocks, of which only undisturbed ones count.

    Args:
        error: this comparison's share of the session's error, as `share_error` returns it.
        prior: the prior of the noise, from all comparisons of the session.
    """
    clean = [block for block in blocks if not block.disturbances]
    if not clean:
        return Decision(ABVerdict.TAINTED, _describe_disturbances(blocks), None, len(blocks) < HOPELESS_BLOCKS)
    estimate = estimate_ratio([block.sample for block in clean], policy, error, prior)
    verdict = judge_estimate(estimate, policy)
    if verdict is not ABVerdict.INCONCLUSIVE:
        return Decision(verdict, _describe_reason(verdict, policy), estimate, False)
    is_over = len(clean) >= policy.max_blocks or len(blocks) >= 2 * policy.max_blocks
    verb = "does" if len(clean) == 1 else "do"
    return Decision(verdict, f"{format_count(len(clean), 'block')} {verb} not decide", estimate, not is_over)


def _describe_disturbances(blocks: Sequence[Block]) -> str:
    """Return the reason for TAINTED, with the first disturbances."""
    messages = list(dict.fromkeys(each for block in blocks for each in block.disturbances))
    more = f"; and {len(messages) - MOST_REASONS} more" if len(messages) > MOST_REASONS else ""
    return f"all {format_count(len(blocks), 'block')} were disturbed: {'; '.join(messages[:MOST_REASONS])}{more}"


def _describe_reason(verdict: ABVerdict, policy: ABPolicy) -> str:
    """Return the reason for a verdict that follows from the interval."""
    if verdict is ABVerdict.EQUIVALENT:
        return f"the difference is within {policy.equivalence:.2g}"
    return "the interval excludes equal rates"


def judge_estimate(estimate: ABEstimate, policy: ABPolicy) -> ABVerdict:
    """Return the verdict of an interval: within the equivalence it is EQUIVALENT, even if it excludes 1."""
    if estimate.high is None:
        return ABVerdict.INCONCLUSIVE
    if estimate.low >= 1 - policy.equivalence and estimate.high <= 1 / (1 - policy.equivalence):
        return ABVerdict.EQUIVALENT
    if estimate.high < 1:
        return ABVerdict.SLOWER
    return ABVerdict.FASTER if estimate.low > 1 else ABVerdict.INCONCLUSIVE


def share_error(policy: ABPolicy, *, comparisons: int, differences: int) -> float:
    """Return a comparison's share of the session's error (Holm), if so many comparisons have a difference already."""
    return share(policy.error, tests=comparisons, red=differences, check=0, checks=1)


def compute_detectable(estimate: ABEstimate, policy: ABPolicy, error: float) -> float | None:
    """Return the smallest difference, as a fraction, that `max_blocks` find in 9 of 10 cases; None: too few blocks to know."""
    from scipy.special import ndtri

    if estimate.high is None:
        return None
    count = policy.max_blocks
    value = _find_critical_value(count, count, count_degrees(count), error)
    return math.expm1((value + float(ndtri(POWER))) * estimate.spread / math.sqrt(count))


def _remove_order_effect(samples: Sequence[BlockSample], values: Sequence[float]) -> tuple[list[float], float]:
    """Return a value of each block without the effect of the order, in ascending order, and the effect.

    The effect is half of the difference between blocks that begin with the reference and the others.
    """
    firsts = [each.reference_first for each in samples]
    sides = [sorted(value for value, first in zip(values, firsts, strict=True) if first is side) for side in (True, False)]
    effect = 0.0
    if all(sides):
        effect = (statistics.fmean(_trim(sides[0])) - statistics.fmean(_trim(sides[1]))) / 2
    return sorted(value - (effect if first else -effect) for value, first in zip(values, firsts, strict=True)), effect


def _trim(values: Sequence[float]) -> Sequence[float]:
    """Return values without those at either end. They are in ascending order."""
    cut = len(values) // BLOCKS_PER_TRIMMED
    return values[cut : len(values) - cut]


def _measure_variance(values: Sequence[float], degrees_of_freedom: float) -> float:
    """Return the variance of blocks for the error of their trimmed mean, from winsorised values.

    Args:
        values: in ascending order.
    """
    if degrees_of_freedom <= 0:
        return 0.0
    kept = _trim(values)
    cut = (len(values) - len(kept)) // 2
    winsorised = [kept[0]] * cut + list(kept) + [kept[-1]] * cut
    mean = statistics.fmean(winsorised)
    squares = math.fsum((each - mean) ** 2 for each in winsorised)
    return squares / (len(values) - 2) * (len(values) / len(kept)) ** 2
