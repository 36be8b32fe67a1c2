"""How much the nights of series scatter, and how alike neighbouring ones are: robustly, and with what others of them show.

Everything comes from differences of nights, which neither a step nor a drift changes much. With a variance s^2 and a
correlation r of neighbours (AR(1): r^2 of those two apart), half the mean square of differences is

    q1 = s^2 (1 - r)  of neighbours,    q2 = s^2 (1 - r^2)  of nights two apart,    so that  r = q2 / q1 - 1.

Nights are clipped first: a heavy tail, or a night that went wrong, counts as CLIP standard deviations. One series of 60 nights
says little of both; many of them say much. A variance is drawn towards that of the others as far as they are alike (G. K.
Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004, article 3), a correlation likewise (C. N. Morris,
Journal of the American Statistical Association 78, 1983, 47-55).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_dtfperf.stats.scan import MOST_CORRELATED, Array

CLIP = 4.0  # standard deviations: a step of three is whole then, and no night counts for more than four
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal variable
PRIOR_NIGHTS = 20  # that the others' scale counts for, where it is found out where to clip
LEAST_NIGHTS = 6  # differences of fewer say nothing
LEAST_SERIES = 3  # which can be told apart, or not
ROUNDING = 1e-6  # of a rate: rates that differ by less were not measured
CLEARLY = 2.0  # standard errors, by which correlations differ more than by chance: else one is taken for all
INFINITE = 1e9  # degrees of freedom
LONG_MEAN = 13  # (2 r1 - 3 r2)^2, where r1 and r2 err by one each, and r by two


@dataclass(frozen=True)
class Scatter:
    """What one series shows."""

    nights: int
    scale: float  # standard deviation of a night by the median of differences: where to clip
    q1: float
    q2: float

    @property
    def degrees_of_freedom(self) -> float:
        """Of q1: neighbouring differences share a night, so that they are worth two thirds of their number."""
        return max(1.0, 2 * (self.nights - 1) / 3)


@dataclass(frozen=True)
class NightNoise:
    """Of one series, with what the others say."""

    scale: float  # where to clip, as a standard deviation
    deviation: float  # standard deviation of a night, clipped
    correlation: float  # of neighbouring nights; 0 or more
    error: float  # standard error of the correlation
    degrees_of_freedom: float  # how well the standard error of a mean of many nights is known


def rough_scale(stretches: Sequence[Array]) -> float:
    """Standard deviation of a night by the median difference of neighbours; 0: not known. Of stretches without a change."""
    steps = [np.diff(each) for each in stretches if len(each) > 1]
    if not steps:
        return 0.0
    return float(np.median(np.abs(np.concatenate(steps)))) / NORMAL_MEDIAN / math.sqrt(2)


def clipped(nights: Array, scale: float) -> Array:
    """Around their median."""
    return np.clip(nights - np.median(nights), -CLIP * scale, CLIP * scale)


def scatter(stretches: Sequence[Array], scale: float) -> Scatter:
    """`scale`: where to clip."""
    flat = [clipped(each, scale) for each in stretches if len(each)]
    ones = np.concatenate([np.diff(each) for each in flat])
    twos = np.concatenate([each[2:] - each[:-2] for each in flat])
    q1 = float(ones @ ones) / 2 / max(1, len(ones))
    q2 = float(twos @ twos) / 2 / max(1, len(twos))
    return Scatter(sum(map(len, flat)), scale, max(q1, ROUNDING**2), max(q2, ROUNDING**2))


def shared_scale(own: float, nights: int, others: Sequence[float]) -> float:
    """Where to clip a series that has few nights: between its own scale and the usual one."""
    known = [each for each in others if each > 0]
    if not known:
        return max(own, ROUNDING)
    usual = float(np.median(np.log(known)))
    weight = nights / (nights + PRIOR_NIGHTS) if own > 0 else 0.0
    return max(math.exp(weight * math.log(own) + (1 - weight) * usual) if weight else math.exp(usual), ROUNDING)


class Together:
    """What all series show together."""

    def __init__(self, all_series: Sequence[Scatter]) -> None:
        self._size = len(all_series)
        self._nights = sum(each.nights for each in all_series)
        self._prior, self._prior_degrees = _prior(all_series)
        ones = sum(each.nights * each.q1 / each.scale**2 for each in all_series)
        twos = sum(each.nights * each.q2 / each.scale**2 for each in all_series)
        self.correlation = twos / ones - 1
        self._differ = _variance_between(all_series, self.correlation)

    def noise(self, own: Scatter) -> NightNoise:
        """Of one of them."""
        correlation, variance = self._correlation(own)
        degrees = own.degrees_of_freedom + self._prior_degrees
        q1 = (
            own.q1
            if not self._prior_degrees
            else (
                self._prior
                if self._prior_degrees >= INFINITE
                else (self._prior_degrees * self._prior + own.degrees_of_freedom * own.q1) / degrees
            )
        )
        r = min(max(correlation, 0.0), MOST_CORRELATED)
        # Of the logarithm of q1 (1 + r) / (1 - r)^2, the variance of a long mean. What q1 and q2 err by goes together (both are
        # sums of the same nights): in sample correlations r1 and r2 it is 2 r1 - 3 r2, where r is 0, and r alone is r1 - r2.
        steeper = (1 / (1 + r) + 2 / (1 - r)) / 3  # than where r is 0
        shown = 2 / min(degrees, max(self._nights, 1.0)) + LONG_MEAN / 2 * variance * steeper**2
        return NightNoise(own.scale, math.sqrt(q1 / (1 - r)), r, math.sqrt(variance), 2 / shown)

    def _correlation(self, own: Scatter) -> tuple[float, float]:
        """With the square of its standard error. q2 / q1 of n nights has a variance of 2 / n."""
        alone = 2 / own.nights
        if self._size < LEAST_SERIES:
            return own.q2 / own.q1 - 1, alone
        weight = self._differ / (self._differ + alone)
        common = 2 / self._nights + self._differ / self._size
        return self.correlation + weight * (own.q2 / own.q1 - 1 - self.correlation), weight * alone + (1 - weight) ** 2 * common


def _variance_between(all_series: Sequence[Scatter], correlation: float) -> float:
    """Of their correlations, beyond what chance makes of them; 0 where that is not clear."""
    if len(all_series) < LEAST_SERIES:
        return 0.0
    seen = sum((each.q2 / each.q1 - 1 - correlation) ** 2 for each in all_series) / len(all_series)
    chance = sum(2 / each.nights for each in all_series) / len(all_series)
    return max(0.0, seen - chance) if seen > chance * (1 + CLEARLY * math.sqrt(2 / len(all_series))) else 0.0


def _prior(all_series: Sequence[Scatter]) -> tuple[float, float]:
    """q1 as it usually is, and for how many degrees of freedom that counts: 0 where there are too few series to tell."""
    if len(all_series) < LEAST_SERIES:
        return 0.0, 0.0
    from scipy.special import digamma, polygamma

    halves = np.array([each.degrees_of_freedom / 2 for each in all_series])
    logs = np.log([each.q1 for each in all_series]) - digamma(halves) + np.log(halves)
    between = float(np.var(logs, ddof=1) - np.mean(polygamma(1, halves)))
    if between <= 0:
        return float(math.exp(np.mean(logs))), INFINITE
    half = _inverse_trigamma(between)
    return float(math.exp(np.mean(logs) + digamma(half) - math.log(half))), 2 * half


def _inverse_trigamma(value: float) -> float:
    """By Newton's method, as in the appendix of Smyth's article."""
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
