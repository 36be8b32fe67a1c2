"""How often other programs find changes where there are none, and where there is one, on the series of benchmarks/changes.py.

    pip install apache-otava ruptures
    python -m benchmarks.changes_others [QUARTERS]

Each looks once, at the end of a quarter, at all nights of each of 24 series, called as its own documentation calls it: Apache
Otava with the window and the significance of its command line, ruptures by PELT as in its introduction, with the penalty of
the Bayesian criterion for a known scale. Who looks every night has more chances to err. Our own search is given the same
nights, one after the other.
"""

import importlib.util
import sys
from collections.abc import Callable, Mapping

import numpy as np

from benchmarks.changes import HORIZON, KNOWN, NOISE, NOTHING, SERIES, _find_events, simulate_autoregression
from pytest_dtfperf.stats.nights import Array

WINDOW, MOST_P_VALUE = 50, 0.001  # of `otava analyze`
NEAR = 5  # nights: a change so near to the true one is that
AFTER = 12  # nights that there are of a step when it is looked for

Finder = Callable[[Array], list[int]]  # a series' nights in, positions of changes out


def otava(values: Array) -> list[int]:
    from otava.analysis import compute_change_points

    found, _ = compute_change_points(np.exp(values).tolist(), window_len=WINDOW, max_pvalue=MOST_P_VALUE)
    return [point.index for point in found]


def ruptures(values: Array) -> list[int]:
    import ruptures

    penalty = 2 * np.log(len(values)) * np.diff(values).var() / 2
    ends: list[int] = ruptures.Pelt(model="l2", min_size=4, jump=1).fit(values).predict(pen=penalty)
    return ends[:-1]


OTHERS: Mapping[str, Finder] = {"otava": otava, "ruptures": ruptures}


def false_quarters(find: Finder, quarters: int, kind: str, seed: int = 1) -> float:
    """The part of quarters in which any of the 24 series has a change within them, where nothing changes."""
    random, wrong = np.random.default_rng(seed), 0
    for _ in range(quarters):
        values = NOISE * NOTHING[kind](random, KNOWN + HORIZON)
        wrong += any(position >= KNOWN for series in values for position in find(series))
    return wrong / quarters


def steps_found(find: Finder, trials: int, size: float, seed: int = 2) -> float:
    """The part of steps that are seen AFTER nights later."""
    random, found = np.random.default_rng(seed), 0
    for _ in range(trials):
        values = NOISE * simulate_autoregression(random, 1, KNOWN + AFTER, 0.0)[0]
        values[KNOWN:] += np.log1p(-size)
        found += any(abs(position - KNOWN) <= NEAR for position in find(values))
    return found / trials


def our_false_quarters(quarters: int, kind: str, seed: int = 1) -> float:
    random = np.random.default_rng(seed)
    return sum(bool(_find_events(NOISE * NOTHING[kind](random, KNOWN + HORIZON), KNOWN)) for _ in range(quarters)) / quarters


def our_steps_found(trials: int, size: float, seed: int = 2) -> float:
    """One series of 24 changes, as the others share the promise."""
    random, found = np.random.default_rng(seed), 0
    for _ in range(trials):
        values = NOISE * simulate_autoregression(random, SERIES, KNOWN + AFTER, 0.0)
        values[0, KNOWN:] += np.log1p(-size)
        found += any(name == "0" for _, name in _find_events(values, KNOWN))
    return found / trials


def main(quarters: int = 20) -> None:
    for name, find in OTHERS.items():
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: pip install {'apache-otava' if name == 'otava' else name}")
            continue
        for kind in NOTHING:
            print(f"{name}, {kind}: quarters with a change {false_quarters(find, quarters, kind):.0%}", flush=True)
        for size in (0.02, 0.03):
            print(f"{name}, a step of {size:.0%}: seen after {AFTER} nights {steps_found(find, 5 * quarters, size):.0%}")
    for kind in NOTHING:
        print(f"ours, {kind}: quarters with a change {our_false_quarters(quarters, kind):.0%}", flush=True)
    for size in (0.02, 0.03):
        print(f"ours, a step of {size:.0%}: seen after {AFTER} nights {our_steps_found(quarters, size):.0%}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
