"""Critical values of a test that looks at its data after every run, so that looking often does not raise its error rate.

An error rate is a budget that every look spends a part of: alpha spending (K. K. G. Lan and D. L. DeMets, Biometrika 70,
1983, 659-663), here by the family of I. K. Hwang, W. J. Shih and J. S. DeCani (Statistics in Medicine 9, 1990, 1439-1445). What
a look may spend is turned into a critical value by following the distribution of the sum of the data that has not crossed any
earlier one (P. Armitage, C. K. McPherson and B. C. Rowe, Journal of the Royal Statistical Society A 132, 1969, 235-244).

Only that the information (the inverse of the variance of what is estimated) grows from look to look is needed: the test may end
at any look, for any other reason, and makes fewer errors then.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

CELLS = 500  # of the grid: critical values of ten looks agree with published ones to three digits
REACH = 9.0  # standard deviations that the grid covers downwards: what is below has no part in crossing upwards


def spent(fraction: float, gamma: float) -> float:
    """The part of an error rate that is spent when `fraction` of the information is in. The greater `gamma`, the earlier."""
    if gamma == 0:
        return fraction
    return math.expm1(-gamma * fraction) / math.expm1(-gamma)


@lru_cache(maxsize=4096)
def critical_values(
    information: tuple[float, ...], level: float, gamma: float, total: float | None = None
) -> tuple[float, ...]:
    """Of a standard normal statistic at each look: with no effect, it exceeds any of them with probability `level`.

    `information`: at each look, increasing, in any unit. All of `level` is spent when it has come to `total`: by default, at
    the last look.
    """
    total = information[-1] if total is None and information else total
    _check(information, level, total)
    assert total is not None
    shares = np.diff([0.0, *(level * spent(each / total, gamma) for each in information)])
    found = [float(-ndtri(shares[0]))]
    edges = _edges(information[0], found[0])
    mass = np.diff(ndtr(edges / math.sqrt(information[0])))
    for (before, now), share in zip(pairwise(information), shares[1:], strict=True):
        step = math.sqrt(now - before)
        centres = (edges[:-1] + edges[1:]) / 2
        found.append(_crossing(centres, mass, step, math.sqrt(now), share))
        edges = _edges(now, found[-1])
        mass = mass @ np.diff(ndtr((edges[None, :] - centres[:, None]) / step), axis=1)
    return tuple(found)


def _crossing(centres: "np.ndarray", mass: "np.ndarray", step: float, scale: float, share: float) -> float:
    """The critical value that as much of the mass as `share` exceeds after one more step."""

    def excess(value: float) -> float:
        return float(mass @ ndtr((centres - value * scale) / step)) - share

    return float(brentq(excess, -REACH, REACH + 30.0, xtol=1e-6)) if excess(-REACH) > 0 else -REACH


def _edges(information: float, critical: float) -> "np.ndarray":
    scale = math.sqrt(information)
    return np.linspace(-REACH * scale, critical * scale, CELLS + 1)


def _check(information: Sequence[float], level: float, total: float | None) -> None:
    if not information or information[0] <= 0 or any(after <= before for before, after in pairwise(information)):
        raise ValueError(f"information must be positive and grow from look to look, not {information}")
    if total is None or total < information[-1]:
        raise ValueError(f"there cannot be more information than in total: {information[-1]} of {total}")
    if not 0 < level < 1:
        raise ValueError(f"an error rate is between 0 and 1, not {level}")
