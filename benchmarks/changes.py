"""How often the search for changes finds what is there, and what is not: simulated on the code that ships.

    python -m benchmarks.changes [QUARTERS] [SEED]     # about 90 s of CPU for each quarter of all kinds

A quarter is KNOWN nights without a change, from which the noise is learned, and then HORIZON nights that are watched; or EARLY
nights instead of KNOWN.
"""

import math
import sys
from collections.abc import Callable, Mapping

import numpy as np

from pytest_dtfperf.stats.changes import ChangeWatch, Track
from pytest_dtfperf.stats.nights import ANCHOR, KINDS, WINDOW, Array, Kind, compute_variances_of_splits, list_split_sizes

SERIES, KNOWN, EARLY, HORIZON, NOISE = 24, 60, 8, 90, 0.01
SOON = 24  # nights in which steps are looked for


def simulate_threshold(kind: Kind, *, series: int = 20_000, seed: int = 20260131) -> float:
    """Return the statistic that a fraction ANCHOR of series without a change exceeds within HORIZON, after KNOWN nights.

    Called without a number of series and a seed, it makes the tails of `stats/nights.py`. The number gives the frequency of one
    in a hundred to 7 %.
    """
    random = np.random.default_rng([seed, HORIZON, KINDS.index(kind)])
    slow = simulate_autoregression(random, series, KNOWN + HORIZON, kind.correlation)
    alone = random.standard_normal((series, KNOWN + HORIZON))
    nights = math.sqrt(kind.slow) * slow + math.sqrt(1 - kind.slow) * alone
    sums = np.concatenate([np.zeros((series, 1)), np.cumsum(nights, axis=1)], axis=1).T.copy()  # (night, series)
    largest = np.zeros(series)
    for end in range(KNOWN + 1, KNOWN + HORIZON + 1):
        count = min(end, WINDOW)
        weights = 1 / np.sqrt(compute_variances_of_splits(count)[KINDS.index(kind)])
        for late, weight in zip(list_split_sizes(count).tolist(), weights.tolist(), strict=True):
            upper, lower = weight / late, weight / (count - late)
            split = sums[end - late]
            np.maximum(largest, np.abs(upper * (sums[end] - split) - lower * (split - sums[end - count])), out=largest)
    return float(np.quantile(largest, 1 - ANCHOR))


def simulate_autoregression(random: np.random.Generator, series: int, nights: int, correlation: float) -> Array:
    """Return normal nights of variance 1, each like the one before: (series, night)."""
    found = random.standard_normal((series, nights))
    for night in range(1, nights if correlation else 0):
        found[:, night] = correlation * found[:, night - 1] + math.sqrt(1 - correlation**2) * found[:, night]
    return found


Nights = Callable[[np.random.Generator, int], Array]  # (series, night), in parts of NOISE


def heavy(random: np.random.Generator, nights: int) -> Array:
    """Student's t with 3 degrees of freedom: a night in 70 is off by five scales."""
    return random.standard_t(3, (SERIES, nights))


def alike(correlation: float) -> Nights:
    return lambda random, nights: simulate_autoregression(random, SERIES, nights, correlation)


def slow(part: float, independent: float = 1.0, series: int | None = None) -> Nights:
    """AR(1) 0.95 with a standard deviation of `part`, beside independent nights; the first `series` alone have it."""

    def draw_nights(random: np.random.Generator, nights: int) -> Array:
        wandering = simulate_autoregression(random, SERIES, nights, 0.95)
        if series is not None:
            wandering[series:] = 0
        return part * wandering + independent * random.standard_normal((SERIES, nights))

    return draw_nights


def weekly(random: np.random.Generator, nights: int) -> Array:
    """One standard deviation faster in two nights of seven, other ones in each series."""
    days = np.arange(nights) + random.integers(0, 7, (SERIES, 1))
    return random.standard_normal((SERIES, nights)) + np.isin(days % 7, [5, 6])


def yearly(random: np.random.Generator, nights: int) -> Array:
    """A sine of half a standard deviation, the same in all series, begun at any time of the year."""
    season = 0.5 * np.sin(2 * np.pi * (np.arange(nights) / 365 + random.random()))
    return random.standard_normal((SERIES, nights)) + season


NOTHING: Mapping[str, Nights] = {
    "independent": alike(0.0),
    "heavy-tailed (t3)": heavy,
    "AR(1) 0.3": alike(0.3),
    "AR(1) 0.6": alike(0.6),
    "AR(1) 0.95 of 0.3 % alone": slow(0.3, 0.0),
    "AR(1) 0.95 of 0.3 % beside 0.3 %": slow(0.3, 0.3),
    "AR(1) 0.95 of 0.3 % beside 1 %": slow(0.3),
    "AR(1) 0.95 of 0.5 % beside 1 %": slow(0.5),
    "the same in 6 series of 24": slow(0.5, series=6),
    "a weekly pattern of 1 %": weekly,
    "a yearly sine of 0.5 %": yearly,
}


def false_events(quarters: int, kind: str, known: int, seed: int = 1) -> float:
    """The part of quarters with any event, where nothing changes."""
    random = np.random.default_rng(seed)
    return sum(bool(_find_events(NOISE * NOTHING[kind](random, known + HORIZON), known)) for _ in range(quarters)) / quarters


def nights_until_found(trials: int, size: float, seed: int = 2, kind: str = "independent") -> Array:
    """Nights from a step of one series until it is confirmed; infinite where it is not within SOON."""
    random, found = np.random.default_rng(seed), []
    for _ in range(trials):
        values = NOISE * NOTHING[kind](random, KNOWN + SOON)
        values[0, KNOWN:] += np.log1p(-size)
        nights = [night for night, name in _find_events(values, KNOWN) if name == "0"]
        found.append(nights[0] - KNOWN + 1 if nights else np.inf)
    return np.array(found)


def drifts_found(trials: int, seed: int = 3) -> float:
    """Return the part of drifts of 5 % in 60 nights that are found within these."""
    random, found = np.random.default_rng(seed), 0
    for _ in range(trials):
        values = NOISE * simulate_autoregression(random, SERIES, KNOWN + 60, 0.0)
        values[0, KNOWN:] += np.log1p(-0.05 * np.arange(1, 61) / 60)
        found += any(name == "0" for _, name in _find_events(values, KNOWN))
    return found / trials


def three_steps_found(trials: int, seed: int = 4) -> float:
    """The part of years in which three steps of 2 % are three events, each within five nights of its place."""
    random, found = np.random.default_rng(seed), 0
    for _ in range(trials):
        values = NOISE * simulate_autoregression(random, SERIES, 365, 0.0)
        for begin in (90, 190, 290):
            values[0, begin:] += np.log1p(-0.02)
        watch = ChangeWatch()
        for night in values.T:
            watch.add_night({str(number): float(value) for number, value in enumerate(night)})
        begins = [change.first_bad for change in watch.tracks["0"].changes]
        found += len(begins) == 3 and all(abs(a - b) <= 5 for a, b in zip(begins, (90, 190, 290), strict=True))
    return found / trials


def count_longer_trials(quarters: int) -> tuple[int, int]:
    """Return how many drifts and how many years are drawn beside so many quarters: fewer, as they take longer, but some."""
    return max(1, quarters // 4), max(1, quarters // 10)


def _find_events(values: Array, known: int) -> list[tuple[int, str]]:
    """Nights with an event, and its series. The known nights are learned from, and not searched."""
    watch = ChangeWatch()
    start = {str(n): Track(values=[float(v) for v in each[:known]], kept=list(range(known))) for n, each in enumerate(values)}
    watch.resume(start)
    found = []
    for night in range(known, values.shape[1]):
        names = watch.add_night({str(number): float(value) for number, value in enumerate(values[:, night])})
        found += [(night, name) for name in names]
    return found


def main(quarters: int = 200, seed: int = 1) -> None:
    for known in (KNOWN, EARLY):
        for kind in NOTHING:
            print(
                f"{kind}, {known} nights known: quarters with an event: {false_events(quarters, kind, known, seed):.1%}",
                flush=True,
            )
    for kind in NOTHING:
        for size in (0.02, 0.03, 0.05):
            nights = nights_until_found(quarters, size, seed + 1, kind)
            within = ", ".join(f"{(nights <= count).mean():.1%} within {count}" for count in (6, 12, 20))
            print(f"{kind}, step of {size:.0%}: median {np.median(nights):.0f} nights, {within}", flush=True)
    drifts, years = count_longer_trials(quarters)
    print(f"drift of 5 % in 60 nights: found {drifts_found(drifts, seed + 2):.1%} of {drifts}", flush=True)
    print(f"three steps of 2 % in a year: all found {three_steps_found(years, seed + 3):.1%} of {years}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
