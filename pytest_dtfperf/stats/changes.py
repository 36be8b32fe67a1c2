"""Steps and drifts in series of nights, found night by night, with one promised rate of false events over all series.

Pure. A night is a number: the logarithm of a rate. Each night, each series that was measured is searched back to its last
change (`scan`), against a critical value for its share of the promise: with n series watched, the part of all horizons in which
any of them has a false event is at most n times that of one (Bonferroni). How nights scatter is estimated from the nights
themselves (`nights`); how well that is known makes critical values greater, as Student's t does.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, Self

import numpy as np

from pytest_dtfperf.stats.nights import LEAST_NIGHTS, NightNoise, Scatter, Together, clipped, rough_scale, scatter, shared_scale
from pytest_dtfperf.stats.scan import (
    CORRELATIONS,
    LEAST,
    WINDOW,
    Array,
    Tail,
    ratios,
    ratios_at,
    simulated,
    variance_of_difference,
)

MEMORY = 365  # nights that noise is estimated from
REFINED = 20  # nights after a change was found, in which it may turn out to have been a few nights earlier or later
SHIFT = 10  # by so many at most
REVERTED = 21  # nights within which a rate that is as it was before was no change
SAME = 2.5  # standard errors, within which two levels are the same
DRIFT_JOINS = 90  # nights within which a further loss is the same drift
MANY = 0.5  # of a change must be left without the few nights that show most of it
BETTER = 0.9  # of the squares that a step leaves: a drift must leave less than that to be one
CONFIDENCE = 0.95  # of the interval of a size
KNOWN_ERROR = 0.1  # a correlation with a greater standard error is not known
KNOWN_NIGHTS = 60  # nor one of fewer nights; the promise is checked from here on


@dataclass(frozen=True)
class Promise:
    """What is promised of false events."""

    share: float = 0.05  # of all horizons, in which there is any false event, in any series
    nights: int = 90  # of each series: the horizon, a quarter of a year

    def level(self, series: int) -> float:
        """Of each of so many series."""
        return self.share / max(1, series)


Tails = Callable[[int, float], Tail]


@lru_cache(maxsize=64)
def fresh(nights: int, correlation: float) -> Tail:
    """Simulated now, in half a second; a caller may keep it for longer."""
    return simulated(nights, correlation)


@dataclass
class Change:
    """One, in one series. Positions count the nights of the series, from 0."""

    found: int
    first_bad: int
    last_good: int
    kind: str = "step"
    size: float = 0.0  # difference of the logarithms of rates
    low: float = 0.0
    high: float = 0.0
    is_reverted: bool = False


@dataclass
class Track:
    """A series as far as it is known. `kept`: positions of the nights that count; those of an outlier do not."""

    values: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])  # of stretches without a change, counted in `kept`
    changes: list[Change] = field(default_factory=list)  # by which the stretches after the first began
    past: list[Change] = field(default_factory=list)  # that were none: the rate came back
    shown: Scatter | None = None
    rough: float = 0.0

    def stretch(self, number: int) -> Array:
        """Values between two changes, the latest for -1."""
        bounds = [*self.begins, len(self.kept)]
        number = number % len(self.begins)
        return self.between(bounds[number], bounds[number + 1])

    def between(self, begin: int, end: int) -> Array:
        """Values of the last WINDOW or MEMORY nights are all that is ever asked for, however long a series is."""
        return np.array([self.values[position] for position in self.kept[begin:end]])

    def to_json(self) -> dict[str, Any]:
        """All but the values, which are elsewhere."""
        skipped = sorted(set(range(len(self.values))) - set(self.kept))
        changes = [asdict(change) for change in self.changes]
        return {"skipped": skipped, "begins": self.begins, "changes": changes, "past": [asdict(change) for change in self.past]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], values: Sequence[float]) -> Self:
        """As it was, with the values that it had then."""
        skipped, changes = set(data["skipped"]), list[Change]()
        for each in data["changes"]:
            change = Change(**each)
            changes.append(changes[-1] if changes and changes[-1] == change else change)  # a drift that went on is one
        kept = [position for position in range(len(values)) if position not in skipped]
        past = [Change(**each) for each in data["past"]]
        return cls(values=list(values), kept=kept, begins=list(data["begins"]), changes=changes, past=past)

    def stretches(self) -> list[Array]:
        """Of the last MEMORY nights."""
        least, bounds = max(0, len(self.kept) - MEMORY), [*self.begins, len(self.kept)]
        return [self.between(max(begin, least), end) for begin, end in pairwise(bounds) if end > least]


class Watch:
    """All series, and what was found in them. Feed it the nights in their order."""

    def __init__(self, promise: Promise | None = None, tails: Tails = fresh) -> None:
        self.promise = promise or Promise()
        self.tracks: dict[str, Track] = {}
        self.together: Together | None = None
        self._tails = tails

    def resume(self, tracks: Mapping[str, Track]) -> None:
        """Go on with series as they were, whose noise is found out anew."""
        self.tracks.update(tracks)
        self._learn(dict.fromkeys(tracks, 0.0))

    def night(self, rates: Mapping[str, float], watched: int | None = None) -> dict[str, Change]:
        """The logarithms of the rates of a night, by series; returns the changes that it has confirmed.

        `watched`: how many series share the promise, by default all that there ever were.
        """
        for name, rate in rates.items():
            track = self.tracks.setdefault(name, Track())
            track.kept.append(len(track.values))
            track.values.append(rate)
        self._learn(rates)
        if self.together is None:
            return {}
        level = self.promise.level(watched or len(self.tracks))
        found = {name: self._search(self.tracks[name], level) for name in rates}
        return {name: change for name, change in found.items() if change}

    def _learn(self, names: Mapping[str, float]) -> None:
        """What tonight's nights add to what is known of the noise."""
        for name in names:
            self.tracks[name].rough = rough_scale(self.tracks[name].stretches())
        roughs = [track.rough for track in self.tracks.values()]
        for name in names:
            track = self.tracks[name]
            stretches = track.stretches()
            if sum(map(len, stretches)) >= LEAST_NIGHTS:
                track.shown = scatter(stretches, shared_scale(track.rough, len(track.kept), roughs))
        shown = [track.shown for track in self.tracks.values() if track.shown]
        self.together = Together(shown) if shown else None

    def noise(self, name: str) -> NightNoise | None:
        """Of a series; None: it has too few nights."""
        track = self.tracks[name]
        return self.together.noise(track.shown) if self.together and track.shown else None

    def knows_correlation(self) -> bool:
        """Whether how alike neighbouring nights are is known well enough for the promise to be kept."""
        known = [self.noise(name) for name in self.tracks]
        longest = max((len(track.kept) for track in self.tracks.values()), default=0)
        return longest >= KNOWN_NIGHTS and all(noise is None or noise.error <= KNOWN_ERROR for noise in known)

    def _search(self, track: Track, level: float) -> Change | None:
        if track.shown is None or self.together is None:
            return None
        noise = self.together.noise(track.shown)
        self._refine(track, noise)
        window = track.stretch(-1)[-WINDOW:]
        if len(window) < 2 * LEAST:
            return None
        after, found = _searched(window, noise)
        best = int(np.argmax(np.abs(found)))
        if abs(found[best]) <= self._critical(level, noise) or not _is_of_many(window, int(after[best]), noise):
            return None
        return self._add(track, len(track.kept) - int(after[best]), noise)

    def _critical(self, level: float, noise: NightNoise) -> float:
        tail = self._tails(self.promise.nights, simulated_as(noise.correlation))
        return _student(tail.critical(level), noise.degrees_of_freedom)

    def _add(self, track: Track, begin: int, noise: NightNoise) -> Change | None:
        """A change at a position of `kept`; None where it is the end of an outlier, or more of a drift that is known."""
        change = Change(found=track.kept[-1], first_bad=track.kept[begin], last_good=track.kept[begin - 1])
        track.begins.append(begin)
        track.changes.append(change)
        if _forget_outlier(track, noise):
            return None
        _measure(track, len(track.begins) - 1, noise)
        return None if _join_drift(track, noise) else change

    def _refine(self, track: Track, noise: NightNoise) -> None:
        """Say anew where the last change was, and how large, now that more nights are known."""
        if len(track.begins) < 2:
            return
        begin, least, end = track.begins[-1], track.begins[-2], len(track.kept)
        if track.kept[-1] - track.changes[-1].found <= REFINED and track.changes[-1].kind == "step":
            window = track.between(max(least, begin - WINDOW), end)
            near = np.arange(end - begin - SHIFT, end - begin + SHIFT + 1)
            near = near[(near >= LEAST) & (near <= len(window) - LEAST)]
            if len(near):
                found = ratios_at(clipped(window, noise.scale) / noise.deviation, near, noise.correlation)
                track.begins[-1] = end - int(near[np.argmax(np.abs(found))])
        _measure(track, len(track.begins) - 1, noise)


def simulated_as(correlation: float) -> float:
    """The next smaller that is simulated: its tail is greater."""
    return max(each for each in CORRELATIONS if each <= max(correlation, 0.0) + 1e-9)


def _is_of_many(window: Array, after: int, noise: NightNoise) -> bool:
    """Whether the nights after a split differ without the LEAST - 1 that differ most: a few bad nights are no change."""
    values = clipped(window, noise.scale)
    before = float(values[:-after].mean())
    ordered = np.sort(values[-after:] - before) * (1.0 if values[-after:].mean() >= before else -1.0)
    return float(np.sort(ordered)[: 1 - LEAST].mean()) >= MANY * float(ordered.mean())


def _searched(window: Array, noise: NightNoise) -> tuple[Array, Array]:
    after, found = ratios(clipped(window, noise.scale) / noise.deviation, noise.correlation)
    return after.astype(float), found


@lru_cache(maxsize=4096)
def _student_of(critical: float, degrees: float) -> float:
    from scipy.special import ndtr, stdtrit

    return -float(stdtrit(degrees, ndtr(-critical)))


def _student(critical: float, degrees: float) -> float:
    """Of Student's t, at the significance that a normal statistic has there."""
    return _student_of(round(critical, 4), round(min(degrees, 1e6), 0 if degrees > 100 else 1))


def _forget_outlier(track: Track, noise: NightNoise) -> bool:
    """Whether the last two changes took the rate away and back: then there was none, and the nights between do not count."""
    if len(track.begins) < 3 or track.begins[-1] - track.begins[-2] > REVERTED:
        return False
    before, after = track.stretch(-3)[-WINDOW:], track.stretch(-1)
    ratio = (after.mean() - _mean(before, noise)) / _error(before, after, noise)
    if abs(ratio) > SAME:
        return False
    begin, end = track.begins[-2], track.begins[-1]
    gone = track.changes[-2]
    gone.is_reverted = True
    track.past.append(gone)
    del track.kept[begin:end], track.begins[-2:], track.changes[-2:]
    return True


def _mean(values: Array, noise: NightNoise) -> float:
    """Clipped, so that single bad nights count for little."""
    return float(np.median(values) + clipped(values, noise.scale).mean())


def _error(before: Array, after: Array, noise: NightNoise) -> float:
    """Standard error of the difference of two means."""
    sizes = np.array([float(len(before))]), np.array([float(len(after))])
    return noise.deviation * math.sqrt(float(variance_of_difference(*sizes, noise.correlation)[0]))


def _measure(track: Track, number: int, noise: NightNoise) -> None:
    """Size and interval of the change that a stretch began with, and between which nights it was."""
    from scipy.special import stdtrit

    change = track.changes[number - 1]
    first = next(index for index, each in enumerate(track.changes, 1) if each is change)  # of a drift that went on
    change.first_bad, change.last_good = track.kept[track.begins[first]], track.kept[track.begins[first] - 1]
    before, after = track.stretch(first - 1)[-WINDOW:], track.stretch(number)[:WINDOW]
    change.size = _mean(after, noise) - _mean(before, noise)
    half = float(stdtrit(noise.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * _error(before, after, noise)
    change.low, change.high = change.size - half, change.size + half
    change.kind = "drift" if first < number or _is_drift(before, after) else "step"


def _is_drift(before: Array, after: Array) -> bool:
    """Whether a straight line from some night on leaves less of the nights' scatter than a step."""
    step = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    return _squares_of_hinge(np.concatenate([before, after])) < BETTER * step


def _squares_of_hinge(values: Array) -> float:
    """Left by a level that becomes a straight line at the best of some nights."""
    nights = np.arange(len(values), dtype=float)
    least = math.inf
    for begin in range(0, max(1, len(values) - 2 * LEAST), max(1, len(values) // 20)):
        line = np.maximum(0.0, nights - begin)
        line -= line.mean()
        rest = values - values.mean()
        rest = rest - line * float(line @ rest) / float(line @ line)
        least = min(least, float(rest @ rest))
    return least


def _join_drift(track: Track, noise: NightNoise) -> bool:
    """Whether the last change is more of the one before, which then is a drift that goes on."""
    if len(track.begins) < 3:
        return False
    last, one_before = track.changes[-1], track.changes[-2]
    if last.size * one_before.size <= 0 or track.begins[-1] - track.begins[-2] > DRIFT_JOINS:
        return False
    parts = [track.stretch(number)[-WINDOW:] for number in (-3, -2, -1)]
    steps = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    if _squares_of_hinge(np.concatenate(parts)) > steps / BETTER:
        return False
    track.changes[-1] = one_before
    _measure(track, len(track.begins) - 1, noise)
    return True
