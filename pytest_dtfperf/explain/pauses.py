"""Steps that stand out among a worker's steps, and whether they come in a period. Pure.

A step stands out if it is longer than usual by `LEAST_PART` of what is usual, and by `SPREADS` times what steps scatter by.
Usual is the median of the steps around it, scatter their median absolute deviation, so that neither the pauses themselves nor a
machine that gets slower on the way counts. Of normally distributed steps one in 10^9 stands out, of ones with an exponential
tail seven in a thousand.

A period is a distance that far more pairs of pauses have than by chance: of k pauses among n steps, if all steps are alike,
(n - p) k (k - 1) / (n (n - 1)) pairs are p steps apart, and the number is Poisson's. Where pauses come in clusters, as others'
work on the host makes them, distances near p are as frequent, and those are what p is held against. A period is claimed where
chance would give it in `FALSE_ALARMS` of all runs at most, all distances that were tried taken together (Bonferroni).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_dtfperf.codec import JsonData

LEAST_STEPS = 20  # of fewer, nobody knows what is usual
LEAST_PART, SPREADS = 0.5, 6.0
FALSE_ALARMS = 0.005
_AROUND = 101  # steps that a step is compared with
_OF_NORMAL = 1.4826  # a normal distribution's standard deviation, in median absolute deviations
_LEAST_PAUSES = 4  # that have a period
_LEAST_KEPT = 0.6  # of the pauses that keep to it, and of the times at which there should be one

Numbers = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True, kw_only=True)
class Pause(JsonData):
    """A step that was much longer than those around it."""

    step: int  # among the measured ones; the first is 1
    seconds: float  # by which it was longer than usual
    worker: str | None  # whose own time made it so; None: everybody's, or nobody knows


@dataclass(frozen=True, kw_only=True)
class Period(JsonData):
    """Pauses that come again and again."""

    steps: float  # from one to the next
    seconds: float  # likewise
    pauses: int  # that keep to it
    worker: str | None  # whose they are; None: everybody's, or nobody knows


def beyond_usual(durations: Numbers) -> Numbers:
    """By how much each is longer than the median of those around it; negative where it is shorter."""
    excess = durations.copy()
    for within in _stretches(len(durations)):
        known = durations[within][np.isfinite(durations[within])]
        excess[within] -= np.median(known) if len(known) else 0.0
    return excess


def standing_out(durations: Numbers) -> Indices:
    """The indices of those that stand out."""
    if len(durations) < LEAST_STEPS:
        return np.zeros(0, np.intp)
    out = np.zeros(len(durations), bool)
    for within in _stretches(len(durations)):
        theirs = durations[within]
        usual = np.median(theirs)
        spread = _OF_NORMAL * np.median(np.abs(theirs - usual))
        out[within] = theirs > usual + max(LEAST_PART * usual, SPREADS * spread)
    return np.flatnonzero(out)


def _stretches(steps: int) -> Iterator[slice]:
    """Of `_AROUND` steps each, the last of up to twice as many."""
    count = max(1, steps // _AROUND)
    for number in range(count):
        yield slice(number * _AROUND, steps if number == count - 1 else (number + 1) * _AROUND)


def periodic(indices: Indices, durations: Numbers) -> tuple[float, float, Indices] | None:
    """The period of pauses at these indices, in steps and in the unit of durations, and the pauses that keep to it."""
    first = indices[np.flatnonzero(np.diff(indices, prepend=-2) > 1)]  # of several in a row
    if len(first) < _LEAST_PAUSES or not (found := _distance(first, len(durations))):
        return None
    ones, nexts = _chained(first, *found)
    kept = np.union1d(ones, nexts)
    if len(kept) < max(_LEAST_PAUSES, _LEAST_KEPT * len(first), _LEAST_KEPT * (len(durations) // found[0])):
        return None
    begins = np.cumsum(durations)
    return float(np.mean(nexts - ones)), float(np.mean(begins[nexts] - begins[ones])), kept


def _distance(indices: Indices, steps: int) -> tuple[int, int] | None:
    """Which more pairs of indices have than by chance, give or take so much. Of several the shortest, for twice a period is as
    frequent; of those near it the least likely by chance.
    """
    at = np.zeros(2 * steps)  # padded, so that what is left at the end meets nothing at the start
    at[indices] = 1
    spectrum = np.fft.rfft(at)
    pairs = np.rint(np.fft.irfft(spectrum * np.conj(spectrum), len(at))[:steps])  # by their distance
    density = len(indices) * (len(indices) - 1) / (steps * (steps - 1))
    found: list[tuple[float, int, int]] = []
    most = steps // 3
    tried = 2 * (most - 1)
    for distance in range(2, most + 1):
        around = pairs[max(1, distance // 2) : distance + distance // 2 + 1]
        for slack in (0, max(1, distance // 20)):
            window = slice(max(1, distance - slack), distance + slack + 1)
            here, width = pairs[window].sum(), window.stop - window.start
            if here < _LEAST_PAUSES - 1:
                continue
            others = (around.sum() - here) / max(1, len(around) - width)
            expected = width * max(others, density * (steps - distance))
            if (chance := tried * _poisson_tail(int(here), expected)) < FALSE_ALARMS:
                found.append((chance, distance, slack))
    near = [each for each in found if each[1] <= 1.5 * found[0][1]]
    return min(near)[1:] if near else None


def _poisson_tail(least: int, mean: float) -> float:
    """The probability of so many or more. The terms beyond the first are summed while they matter."""
    if mean <= 0:
        return 0.0
    if least <= mean:
        return 1.0
    term = math.exp(least * math.log(mean) - mean - math.lgamma(least + 1))
    total = 0.0
    while term > 1e-6 * total:
        total += term
        least += 1
        term *= mean / least
    return min(1.0, total)


def _chained(indices: Indices, distance: int, slack: int) -> tuple[Indices, Indices]:
    """Those that have another so far behind them, give or take so much; and these others."""
    at = np.searchsorted(indices, indices + distance - slack)
    has = at < np.searchsorted(indices, indices + distance + slack, side="right")
    return indices[has], indices[at[has]]
