"""Compute critical values of a test that analyses its data after every run, without a higher error rate.

An error rate is a budget of which every analysis spends a part: alpha spending (K. K. G. Lan and D. L. DeMets, Biometrika 70,
1983, 659-663), here by the family of I. K. Hwang, W. J. Shih and J. S. DeCani (Statistics in Medicine 9, 1990, 1439-1445). The
part of an analysis is converted to a critical value by following the distribution of the sum of the data that has not crossed
any earlier one (P. Armitage, C. K. McPherson and B. C. Rowe, Journal of the Royal Statistical Society A 132, 1969, 235-244).

Only the information (the inverse of the variance of the estimate) must grow from analysis to analysis: the test may end at any
of them, for any other reason, and then makes fewer errors.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri, roots_legendre

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

DOWN = 6.0  # standard deviations that are followed downwards: sums below it never cross upwards
UP = 40.0  # the greatest possible critical value
NODES_PER_STEP = 1.2  # points of the grid per standard deviation of one step: critical values to six digits
LEAST_STEP = 0.01  # of all earlier steps: shorter ones count as this long, which makes critical values slightly greater


def compute_spent_error(fraction: float, gamma: float) -> float:
    """Return the part of an error rate that is spent at `fraction` of the information. A greater `gamma` spends earlier."""
    if gamma == 0:
        return fraction
    return math.expm1(-gamma * fraction) / math.expm1(-gamma)


@lru_cache(maxsize=4096)
def compute_critical_values(
    information: tuple[float, ...], level: float, gamma: float, total: float | None = None
) -> tuple[float, ...]:
    """Return critical values of a standard normal statistic.

    Without an effect, it exceeds any of them with probability `level`. `information` is that at each analysis, increasing, in
    any unit. All of `level` is spent when it has come to `total`, by default at the last analysis.
    """
    total = information[-1] if total is None and information else total
    _check(information, level, total)
    assert total is not None
    values, start, mass = _follow(information[:-1], level, gamma, total)
    return (*values, _find_next_value(information, values, start, mass, level, gamma, total)[0])


@lru_cache(maxsize=512)
def _follow(information: tuple[float, ...], level: float, gamma: float, total: float) -> tuple[tuple[float, ...], Array, Array]:
    """Return the critical values that many analyses have in common, and the distribution before the last of them.

    Its points and their masses are those of the sums that had crossed no value by then.
    """
    values: tuple[float, ...] = ()
    start: Array = np.zeros(1)
    mass: Array = np.ones(1)
    for count in range(1, len(information) + 1):
        value, start, mass = _find_next_value(information[:count], values, start, mass, level, gamma, total)
        values = (*values, value)
    return values, start, mass


def _find_next_value(
    information: tuple[float, ...], values: Sequence[float], start: Array, mass: Array, level: float, gamma: float, total: float
) -> tuple[float, Array, Array]:
    """Return the critical value at the last of these analyses, and the distribution at the one before it."""
    before, after = ([0.0, *(level * compute_spent_error(each / total, gamma) for each in information[-2:])])[-2:]
    if len(information) == 1:
        return float(-ndtri(after - before)), start, mass
    near = np.array(information[-3:])
    scales = np.sqrt(near)
    steps = np.maximum(np.sqrt(np.diff(near)), LEAST_STEP * scales[1:])
    sums, widths = _grid(-DOWN * scales[-2], values[-1] * scales[-2], min(steps) / NODES_PER_STEP)
    mass = widths * (_density(sums[:, None] - start, steps[-2] if len(near) > 2 else scales[0]) @ mass)
    return _find_crossing(sums, mass, steps[-1], scales[-1], after - before), sums, mass


def _density(deviation: Array, scale: float) -> Array:
    """Return the density of a normal variable of this standard deviation."""
    return np.exp(-((deviation / scale) ** 2) / 2) / (scale * math.sqrt(2 * math.pi))


def _grid(bottom: float, top: float, distance: float) -> tuple[Array, Array]:
    """Return points from bottom to top with a distance, and the weights of a Gauss-Legendre integral over them."""
    points, weights = _legendre(16 * math.ceil((top - bottom) / distance / 16))
    half = (top - bottom) / 2
    return bottom + half * (points + 1), half * weights


@lru_cache(maxsize=64)
def _legendre(count: int) -> tuple[Array, Array]:
    points, weights = roots_legendre(count)
    return points, weights


def _find_crossing(sums: Array, mass: Array, step: float, scale: float, share: float) -> float:
    """Return the critical value that as much of the mass as `share` exceeds after one more step."""

    def excess(value: float) -> float:
        return float(mass @ ndtr((sums - value * scale) / step)) - share

    return float(brentq(excess, -DOWN, UP, xtol=1e-9)) if excess(-DOWN) > 0 else -DOWN


def _check(information: Sequence[float], level: float, total: float | None) -> None:
    if not information or information[0] <= 0 or any(after <= before for before, after in pairwise(information)):
        raise ValueError(f"information must be positive and grow from look to look, not {information}")
    if total is None or total < information[-1]:
        raise ValueError(f"there cannot be more information than in total: {information[-1]} of {total}")
    if not 0 < level < 1:
        raise ValueError(f"an error rate is between 0 and 1, not {level}")
