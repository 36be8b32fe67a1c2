"""Where is a series of nights most unlike itself, and how large may that be by chance? The generalised likelihood ratio scan.

For every split of the nights into before and after, the difference of the two means is held against its standard error; the
largest of these ratios is the statistic (D. Siegmund and E. S. Venkatraman, Annals of Statistics 23, 1995, 255-271).

A night is the sum of two parts: one that is new each night, and a slow one, an autoregression of first order, AR(1), in which
each night is like the one before. `KINDS` are the mixtures that are told apart. What the statistic comes to within a number of
nights without any change was simulated for each kind, with a seed (`TAILS`).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Counts = np.ndarray[tuple[int], np.dtype[np.int64]]

WINDOW = 120  # nights that are looked back upon: a loss of 1 % in a month must be seen, and old ones may be another machine
LEAST = 4  # nights on either side: what three bad nights say is gone in the fourth, and is no change
WHOLE, GROWTH = 20, 1.12  # splits: each of the latest nights, then ever fewer; a split nearby shows nearly the same
KNOWN = 60  # nights that there are before those that are counted, in the simulation
HORIZON = 90  # nights that are counted
SERIES = 20_000  # simulated: what one in a hundred of them exceeds is known to 7 % of that number
SEED = 20260131
ANCHOR = 0.01  # the level at which the simulation is read; rarer ones follow from the tail's form
TAIL = 0.5  # of the tail h^TAIL exp(-h^2 / 2): simulations of a million series show 0.4


@dataclass(frozen=True)
class Kind:
    """How nights scatter, but for their variance."""

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
)  # `simulated` of each kind


@lru_cache(maxsize=512)
def afters(nights: int) -> Counts:
    """How many nights are after the split, of those that are tried."""
    further = np.round(WHOLE * GROWTH ** np.arange(1, 20)).astype(np.int64)
    sizes = np.unique(np.concatenate([np.arange(LEAST, WHOLE + 1), further]))
    return sizes[sizes <= nights - LEAST]


def variance_of_mean(count: Array, correlation: float) -> Array:
    """Of so many nights next to each other, in variances of one. AR(1): lag j has correlation^j."""
    if not correlation:
        return 1 / count
    r = correlation
    return (1 + 2 * r / (1 - r) * (1 - (1 - r**count) / (count * (1 - r)))) / count


def variance_of_difference(before: Array, after: Array, correlation: float) -> Array:
    """Of the means of neighbouring stretches, in variances of one night."""
    r = correlation
    together = r * (1 - r**before) * (1 - r**after) / ((1 - r) ** 2 * before * after)
    return variance_of_mean(before, r) + variance_of_mean(after, r) - 2 * together


def variances(before: Array, after: Array) -> Array:
    """(kind, split): the same of each kind."""
    alone = 1 / before + 1 / after
    slow = {r: variance_of_difference(before, after, r) for r in CORRELATIONS}
    return np.stack([(1 - kind.slow) * alone + (kind.slow * slow[kind.correlation] if kind.slow else 0) for kind in KINDS])


@lru_cache(maxsize=512)
def variances_of_splits(nights: int) -> Array:
    """(kind, split) for each split that is tried."""
    after = afters(nights)
    return variances((nights - after).astype(float), after.astype(float))


def differences(nights: Array, after: Counts) -> Array:
    """Of the mean after each split and the mean before it. `nights`: (..., night), the latest last."""
    sums = np.cumsum(nights[..., ::-1], axis=-1)
    late = sums[..., after - 1]
    found: Array = late / after - (sums[..., -1:] - late) / (nights.shape[-1] - after)
    return found


def log_probabilities(ratios: Array) -> Array:
    """Logarithm of the part of all series whose largest ratio exceeds these, where nothing changes. `ratios`: (kind, split)."""
    anchors, ratios = TAILS[:, None], np.maximum(ratios, 1.0)
    found: Array = math.log(ANCHOR) + TAIL * np.log(ratios / anchors) - (ratios**2 - anchors**2) / 2
    return np.minimum(0.0, found)


def simulated(kind: Kind, *, series: int = SERIES, seed: int = SEED) -> float:
    """What ANCHOR of all series exceed that nothing happens to: KNOWN nights, then HORIZON, each of which is searched."""
    random = np.random.default_rng([seed, HORIZON, KINDS.index(kind)])
    slow = autoregressive(random, series, KNOWN + HORIZON, kind.correlation)
    alone = random.standard_normal((series, KNOWN + HORIZON))
    nights = math.sqrt(kind.slow) * slow + math.sqrt(1 - kind.slow) * alone
    sums = np.concatenate([np.zeros((series, 1)), np.cumsum(nights, axis=1)], axis=1).T.copy()  # (night, series)
    largest = np.zeros(series)
    for end in range(KNOWN + 1, KNOWN + HORIZON + 1):
        count = min(end, WINDOW)
        weights = 1 / np.sqrt(variances_of_splits(count)[KINDS.index(kind)])
        for late, weight in zip(afters(count).tolist(), weights.tolist(), strict=True):
            upper, lower = weight / late, weight / (count - late)
            split = sums[end - late]
            np.maximum(largest, np.abs(upper * (sums[end] - split) - lower * (split - sums[end - count])), out=largest)
    return float(np.quantile(largest, 1 - ANCHOR))


def autoregressive(random: np.random.Generator, series: int, nights: int, correlation: float) -> Array:
    """(series, night): normal, each of variance 1, and each night like the one before."""
    found = random.standard_normal((series, nights))
    for night in range(1, nights if correlation else 0):
        found[:, night] = correlation * found[:, night - 1] + math.sqrt(1 - correlation**2) * found[:, night]
    return found
