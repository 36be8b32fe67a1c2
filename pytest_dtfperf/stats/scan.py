"""Where is a series of nights most unlike itself, and how large may that be by chance? The generalised likelihood ratio scan.

For every split of the nights into before and after, the difference of the two means is held against its standard error; the
largest of these ratios is the statistic (D. Siegmund and E. S. Venkatraman, Annals of Statistics 23, 1995, 255-271). Nights
next to each other are alike: an autoregression of first order, AR(1), whose variance of means is exact here. What the statistic
comes to within a number of nights without any change is simulated, with a seed, for each such number and correlation.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

WINDOW = 120  # nights that are looked back upon: a loss of 1 % in a month must be seen, and old ones may be another machine
LEAST = 4  # nights on either side: what three bad nights say is gone in the fourth, and is no change
WHOLE, GROWTH = 20, 1.12  # splits: each of the latest nights, then ever fewer; a split nearby shows nearly the same
KNOWN = 60  # nights that there are before those that are counted, in the simulation
SERIES = 20_000  # simulated: what one in a hundred of them exceeds is known to 7 % of that number
SEED = 20260131
CORRELATIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)  # that are simulated; the next smaller has the greater tail
ANCHOR = 0.01  # the level at which the simulation is read; rarer ones follow from the tail's form
TAIL = 0.5  # of the tail h^TAIL exp(-h^2 / 2): simulations of a million series show 0.4
MOST_CORRELATED = 0.85


@lru_cache(maxsize=512)
def afters(nights: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
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


@lru_cache(maxsize=16384)  # WINDOW times the correlations that there are
def _weights(nights: int, correlation: float) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Array]:
    """For each split: nights after it, and one over the standard error of the difference."""
    after = afters(nights)
    return after, 1 / np.sqrt(variance_of_difference((nights - after).astype(float), after.astype(float), correlation))


def ratios(nights: Array, correlation: float) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], Array]:
    """For each split the nights after it, and the difference (after - before) over its standard error.

    `nights`: (..., night), the latest last, with a standard deviation of 1.
    """
    after, weights = _weights(nights.shape[-1], round(correlation, 2))
    return after, _differences(nights, after) * weights


def ratios_at(nights: Array, after: np.ndarray[tuple[int], np.dtype[np.int64]], correlation: float) -> Array:
    """The same for given splits, every one of which counts: to say where a change is that was found."""
    before = (nights.shape[-1] - after).astype(float)
    return _differences(nights, after) / np.sqrt(variance_of_difference(before, after.astype(float), correlation))


def _differences(nights: Array, after: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Array:
    """Of the mean after each split and the mean before it."""
    sums = np.cumsum(nights[..., ::-1], axis=-1)
    late = sums[..., after - 1]
    found: Array = late / after - (sums[..., -1:] - late) / (nights.shape[-1] - after)
    return found


@dataclass(frozen=True)
class Tail:
    """How often the largest ratio of a series exceeds a value within the horizon, where nothing changes."""

    anchor: float  # exceeded by ANCHOR of all series

    def critical(self, level: float) -> float:
        """What is exceeded by this part of all series: ANCHOR times h^TAIL exp(-h^2 / 2), over the same of the anchor."""
        low, high = 0.5, 40.0
        for _ in range(60):
            middle = (low + high) / 2
            log = TAIL * math.log(middle / self.anchor) - (middle**2 - self.anchor**2) / 2
            low, high = (middle, high) if math.log(ANCHOR) + log > math.log(level) else (low, middle)
        return high


def simulated(horizon: int, correlation: float, *, series: int = SERIES, seed: int = SEED) -> Tail:
    """By series that nothing happens to: KNOWN nights, and then the horizon, each night of which is searched."""
    random = np.random.default_rng([seed, horizon, round(100 * correlation)])
    nights = autoregressive(random, series, KNOWN + horizon, correlation)
    sums = np.concatenate([np.zeros((series, 1)), np.cumsum(nights, axis=1)], axis=1).T.copy()  # (night, series)
    largest = np.zeros(series)
    for end in range(KNOWN + 1, KNOWN + horizon + 1):
        count = min(end, WINDOW)
        after, weights = _weights(count, round(correlation, 2))
        for late, weight in zip(after.tolist(), weights.tolist(), strict=True):
            upper, lower = weight / late, weight / (count - late)
            split = sums[end - late]
            np.maximum(largest, np.abs(upper * (sums[end] - split) - lower * (split - sums[end - count])), out=largest)
    return Tail(float(np.quantile(largest, 1 - ANCHOR)))


def autoregressive(random: np.random.Generator, series: int, nights: int, correlation: float) -> Array:
    """(series, night): normal, each of variance 1, and each night like the one before."""
    found = random.standard_normal((series, nights))
    for night in range(1, nights if correlation else 0):
        found[:, night] = correlation * found[:, night - 1] + math.sqrt(1 - correlation**2) * found[:, night]
    return found
