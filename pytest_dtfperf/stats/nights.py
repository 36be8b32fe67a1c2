"""Estimate how the nights of series scatter: by how much, and how slowly.

Each series is compared with every kind of `KINDS`, from nights that are independent of each other to nights that wander slowly.
Its likelihood under a kind is that of its cosine coefficients, which are nearly independent under all kinds, each with the
variance that it has under that kind (after P. Whittle, Journal of the Royal Statistical Society B 15, 1953, 125-139). So
variation at low frequencies counts, and not only the differences of neighbouring nights.

The frequency of each kind is estimated from all series together (empirical Bayes); from that, each series has its own
probability of each kind, so that unlike series stay unlike. The prior (`BEFOREHAND`) expects slow parts: a history that is too
short to exclude them is judged carefully. The variance of a series is drawn towards that of the others as far as they are alike
(G. K. Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, article 3).

Nights are clipped first: a heavy tail, or a night that went wrong, counts as CLIP standard deviations from those around it.

A change is searched for by the generalised likelihood ratio scan. For every split of the nights into before and after, the
difference of the two means is divided by its standard error; the largest of these ratios is the statistic (D. Siegmund and E.
S. Venkatraman, Annals of Statistics 23, 1995, 255-271). A night is the sum of two parts: one that is new each night, and a slow
one, an autoregression of first order, AR(1), in which each night is like the one before. `KINDS` are the mixtures that are
compared. The distribution of the statistic within a number of nights without any change was simulated for each kind, with a
seed (`TAILS`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

WINDOW = 120  # nights that are searched: a loss of 1 % in a month must be found, and old nights may be of another machine
LEAST = 4  # nights on either side: three bad nights before a good one are no change
WHOLE, GROWTH = (
    20,
    1.12,
)  # splits at each of the latest nights, then at growing distances: neighbouring splits give nearly the same
HORIZON = 90  # nights that are counted
ANCHOR = 0.01  # the level at which the simulation is read; rarer ones follow from the tail's form
TAIL = 0.5  # of the tail h^TAIL exp(-h^2 / 2): simulations of a million series show 0.4


@dataclass(frozen=True)
class Kind:
    """A kind of scatter, without its variance."""

    slow: float  # the slow part's share of the variance of a night
    correlation: float  # of neighbouring nights of the slow part


SHARES = (0.03, 0.08, 0.2, 0.4, 0.7, 1.0)
CORRELATIONS = (0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
KINDS = (Kind(0.0, 0.0), *(Kind(share, correlation) for correlation in CORRELATIONS for share in SHARES))
TAILS = np.array(
    [
        4.23,
        *(4.21, 4.23, 4.20, 4.21, 4.17, 4.13),
        *(4.19, 4.18, 4.14, 4.08, 4.08, 4.04),
        *(4.21, 4.17, 4.08, 4.02, 4.00, 3.87),
        *(4.17, 4.15, 4.01, 3.93, 3.82, 3.81),
        *(4.18, 4.07, 3.99, 3.88, 3.72, 3.61),
        *(4.13, 4.08, 3.99, 3.86, 3.68, 3.52),
    ]
)  # of each kind, by `simulate_threshold` of benchmarks/changes.py


@lru_cache(maxsize=512)
def list_split_sizes(nights: int) -> Counts:
    """Return the numbers of nights after each split that is tried."""
    further = np.round(WHOLE * GROWTH ** np.arange(1, 20)).astype(np.int64)
    sizes = np.unique(np.concatenate([np.arange(LEAST, WHOLE + 1), further]))
    return sizes[sizes <= nights - LEAST]


def compute_variance_of_mean(count: Array, correlation: float) -> Array:
    """Return the variance of the mean of `count` neighbouring nights, in variances of one. AR(1): lag j has correlation^j."""
    if not correlation:
        return 1 / count
    r = correlation
    return (1 + 2 * r / (1 - r) * (1 - (1 - r**count) / (count * (1 - r)))) / count


def compute_variance_of_difference(before: Array, after: Array, correlation: float) -> Array:
    """Return the variance of the difference of the means of neighbouring stretches, in variances of one night."""
    r = correlation
    together = r * (1 - r**before) * (1 - r**after) / ((1 - r) ** 2 * before * after)
    return compute_variance_of_mean(before, r) + compute_variance_of_mean(after, r) - 2 * together


def compute_variances(before: Array, after: Array) -> Array:
    """Return `compute_variance_of_difference` of each kind: (kind, split)."""
    alone = 1 / before + 1 / after
    slow = {r: compute_variance_of_difference(before, after, r) for r in CORRELATIONS}
    return np.stack([(1 - kind.slow) * alone + (kind.slow * slow[kind.correlation] if kind.slow else 0) for kind in KINDS])


@lru_cache(maxsize=512)
def compute_variances_of_splits(nights: int) -> Array:
    """Return `compute_variances` for each split that is tried: (kind, split)."""
    after = list_split_sizes(nights)
    return compute_variances((nights - after).astype(float), after.astype(float))


def compute_differences(nights: Array, after: Counts) -> Array:
    """Return the difference of the means after and before each split. `nights`: (..., night), the latest last."""
    sums = np.cumsum(nights[..., ::-1], axis=-1)
    late = sums[..., after - 1]
    found: Array = late / after - (sums[..., -1:] - late) / (nights.shape[-1] - after)
    return found


def compute_log_probabilities(ratios: Array) -> Array:
    """Return the logarithm of the fraction of series without a change that have a larger maximum. `ratios`: (kind, split)."""
    anchors, ratios = TAILS[:, None], np.maximum(ratios, 1.0)
    found: Array = math.log(ANCHOR) + TAIL * np.log(ratios / anchors) - (ratios**2 - anchors**2) / 2
    return np.minimum(0.0, found)


CLIP = 4.0  # standard deviations of a night
JUMP = 6.0  # standard deviations: neighbouring nights differ by less where differences estimate the scale: a step is one
AROUND = 7  # nights of the median around which a night is clipped: three bad ones do not move it, four do
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal variable
PRIOR_NIGHTS = 20  # the weight of the others' scale, in nights, in the scale for clipping
LEAST_NIGHTS = 6  # differences of fewer show nothing
LEAST_SERIES = 3  # fewer cannot be distinguished
ROUNDING = 1e-6  # of a rate: rates that differ by less were not measured
INFINITE = 1e4  # degrees of freedom
WHITE = 0.3  # prior probability of independent nights; the other kinds share the rest
BEFOREHAND_COUNTS = 0.5  # the weight of the prior, in series
LIKELY, MUCH = 0.975, 1.5  # the scatter is known where kinds of this total probability differ by less than this factor
ROUNDS = 30  # of the estimate of the kinds' frequencies

SLOWER = {0.95: 2.0, 0.98: 4.0}  # times as probable as others: a few months contain least information on them
BEFOREHAND = np.array([0.0, *(SLOWER.get(kind.correlation, 1.0) for kind in KINDS[1:])])
BEFOREHAND *= (1 - WHITE) / BEFOREHAND.sum()
BEFOREHAND[0] = WHITE
NEIGHBOURS = np.array([1 - kind.slow * kind.correlation for kind in KINDS])  # half the mean square of their differences


@dataclass(frozen=True)
class Scatter:
    """The scatter of one series."""

    nights: int
    scale: float  # standard deviation of a night by the median of differences, for clipping
    q1: float  # half the mean square of the differences of neighbouring nights, which a step hardly changes
    coefficients: int
    squares: Array  # (kind): the sum of squares of the coefficients, each over its variance
    log_variances: Array  # (kind): the sum of the logarithms of these

    @property
    def degrees_of_freedom(self) -> float:
        """Return those of q1: neighbouring differences share a night, so that they are worth two thirds of their number."""
        return max(1.0, 2 * (self.nights - 1) / 3)


@dataclass(frozen=True)
class NightNoise:
    """The noise of one series, estimated with information from the others."""

    scale: float  # the scale for clipping, as a standard deviation
    usual: Array  # (kind): its probability without this series' own nights
    shown: Scatter
    prior: Array  # (kind): the usual variance of a night
    prior_degrees: float

    def variances(self, squares: Array) -> Array:
        """Return the variances of a night by kind. `squares`: (kind, ...), as in `shown`."""
        found: Array = (self.prior_degrees * _split_by_kind(self.prior, squares) + squares) / self.degrees_of_freedom
        return found

    def infer_kinds(self, squares: Array) -> tuple[Array, Array]:
        """Return by kind the variance of a night, and the probability of the kind."""
        logs = self.log_likelihoods(squares)
        weights = np.exp(logs - logs.max(axis=0))
        return self.variances(squares), weights / weights.sum(axis=0)

    def log_likelihoods(self, squares: Array) -> Array:
        """Return by kind the logarithm of its probability and likelihood, without a constant that all kinds share."""
        logs = np.log(self.usual) + self.prior_degrees / 2 * np.log(self.prior) - self.shown.log_variances / 2
        found: Array = _split_by_kind(logs, squares) - self.degrees_of_freedom / 2 * np.log(self.variances(squares))
        return found

    @property
    def degrees_of_freedom(self) -> float:
        return self.prior_degrees + self.shown.coefficients

    def compute_errors(self, before: Array, after: Array) -> Array:
        """Return standard errors of the difference of means of neighbouring stretches, by the kinds' probabilities."""
        variance, weights = self.infer_kinds(self.shown.squares)
        return np.sqrt((variance * weights) @ compute_variances(before, after))

    def is_known(self) -> bool:
        """Return whether the standard error of the difference of two months is known: no likely kind has a much greater one."""
        variance, weights = self.infer_kinds(self.shown.squares)
        errors = np.sqrt(variance * compute_variances(np.array([30.0]), np.array([30.0]))[:, 0])
        order = np.argsort(errors)
        below = np.cumsum(weights[order])
        middle, high = (errors[order[min(int(np.searchsorted(below, part)), len(KINDS) - 1)]] for part in (0.5, LIKELY))
        return bool(high <= MUCH * middle)


def _split_by_kind(values: Array, like: Array) -> Array:
    found: Array = values.reshape(-1, *[1] * (like.ndim - 1))
    return found


def estimate_scale(stretches: Sequence[Array]) -> float:
    """Return the standard deviation of a night from the median difference of neighbours; 0: not known.

    The stretches must be without a change.
    """
    steps = [np.diff(each) for each in stretches if len(each) > 1]
    if not steps:
        return 0.0
    return float(np.median(np.abs(np.concatenate(steps)))) / NORMAL_MEDIAN / math.sqrt(2)


def clip_nights(nights: Array, scale: float) -> Array:
    """Return each night within CLIP scales of the median of those around it."""
    half = AROUND // 2
    if len(nights) < AROUND:
        level = np.full(len(nights), np.median(nights))
    else:
        around = np.stack([nights[begin : len(nights) - AROUND + 1 + begin] for begin in range(AROUND)])
        around.partition(half, axis=0)
        level = np.concatenate([[around[half, 0]] * half, around[half], [around[half, -1]] * half])
    found: Array = np.minimum(np.maximum(nights, level - CLIP * scale), level + CLIP * scale)
    return found


@lru_cache(maxsize=96)
def _cosines(nights: int) -> tuple[Array, Array, Array]:
    """Return the orthonormal cosines of so many nights, without the mean: (night, coefficient).

    Also returns the inverse variance of each coefficient in variances of a night, (coefficient, kind), and the sum of the
    logarithms of these variances, (kind).
    """
    basis = math.sqrt(2 / nights) * np.cos(math.pi * np.outer(np.arange(nights) + 0.5, np.arange(1, nights)) / nights)
    r = np.array(CORRELATIONS)[:, None]
    weighted = accumulate(np.repeat(basis[:, None], len(r), axis=1), lambda earlier, night: night + r * earlier)
    slow = dict(zip(CORRELATIONS, 2 * sum(map(np.multiply, basis, weighted)) - 1, strict=True))
    found = np.stack([1 - k.slow + (k.slow * slow[k.correlation] if k.slow else np.zeros(nights - 1)) for k in KINDS], axis=1)
    return basis, 1 / found, np.log(found).sum(axis=0)


@lru_cache(maxsize=96)
def _shapes(nights: int) -> tuple[Array, Array]:
    """Return a step and a ramp to one from each split on: (shape, coefficient, split), and their information by kind."""
    basis, weights, _ = _cosines(nights)
    after = list_split_sizes(min(nights, WINDOW))
    sums = np.cumsum(basis[::-1], axis=0)
    shapes = np.stack([sums[after - 1].T, (np.cumsum(sums, axis=0)[after - 1] / after[:, None]).T])
    return shapes, weights.T @ shapes**2


def compute_split_effects(clipped_nights: Array) -> tuple[Array, Array]:
    """Return by how much a step and a ramp from each split on reduce the squares, and the variance of their sizes.

    Args:
        clipped_nights: A whole stretch.

    Returns:
        Two arrays (shape, kind, split), by generalised least squares: as `Scatter.squares`, and in variances of a night.
    """
    basis, weights, _ = _cosines(len(clipped_nights))
    shapes, information = _shapes(len(clipped_nights))
    both = (weights * (clipped_nights @ basis)[:, None]).T @ shapes
    return both**2 / information, 1 / information


def compute_scatter(stretches: Sequence[Array], scale: float) -> Scatter:
    """Return the scatter of stretches without a change. `scale` is the scale for clipping."""
    flat = [clip_nights(each, scale) for each in stretches if len(each)]
    ones = np.clip(np.concatenate([np.diff(each) for each in flat]), -JUMP * scale, JUMP * scale)
    q1 = max(float(ones @ ones) / 2 / max(1, len(ones)), ROUNDING**2)
    squares, logs = np.zeros(len(KINDS)), np.zeros(len(KINDS))
    for each in flat:
        basis, weights, log = _cosines(len(each))
        squares += ((each @ basis) ** 2 + ROUNDING**2) @ weights
        logs += log
    return Scatter(sum(map(len, flat)), scale, q1, sum(len(each) - 1 for each in flat), squares, logs)


def compute_usual_scale(scales: Iterable[float]) -> float:
    """Return the median of the known scales; 0: none is known."""
    known = [each for each in scales if each > 0]
    return float(np.median(known)) if known else 0.0


def compute_shared_scale(own: float, nights: int, usual: float) -> float:
    """Return the scale for clipping a series of few nights: between its own scale and the usual one."""
    weight = nights / (nights + PRIOR_NIGHTS) if own > 0 else 0.0
    return max(float(own**weight * usual ** (1 - weight)), ROUNDING)


class Together:
    """The scatter of all series together."""

    def __init__(self, all_series: Sequence[Scatter]) -> None:
        q1, self._prior_degrees = _prior(all_series)
        self._prior = q1 / NEIGHBOURS
        alone = [NightNoise(each.scale, np.ones(len(KINDS)), each, self._prior, self._prior_degrees) for each in all_series]
        likelihoods = np.stack([noise.infer_kinds(noise.shown.squares)[1] for noise in alone])
        usual = BEFOREHAND
        for _ in range(ROUNDS):
            shares = likelihoods * usual
            shares /= shares.sum(axis=1, keepdims=True)
            usual = (BEFOREHAND_COUNTS * BEFOREHAND + shares.sum(axis=0)) / (BEFOREHAND_COUNTS + len(all_series))
        self._all, self._usual = all_series, usual
        self._shares = {id(each): share for each, share in zip(all_series, shares, strict=True)}

    def get_noise(self, own: Scatter) -> NightNoise:
        """Return the noise of a series, with the frequencies of the kinds in the others."""
        usual = self._usual
        if (share := self._shares.get(id(own))) is not None:
            count = BEFOREHAND_COUNTS + len(self._all)
            usual = (count * usual - share) / (count - 1)
        return NightNoise(own.scale, usual, own, self._prior, self._prior_degrees)


def _prior(all_series: Sequence[Scatter]) -> tuple[float, float]:
    """Return the usual q1 and its degrees of freedom: 0 where there are too few series to estimate it."""
    if len(all_series) < LEAST_SERIES:
        return 1.0, 0.0
    from scipy.special import digamma, polygamma

    halves = np.array([each.degrees_of_freedom / 2 for each in all_series])
    logs = np.log([each.q1 for each in all_series]) - digamma(halves) + np.log(halves)
    between = float(np.var(logs, ddof=1) - np.mean(polygamma(1, halves)))
    most = min(INFINITE, 2 * float(halves.sum()))
    if between <= 0:
        return float(math.exp(np.mean(logs))), most
    half = _inverse_trigamma(between)
    return float(math.exp(np.mean(logs) + digamma(half) - math.log(half))), min(2 * half, most)


def _inverse_trigamma(value: float) -> float:
    """Invert the trigamma function by Newton's method, as in the appendix of Smyth's article."""
    from scipy.special import polygamma

    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, found))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, found))
        found += step
        if -step / found < 1e-8:
            break
    return found
