"""Blocks of four runs, and the verdict on one variant against the reference, read from them after every block.

A block is ABBA or BAAB: A is the reference, B the variant. A linear drift of the machine cancels within a block, and what a
block's first run does to its speed cancels over blocks of both orders, which are drawn in pairs. The sample is the block's
log-ratio of rates. Comparing runs in such blocks instead of one stack after the other removes the effect of the allocation and
most of that of time (A. Abedi and T. Brecht, ICPE 2017, 287-292).

Comparisons of one session have similar noise, as a rule, or the variance of their blocks has a similar ratio to that of their
runs within blocks. So each one's variance is moderated by those of all others, as far as these surely agree (G. K. Smyth,
Statistical Applications in Genetics and Molecular Biology 3, 2004, article 3). With a variance that is known better, fewer
blocks find a difference.

The interval is a repeated confidence interval, as in `stats/comparison.py`, of the trimmed mean of the log-ratios (K. K. Yuen,
Biometrika 61, 1974, 165-170), so that single slow runs do not decide. `benchmarks/ab.py` holds its error rates against those
that are stated.
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
LEAST_BLOCKS = 4  # two of each order: fewer do not show how they scatter
HOPELESS_BLOCKS = 3  # if all are disturbed, more would only wait for a quieter machine
BLOCKS_PER_TRIMMED = 8  # so many blocks to each that is left out at either end
# Degrees of freedom that estimates take: the ratio, the effect of the order, and one more, without which intervals that are
# read after each block would miss the ratio more often than stated (benchmarks/ab.py).
ESTIMATED = 3
# The error is spent late, about as by O'Brien and Fleming (1979): the last interval is then hardly wider than that of a single
# analysis, and only large differences need a block more.
SPENDING_GAMMA = -4.0
FEWEST_FOR_PRIOR = 4  # comparisons, whose variances show how similar they are
LEAST_PRIOR_DEGREES, MOST_PRIOR_DEGREES = 1.0, 100.0  # of what they have in common
LEAST_FOR_PRIOR = 10  # blocks: variances of fewer do not show how different they are
UNSURE = 3.0  # standard errors of how different variances are
LEAST_VARIANCE = 1e-12  # of log-ratios: equal ones have no logarithm of their variance
MOST_REASONS = 2  # shown of disturbances
WIDEST = 3.0  # half a log-interval, beyond which nothing is known
POWER = 0.9  # with which the smallest detectable difference is found


class ABVerdict(StrEnum):
    """The results of a comparison of two variants."""

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
        """Whether the variant is slower, or could not be compared."""
        return self in (ABVerdict.SLOWER, ABVerdict.TAINTED, ABVerdict.INVALID, ABVerdict.FAILED, ABVerdict.INFRASTRUCTURE)


@dataclass(frozen=True)
class Block:
    """Four runs in the order of `order`, on the same hosts."""

    order: str
    runs: Sequence[Run]

    def rates(self, side: str) -> list[float]:
        """Return the images per second of the runs of "A" or "B"."""
        return [run.images_per_sec for each, run in zip(self.order, self.runs, strict=True) if each == side]

    @property
    def sample(self) -> "BlockSample":
        return BlockSample.of(self.order, [math.log(run.images_per_sec) for run in self.runs])

    @property
    def disturbances(self) -> list[str]:
        """Return messages of what disturbed its runs, each once."""
        return list(dict.fromkeys(str(each) for run in self.runs for each in run.disturbances))


@dataclass(frozen=True)
class BlockSample:
    """The log-ratio of a block's rates, variant to reference.

    Attributes:
        changes: the log-ratios of the last run to the first one, and of the third to the second, which are of one stack each.
    """

    log_ratio: float
    reference_first: bool
    changes: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(cls, order: str, logs: Sequence[float]) -> Self:
        """Return the sample of four runs, of which these are the logarithms of their rates."""
        first, second, third, last = logs
        sign = 1 if order == ORDERS[0] else -1
        return cls(sign * (second + third - first - last) / 2, order == ORDERS[0], (last - first, third - second))


@dataclass(frozen=True, kw_only=True)
class ABPolicy(JsonData):
    """How often verdicts may be wrong, and how many blocks there can be."""

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
    """The ratio of the variant's rate to the reference's, as far as it is known."""

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
        run_variance: what the variance would be if only single runs scattered, by the runs of one stack within blocks.
    """

    variance: float
    degrees_of_freedom: float
    run_variance: float


@dataclass(frozen=True)
class NoisePrior:
    """What the noise of a session's comparisons shows of the noise of each.

    Attributes:
        variance: of blocks.
        degrees_of_freedom: how much it is worth.
        is_relative: whether it is a multiple of a comparison's own `run_variance`.
    """

    variance: float
    degrees_of_freedom: float
    is_relative: bool = False

    def moderate(self, noise: BlockNoise) -> tuple[float, float]:
        """Return a comparison's variance and degrees of freedom, together with those of the others."""
        total = self.degrees_of_freedom + noise.degrees_of_freedom
        expected = self.variance * (noise.run_variance if self.is_relative else 1.0)
        return (self.degrees_of_freedom * expected + noise.degrees_of_freedom * noise.variance) / total, total


@dataclass(frozen=True)
class Decision:
    """A verdict with its reason, and whether further blocks may change it."""

    verdict: ABVerdict
    reason: str
    estimate: ABEstimate | None
    is_open: bool


def draw_orders(generator: random.Random) -> Iterator[str]:
    """Yield the orders of blocks: each pair has both, and a lot decides which is first."""
    while True:
        yield from generator.sample(ORDERS, 2)


def estimate_ratio(
    samples: Sequence[BlockSample], policy: ABPolicy, error: float, prior: NoisePrior | None = None
) -> ABEstimate:
    """Return the ratio with its interval after these blocks.

    Args:
        error: largest probability that the interval misses the ratio after any block, in either direction.
        prior: the noise of the session's comparisons, as `estimate_prior` returns it.
    """
    from pytest_dtfperf.stats.sequential import compute_critical_values

    count, cut = len(samples), len(samples) // BLOCKS_PER_TRIMMED
    values, order_effect = _remove_order_effect(samples, [each.log_ratio for each in samples])
    centre = statistics.fmean(values[cut : count - cut])
    degrees_of_freedom: float = count_degrees(count)
    spread = math.sqrt(_measure_variance(values, degrees_of_freedom))
    low, high = 0.0, None
    if count >= LEAST_BLOCKS and degrees_of_freedom > 0:
        if prior and count >= LEAST_FOR_PRIOR:
            variance, degrees_of_freedom = prior.moderate(measure_noise(samples))
            spread = math.sqrt(variance)
        analyses = range(LEAST_BLOCKS, policy.max_blocks + 1)
        information = tuple(float(each) for each in analyses if each <= count)
        value = compute_critical_values(information, error / 2, SPENDING_GAMMA, float(max(policy.max_blocks, count)))[-1]
        width = convert_to_t(value, degrees_of_freedom) * spread / math.sqrt(count)
        if width < WIDEST:
            low, high = math.exp(centre - width), math.exp(centre + width)
    return ABEstimate(ratio=math.exp(centre), low=low, high=high, spread=spread, blocks=count, order_effect=order_effect)


def count_degrees(blocks: int) -> int:
    """Return the degrees of freedom of the variance after so many blocks."""
    return blocks - 2 * (blocks // BLOCKS_PER_TRIMMED) - ESTIMATED


def measure_noise(samples: Sequence[BlockSample]) -> BlockNoise:
    """Return the scatter of blocks, without the effect of the order.

    A drift that differs from block to block adds to the changes within blocks, and makes `run_variance` greater.
    """
    degrees_of_freedom = count_degrees(len(samples))
    ratios, outer, inner = (
        _measure_variance(_remove_order_effect(samples, values)[0], degrees_of_freedom)
        for values in zip(*((each.log_ratio, *each.changes) for each in samples), strict=True)
    )
    return BlockNoise(ratios, degrees_of_freedom, (outer + inner) / 4)


def estimate_prior(comparisons: Iterable[Sequence[BlockSample]]) -> NoisePrior | None:
    """Return what the variances of a session's comparisons have in common; None if they are too few, or too different.

    They may be alike, or have about the same ratio to the variances of runs within blocks. The prior is the one that is worth
    more of these two.
    """
    found = [measure_noise(samples) for samples in comparisons if len(samples) >= LEAST_FOR_PRIOR]
    if len(found) < FEWEST_FOR_PRIOR:
        return None
    degrees = [each.degrees_of_freedom for each in found]
    variances = [max(each.variance, LEAST_VARIANCE) for each in found]
    fits = [_fit_prior(variances, degrees, MOST_PRIOR_DEGREES, is_relative=False)]
    if min(each.run_variance for each in found) > LEAST_VARIANCE:
        ratios = [variance / each.run_variance for variance, each in zip(variances, found, strict=True)]
        # The changes of both stacks together have twice as many degrees of freedom, without the one for the ratio.
        most_degrees = 2 * (statistics.fmean(degrees) + 1)
        fits.append(_fit_prior(ratios, degrees, most_degrees, is_relative=True))
    return max(filter(None, fits), key=lambda each: each.degrees_of_freedom, default=None)


def _fit_prior(
    variances: Sequence[float], degrees: Sequence[float], most_degrees: float, *, is_relative: bool
) -> NoisePrior | None:
    """Return the prior of these variances, by the moments of their logarithms; None if they are too different.

    Their distribution is a scaled inverse chi-squared one (Smyth, section 6.2).
    How different they are is taken at the upper end of what a few of them can show. Taken at its estimate, comparisons with
    more noise than most would be called different too often.
    """
    from scipy.optimize import brentq
    from scipy.special import polygamma

    logs = [math.log(variance) - _expect_log(each) for variance, each in zip(variances, degrees, strict=True)]
    scatter = statistics.variance(logs) * (1 + UNSURE * math.sqrt(2 / (len(logs) - 1)))
    excess = scatter - statistics.fmean(float(polygamma(1, each / 2)) for each in degrees)
    least, most = (float(polygamma(1, each / 2)) for each in (most_degrees, LEAST_PRIOR_DEGREES))
    if excess >= most:
        return None
    half = most_degrees / 2
    if excess > least:
        half = float(brentq(lambda half: float(polygamma(1, half)) - excess, LEAST_PRIOR_DEGREES / 2, half))
    return NoisePrior(math.exp(statistics.fmean(logs) + _expect_log(2 * half)), 2 * half, is_relative)


def _expect_log(degrees_of_freedom: float) -> float:
    """Return the expected logarithm of a variance of 1 that is estimated with so many degrees of freedom."""
    from scipy.special import digamma

    return float(digamma(degrees_of_freedom / 2)) - math.log(degrees_of_freedom / 2)


def decide(blocks: Sequence[Block], policy: ABPolicy, error: float, prior: NoisePrior | None = None) -> Decision:
    """Return the verdict after these blocks. Disturbed ones do not count, and are not made more often than others.

    Args:
        error: this comparison's share of the session's error, as `share_error` returns it.
        prior: the noise of the session's comparisons.
    """
    clean = [block for block in blocks if not block.disturbances]
    if not clean:
        is_over = len(blocks) >= min(HOPELESS_BLOCKS, policy.max_blocks)
        why = list(dict.fromkeys(each for block in blocks for each in block.disturbances))
        text = f"all {format_count(len(blocks), 'block')} were disturbed: {'; '.join(why[:MOST_REASONS])}"
        more = f"; and {len(why) - MOST_REASONS} more" if len(why) > MOST_REASONS else ""
        return Decision(ABVerdict.TAINTED, text + more, None, not is_over)
    estimate = estimate_ratio([block.sample for block in clean], policy, error, prior)
    verdict = judge_estimate(estimate, policy)
    if verdict is not ABVerdict.INCONCLUSIVE:
        return Decision(verdict, _explain(verdict, policy), estimate, False)
    is_over = len(clean) >= policy.max_blocks or len(blocks) >= 2 * policy.max_blocks
    verb = "does" if len(clean) == 1 else "do"
    return Decision(verdict, f"{format_count(len(clean), 'block')} {verb} not decide", estimate, not is_over)


def judge_estimate(estimate: ABEstimate, policy: ABPolicy) -> ABVerdict:
    """Return the verdict that an interval allows: within the equivalence it is EQUIVALENT, even if it excludes 1."""
    if estimate.high is None:
        return ABVerdict.INCONCLUSIVE
    if estimate.low >= 1 - policy.equivalence and estimate.high <= 1 / (1 - policy.equivalence):
        return ABVerdict.EQUIVALENT
    if estimate.high < 1:
        return ABVerdict.SLOWER
    return ABVerdict.FASTER if estimate.low > 1 else ABVerdict.INCONCLUSIVE


def share_error(policy: ABPolicy, *, comparisons: int, differences: int) -> float:
    """Return a comparison's share of the session's error (Holm): `differences` of all comparisons are decided already."""
    return share(policy.error, tests=comparisons, red=differences, check=0, checks=1)


def compute_detectable(estimate: ABEstimate, policy: ABPolicy, error: float) -> float | None:
    """Return the smallest difference, as a fraction, that `max_blocks` find in 9 of 10 cases; None: too few blocks to know."""
    from scipy.special import ndtri

    from pytest_dtfperf.stats.sequential import compute_critical_values

    count = policy.max_blocks
    degrees_of_freedom = count_degrees(count)
    if estimate.high is None:
        return None
    information = tuple(map(float, range(LEAST_BLOCKS, count + 1)))
    value = convert_to_t(compute_critical_values(information, error / 2, SPENDING_GAMMA)[-1], degrees_of_freedom)
    return math.expm1((value + float(ndtri(POWER))) * estimate.spread / math.sqrt(count))


def _remove_order_effect(samples: Sequence[BlockSample], values: Sequence[float]) -> tuple[list[float], float]:
    """Return a value of each block, without the effect of the order, in ascending order; and that effect.

    It is half of the difference between blocks that begin with the reference and the others.
    """
    firsts = [each.reference_first for each in samples]
    sides = [[value for value, first in zip(values, firsts, strict=True) if first is side] for side in (True, False)]
    effect = (_mean_of_middle(sides[0]) - _mean_of_middle(sides[1])) / 2 if all(sides) else 0.0
    return sorted(value - (effect if first else -effect) for value, first in zip(values, firsts, strict=True)), effect


def _mean_of_middle(values: Sequence[float]) -> float:
    cut = len(values) // BLOCKS_PER_TRIMMED
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _measure_variance(values: Sequence[float], degrees_of_freedom: float) -> float:
    """Return the variance that the error of the trimmed mean follows from, by the winsorised values.

    Args:
        values: in ascending order.
    """
    if degrees_of_freedom <= 0:
        return 0.0
    cut = len(values) // BLOCKS_PER_TRIMMED
    kept = values[cut : len(values) - cut]
    winsorised = [kept[0]] * cut + list(kept) + [kept[-1]] * cut
    squares = math.fsum((each - statistics.fmean(winsorised)) ** 2 for each in winsorised)
    return squares / (len(values) - 2) * (len(values) / len(kept)) ** 2


def _explain(verdict: ABVerdict, policy: ABPolicy) -> str:
    if verdict is ABVerdict.EQUIVALENT:
        return f"the difference is within {policy.equivalence:.2g}"
    return "the interval excludes equal rates"
