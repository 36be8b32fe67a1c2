"""Find steps and drifts in series of nights, night by night, with one promised rate of false events over all series. Pure.

A night is a number: the logarithm of a rate. Each night, each series that was measured is searched back to its last change
(`nights`), at its share of the promise: with n series watched, the part of all horizons in which any of them has a false event
is at most n times that of one (Bonferroni). The scatter of nights is estimated from the nights themselves (`nights`): each kind
of nights counts by its probability, and the uncertainty of a variance as in Student's t.

Where a series replaced another one, their nights are compared across that break, at the same share of the promise.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Self

import numpy as np

from pytest_dtfperf.stats.nights import (
    HORIZON,
    LEAST,
    LEAST_NIGHTS,
    WINDOW,
    Array,
    NightNoise,
    Scatter,
    Together,
    clip_nights,
    compute_differences,
    compute_log_probabilities,
    compute_scatter,
    compute_shared_scale,
    compute_split_effects,
    compute_usual_scale,
    compute_variances,
    compute_variances_of_splits,
    estimate_scale,
    list_split_sizes,
)

MEMORY = 365  # nights from which the noise is estimated
REFINED = 20  # nights after a change was found, in which its position is estimated again
SHIFT = 10  # nights by which the position may move, at most
REVERTED = 21  # nights within which a return to the earlier rate cancels a change
SAME = 2.5  # standard errors, within which two levels are the same
DRIFT_JOINS = 90  # nights within which a further loss is the same drift
MANY = 0.5  # of a change that must remain without the few nights that show most of it
BETTER = 0.9  # of the squares that a step leaves: a drift must leave less
CONFIDENCE = 0.95  # of the interval of a size
LEAST_AFTER = 2  # nights after a break: one alone may have gone wrong
ANALYSES = 10  # independent analyses to which the nightly tests of one break are equal: its nights grow from 2 to 90
ODDS = 0.04  # of a change at a split against none, where its size has the density of a night's variance
USED = 0.4  # of a share of the promise: means of a few heavy-tailed nights exceed the normal tail, and kinds are estimated
LEFT = 0.01  # of the squares that remain at least, however large the difference is
MOST_KNOWN = 0.9  # of the series
KNOWN_NIGHTS = 60  # fewer do not show how nights scatter; the promise is checked from here on


@dataclass(frozen=True)
class Promise:
    """The promised rate of false events."""

    share: float = 0.05  # of all horizons with any false event in any series
    nights: int = HORIZON  # of each series: a quarter of a year

    def get_level(self, series: int) -> float:
        """Return the error level of each series, with so many series."""
        return self.share / max(1, series)


@dataclass
class RateChange:
    """A change in one series. Positions count the nights of the series, from 0."""

    found: int
    first_bad: int
    last_good: int
    kind: str = "step"  # or drift, or break
    size: float = 0.0  # difference of the logarithms of rates
    low: float = 0.0
    high: float = 0.0
    is_reverted: bool = False


@dataclass
class Track:
    """The nights of a series and its changes.

    `kept` are the positions of the nights that count, without those of an outlier.
    """

    values: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    begins: list[int] = field(default_factory=lambda: [0])  # of stretches without a change, counted in `kept`
    changes: list[RateChange] = field(default_factory=list)  # the changes at which the stretches after the first begin
    past: list[RateChange] = field(default_factory=list)  # cancelled changes: the rate came back
    crossing: RateChange | None = (
        None  # the change at the begin of the series; `last_good` counts the nights of its predecessor
    )
    ended: str = ""  # the name of the predecessor, with a crossing
    shown: Scatter | None = None
    rough: float = 0.0

    def get_stretch(self, number: int) -> Array:
        """Return the values between two changes; -1 is the latest stretch."""
        bounds = [*self.begins, len(self.kept)]
        number = number % len(self.begins)
        return self.get_values(bounds[number], bounds[number + 1])

    def get_values(self, begin: int, end: int) -> Array:
        """Return the values of the kept nights from `begin` to `end`."""
        return np.array([self.values[position] for position in self.kept[begin:end]], dtype=float)

    def to_json(self) -> dict[str, Any]:
        """Return everything except for the values, which are stored elsewhere."""
        return {
            "skipped": sorted(set(range(len(self.values))) - set(self.kept)),
            "begins": self.begins,
            "changes": [asdict(change) for change in self.changes],
            "past": [asdict(change) for change in self.past],
            "crossing": asdict(self.crossing) if self.crossing else None,
            "ended": self.ended,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], values: Sequence[float]) -> Self:
        """Return a stored series with its values at that time."""
        skipped, changes = set(data["skipped"]), list[RateChange]()
        for each in data["changes"]:
            change = RateChange(**each)
            changes.append(changes[-1] if changes and changes[-1] == change else change)  # a continued drift is one change
        kept = [position for position in range(len(values)) if position not in skipped]
        past = [RateChange(**each) for each in data["past"]]
        track = cls(values=list(values), kept=kept, begins=list(data["begins"]), changes=changes, past=past)
        if crossing := data.get("crossing"):
            track.crossing, track.ended = RateChange(**crossing), data["ended"]
        return track

    def list_stretches(self) -> list[Array]:
        """Return the stretches of the last MEMORY nights."""
        least, bounds = max(0, len(self.kept) - MEMORY), [*self.begins, len(self.kept)]
        return [self.get_values(max(begin, least), end) for begin, end in pairwise(bounds) if end > least]


class ChangeWatch:
    """All series, and the changes that were found in them. Add nights in their order."""

    def __init__(self, promise: Promise | None = None) -> None:
        self.promise = promise or Promise()
        self.tracks: dict[str, Track] = {}
        self.together: Together | None = None
        self._usual = 0.0  # scale of a series

    def resume(self, tracks: Mapping[str, Track]) -> None:
        """Continue stored series, and estimate their noise again."""
        self.tracks.update(tracks)
        self._learn(dict.fromkeys(tracks, 0.0))

    def add_night(
        self, rates: Mapping[str, float], watched: int | None = None, ended: Mapping[str, str] | None = None
    ) -> dict[str, RateChange]:
        """Add the logarithms of a night's rates, by series, and return the changes that this night has confirmed.

        Args:
            rates: Natural logarithms, by the names of series.
            watched: The number of series that share the promise, by default all that have existed.
            ended: The predecessor of each series that replaced another one, which was not measured since.
        """
        for name, rate in rates.items():
            track = self.tracks.setdefault(name, Track())
            track.kept.append(len(track.values))
            track.values.append(rate)
        self._learn(rates)
        level = USED * self.promise.get_level(watched or len(self.tracks))
        found = {name: self._cross(self.tracks[name], before, level) for name, before in (ended or {}).items() if name in rates}
        found |= {name: change for name in rates if (change := self._search(self.tracks[name], level))}
        return {name: change for name, change in found.items() if change}

    def may_cross(self, name: str) -> bool:
        """Return whether a series has no change of its own and few nights, so that it is compared with its predecessor."""
        track = self.tracks.get(name)
        return track is None or (len(track.begins) == 1 and len(track.kept) < self.promise.nights)

    def _learn(self, names: Mapping[str, float]) -> None:
        """Update the estimates of the noise with the nights of these series."""
        for name in names:
            self.tracks[name].rough = estimate_scale(self.tracks[name].list_stretches())
        self._usual = compute_usual_scale(track.rough for track in self.tracks.values())
        for name in names:
            track = self.tracks[name]
            stretches = track.list_stretches()
            if sum(map(len, stretches)) >= LEAST_NIGHTS:
                track.shown = compute_scatter(stretches, compute_shared_scale(track.rough, len(track.kept), self._usual))
        shown = [track.shown for track in self.tracks.values() if track.shown]
        self.together = Together(shown) if shown else None

    def get_noise(self, name: str) -> NightNoise | None:
        """Return the noise of a series; None: it has too few nights."""
        track = self.tracks[name]
        return self.together.get_noise(track.shown) if self.together and track.shown else None

    def is_noise_known(self) -> bool:
        """Return whether the noise is known well enough to find small changes; until then, only large ones are found."""
        known = [noise.is_known() for name in self.tracks if (noise := self.get_noise(name))]
        longest = max((len(track.kept) for track in self.tracks.values()), default=0)
        return longest >= KNOWN_NIGHTS and sum(known) >= MOST_KNOWN * len(known)

    def _search(self, track: Track, level: float) -> RateChange | None:
        if track.shown is None or self.together is None:
            return None
        noise = self.together.get_noise(track.shown)
        # Before the last change is refined, which would move it to a larger one that follows.
        if after := self._find_split(track, noise, level):
            return self._add(track, len(track.kept) - after, noise)
        self._refine(track, noise)
        return None

    def _find_split(self, track: Track, noise: NightNoise, level: float) -> int | None:
        """Return the number of nights after a new change in the last stretch; None if there is none."""
        stretch = track.list_stretches()[-1]
        if len(stretch) < 2 * LEAST:
            return None
        after, chance = _search_stretch(stretch, noise, level)
        return after if chance < level and _is_of_many(stretch[-WINDOW:], after, noise) else None

    def _cross(self, track: Track, name: str, level: float) -> RateChange | None:
        """Compare a series with its predecessor, and return the change if it is confirmed now."""
        ended = self.tracks[name]
        before, after = ended.get_stretch(-1)[-WINDOW:], track.get_stretch(0)[:WINDOW]
        stretches = [*ended.list_stretches(), *track.list_stretches()]
        if len(after) < LEAST_AFTER or sum(len(each) - 1 for each in stretches) < 1 or track.ended not in ("", name):
            return None
        shown = compute_scatter(
            stretches, compute_shared_scale(estimate_scale(stretches), sum(map(len, stretches)), self._usual)
        )
        noise = (self.together or Together([shown])).get_noise(shown)
        if track.crossing:
            _measure_crossing(track.crossing, before, after, noise)
            return None
        if _chance_of_difference(before, after, noise) >= level or not _is_of_many_after(before, after, noise):
            return None
        track.ended, track.crossing = name, RateChange(track.kept[-1], track.kept[0], ended.kept[-1], kind="break")
        _measure_crossing(track.crossing, before, after, noise)
        return track.crossing

    def _add(self, track: Track, begin: int, noise: NightNoise) -> RateChange | None:
        """Add a change at a position of `kept`, and return it; None for the end of an outlier, or a part of a known drift."""
        change = RateChange(found=track.kept[-1], first_bad=track.kept[begin], last_good=track.kept[begin - 1])
        track.begins.append(begin)
        track.changes.append(change)
        if _forget_outlier(track, noise):
            return None
        _measure_last(track, noise)
        return None if _join_drift(track, noise) else change

    def _refine(self, track: Track, noise: NightNoise) -> None:
        """Estimate the position and size of the last change again, from the nights since then."""
        if len(track.begins) < 2:
            return
        begin, least, end = track.begins[-1], track.begins[-2], len(track.kept)
        if track.kept[-1] - track.changes[-1].found <= REFINED and track.changes[-1].kind == "step":
            window = track.get_values(max(least, begin - WINDOW), end)
            near = np.arange(end - begin - SHIFT, end - begin + SHIFT + 1)
            near = near[(near >= LEAST) & (near <= len(window) - LEAST)]
            if len(near):
                moved = np.abs(compute_differences(clip_nights(window, noise.scale), near))
                found = moved / noise.compute_errors((len(window) - near).astype(float), near.astype(float))
                track.begins[-1] = end - int(near[np.argmax(found)])
        _measure_last(track, noise)


def _is_of_many(window: Array, after: int, noise: NightNoise) -> bool:
    """Return whether the nights after a split still differ without the LEAST - 1 that differ most.

    A few bad nights are no change.
    """
    values = clip_nights(window, noise.scale)
    return _is_seen_in_many(values[-after:] - float(values[:-after].mean()))


def _is_of_many_after(before: Array, after: Array, noise: NightNoise) -> bool:
    """Return whether many nights differ across a break, after which there may be few."""
    return _is_seen_in_many(clip_nights(after, noise.scale) - _mean(before, noise))


def _is_seen_in_many(differences_after: Array) -> bool:
    ordered = np.sort(differences_after * (1.0 if differences_after.mean() >= 0 else -1.0))
    most = min(LEAST - 1, len(ordered) - 1)
    return float(ordered[: len(ordered) - most].mean()) >= MANY * float(ordered.mean())


def _chance_of_difference(before: Array, after: Array, noise: NightNoise) -> float:
    """Return the probability of so large a difference without a change, in any night on which one break is tested."""
    from scipy.special import ndtr

    variance, weights = noise.infer_kinds(noise.shown.squares)
    spread = compute_variances(np.array([float(len(before))]), np.array([float(len(after))]))[:, 0]
    ratios = abs(_mean(after, noise) - _mean(before, noise)) / np.sqrt(variance * spread)
    chances = np.minimum(1.0, 2 * ANALYSES * ndtr(-_normal(ratios, noise.degrees_of_freedom)))
    return float(weights @ chances)


def _search_stretch(stretch: Array, noise: NightNoise, level: float) -> tuple[int, float]:
    """Return the nights after the best split, and the probability of its difference within the horizon without a change.

    Each kind of nights has a probability of its own. They are weighted by the probability of the kind: with a change at that
    split, and without one, as nights that wander slowly may look like a step. The result is 1 if no kind's is below `level`.
    """
    values = clip_nights(stretch, noise.scale)
    window = values[-WINDOW:]
    after, spread = list_split_sizes(len(window)), compute_variances_of_splits(len(window))
    squared = compute_differences(window, after) ** 2 / spread  # in variances of a night, (kind, split)
    squares = noise.shown.squares[:, None]
    largest = squared.max(axis=1, keepdims=True)
    if (_chances(largest, np.maximum(squares - largest, LEFT * squares), noise) >= level).all():
        return 0, 1.0
    chances = _weigh_splits(values, squared, noise)
    best = int(np.argmin(chances))
    return int(after[best]), float(chances[best])


def _weigh_splits(values: Array, squared: Array, noise: NightNoise) -> Array:
    """Return by split the probabilities of all kinds of nights, with a step, with a ramp, and with no change."""
    squares = noise.shown.squares[:, None]
    taken, spread = compute_split_effects(values)
    rest = np.maximum(squares - taken, LEFT * squares)
    logs = np.stack([noise.log_likelihoods(each) for each in rest]) + np.log(ODDS * np.sqrt(spread))
    same = np.broadcast_to(noise.log_likelihoods(squares), logs[:1].shape)
    logs = np.concatenate([logs, same])
    weights = np.exp(logs - logs.max(axis=(0, 1)))
    chances = np.stack([_chances(squared, each, noise) for each in (*rest, squares)])
    found: Array = (weights * chances).sum(axis=(0, 1)) / weights.sum(axis=(0, 1))
    return found


def _chances(squared: Array, squares: Array, noise: NightNoise) -> Array:
    """Return probabilities without a change by kind and split, from squared differences and the squares for the variance."""
    ratios = np.sqrt(squared / noise.variances(squares))
    found: Array = np.exp(compute_log_probabilities(_normal(ratios, noise.degrees_of_freedom)))
    return found


def _normal(ratios: Array, degrees: float) -> Array:
    """Return a normal variable as significant as one of Student's (D. L. Wallace, Ann. Math. Statist. 30, 1959)."""
    found: Array = (8 * degrees + 1) / (8 * degrees + 3) * np.sqrt(degrees * np.log1p(ratios**2 / degrees))
    return found


def _forget_outlier(track: Track, noise: NightNoise) -> bool:
    """Return whether the last two changes were an outlier, and remove them if so.

    They were if the second one reverted the first: then there was no change, and the nights between do not count.
    """
    if len(track.begins) < 3 or track.begins[-1] - track.begins[-2] > REVERTED:
        return False
    before, after = track.get_stretch(-3)[-WINDOW:], track.get_stretch(-1)
    ratio = (after.mean() - _mean(before, noise)) / _compute_error(before, after, noise)
    if abs(ratio) > SAME:
        return False
    begin, end = track.begins[-2], track.begins[-1]
    gone = track.changes[-2]
    gone.is_reverted = True
    track.past.append(gone)
    del track.kept[begin:end], track.begins[-2:], track.changes[-2:]
    return True


def _mean(values: Array, noise: NightNoise) -> float:
    """Return the mean of clipped values, so that single bad nights count little."""
    return float(clip_nights(values, noise.scale).mean())


def _compute_error(before: Array, after: Array, noise: NightNoise) -> float:
    """Return the standard error of the difference of two means."""
    return float(noise.compute_errors(np.array([float(len(before))]), np.array([float(len(after))]))[0])


def _measure_last(track: Track, noise: NightNoise) -> None:
    """Measure the last change, and the one before it, of which the nights ended when the last one began."""
    for number in range(max(1, len(track.begins) - 2), len(track.begins)):
        _measure(track, number, noise)


def _measure(track: Track, number: int, noise: NightNoise) -> None:
    """Measure the change at the begin of a stretch: its size with an interval, and the nights between which it was."""
    change = track.changes[number - 1]
    first = next(index for index, each in enumerate(track.changes, 1) if each is change)  # of a continued drift
    change.first_bad, change.last_good = track.kept[track.begins[first]], track.kept[track.begins[first] - 1]
    before, after = track.get_stretch(first - 1)[-WINDOW:], track.get_stretch(number)[:WINDOW]
    _size(change, before, after, noise)
    change.kind = "drift" if first < number or _is_drift(before, after) else "step"


def _measure_crossing(change: RateChange, before: Array, after: Array, noise: NightNoise) -> None:
    """Measure the change across a break: its size and interval. It was none if the first nights after the break went wrong."""
    _size(change, before, after, noise)
    if len(after) <= REVERTED:
        change.is_reverted = change.low < 0 < change.high


def _size(change: RateChange, before: Array, after: Array, noise: NightNoise) -> None:
    from scipy.special import stdtrit

    change.size = _mean(after, noise) - _mean(before, noise)
    half = float(stdtrit(noise.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * _compute_error(before, after, noise)
    change.low, change.high = change.size - half, change.size + half


def _is_drift(before: Array, after: Array) -> bool:
    """Return whether a straight line from some night on leaves less of the scatter than a step.

    The few nights after a step that differ most from the others are left out: they may be the begin of the next step.
    """
    count = min(LEAST - 1, max(0, len(after) - LEAST))
    kept = np.sort(np.argsort(np.abs(after - np.median(after)))[: len(after) - count])
    nights = np.concatenate([np.arange(len(before)), len(before) + kept]).astype(float)
    after = after[kept]
    step = float(((before - before.mean()) ** 2).sum() + ((after - after.mean()) ** 2).sum())
    return _squares_of_hinge(np.concatenate([before, after]), nights) < BETTER * step


def _squares_of_hinge(values: Array, nights: Array) -> float:
    """Return the squares that remain for a level that becomes a straight line at the best night."""
    least = math.inf
    for begin in range(0, max(1, len(values) - 2 * LEAST), max(1, len(values) // 20)):
        line = np.maximum(0.0, nights - begin)
        line -= line.mean()
        rest = values - values.mean()
        rest = rest - line * float(line @ rest) / float(line @ line)
        least = min(least, float(rest @ rest))
    return least


def _join_drift(track: Track, noise: NightNoise) -> bool:
    """Return whether the last change continues the one before, which then is a drift."""
    if len(track.begins) < 3:
        return False
    last, one_before = track.changes[-1], track.changes[-2]
    if last.size * one_before.size <= 0 or track.begins[-1] - track.begins[-2] > DRIFT_JOINS:
        return False
    parts = [track.get_stretch(number)[-WINDOW:] for number in (-3, -2, -1)]
    steps = sum(float(((part - part.mean()) ** 2).sum()) for part in parts)
    values = np.concatenate(parts)
    if _squares_of_hinge(values, np.arange(len(values), dtype=float)) > steps / BETTER:
        return False
    track.changes[-1] = one_before
    _measure(track, len(track.begins) - 1, noise)
    return True
