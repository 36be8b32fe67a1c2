"""Steps and drifts in series of nights. benchmarks/changes.py measures the promised rates; a small part of that is here."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from pytest_dtfperf.stats.changes import Change, Track, Watch, simulated_as
from pytest_dtfperf.stats.nights import CLIP, Together, clipped, rough_scale, scatter
from pytest_dtfperf.stats.scan import ANCHOR, Array, Tail, autoregressive, ratios, simulated, variance_of_difference

NOISE = 0.01
KNOWN = 60


def nights(seed: int, series: int, count: int, correlation: float = 0.0) -> Array:
    return NOISE * autoregressive(np.random.default_rng(seed), series, count, correlation)


def watched(values: Array) -> tuple[Watch, list[Change]]:
    """All nights of all series (series, night), and what was confirmed."""
    watch, found = Watch(), list[Change]()
    for night in values.T:
        found += watch.night({str(number): float(value) for number, value in enumerate(night)}).values()
    return watch, found


def step(size: float) -> Callable[[int], float]:
    return lambda night: math.log1p(size) if night >= 0 else 0.0


CHANGES = {
    "a loss of 3 %": (step(-0.03), "step", -0.03, 6),
    "a loss of 2 %": (step(-0.02), "step", -0.02, 12),
    "a gain of 4 %": (step(0.04), "step", 0.04, 6),
    "a drift of 5 % in 60 nights": (lambda night: -0.05 * min(1.0, max(0, night) / 60), "drift", -0.05, 45),
}


@pytest.mark.parametrize("track, kind, size, within", CHANGES.values(), ids=CHANGES)
def test_changes_are_found(track: Callable[[int], float], kind: str, size: float, within: int) -> None:
    """One series of eight changes: it is found in time, in that one alone, with size, kind, and about when it began."""
    values = nights(5, 8, KNOWN + 70)
    values[3] += [track(night - KNOWN) for night in range(values.shape[1])]
    watch, found = watched(values)
    assert found
    assert found[0].found - KNOWN < within
    assert watch.tracks["3"].changes[0] is found[0]
    assert [name for name, each in watch.tracks.items() if each.changes] == ["3"]
    (change,) = {id(each): each for each in watch.tracks["3"].changes}.values()
    assert change.kind == kind
    assert change.size == pytest.approx(size, abs=0.012)
    assert change.low < change.size < change.high
    if kind == "step":
        assert abs(change.first_bad - KNOWN) <= 4
        assert change.last_good == change.first_bad - 1


def test_three_steps_of_a_year_are_each_found() -> None:
    """Three losses of 2 %, a hundred nights apart, are three changes."""
    values = nights(11, 8, 365)
    for begin in (90, 190, 290):
        values[0, begin:] -= 0.02
    watch, _ = watched(values)
    assert [round(change.first_bad, -1) for change in watch.tracks["0"].changes] == [90, 190, 290]
    assert [change.kind for change in watch.tracks["0"].changes] == ["step"] * 3


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_a_few_bad_nights_are_no_change(bad: int) -> None:
    """Up to three nights that lose 30 % are nothing, even one after the other."""
    values = nights(3, 4, KNOWN + 20)
    values[1, KNOWN : KNOWN + bad] -= 0.3
    assert watched(values)[1] == []


def test_what_comes_back_was_no_change() -> None:
    """A loss of eight nights is found, and turns out to be none when the rate is as it was; these nights count no more."""
    values = nights(4, 4, KNOWN + 40)
    values[0, KNOWN : KNOWN + 8] -= 0.05
    watch, found = watched(values)
    track = watch.tracks["0"]
    assert len(found) == 1
    assert found[0].is_reverted
    assert track.changes == []
    assert track.past == found
    assert abs(len(track.values) - len(track.kept) - 8) <= 1


@pytest.mark.parametrize("kind", ["independent", "heavy-tailed", "correlated"])
def test_nothing_is_found_where_nothing_changes(kind: str) -> None:
    """Twelve series without a change: once 60 nights are known, nothing is found. The benchmark measures how seldom it is."""
    random = np.random.default_rng(8)
    values = nights(8, 12, 150, 0.3 * (kind == "correlated"))
    if kind == "heavy-tailed":
        values = NOISE * random.standard_t(3, (12, 150))
    watch, found = watched(values)
    assert [change for change in found if change.found >= KNOWN] == []
    assert watch.together
    assert watch.together.correlation == pytest.approx(0.3 if kind == "correlated" else 0.0, abs=0.07)


def test_what_is_known_of_the_correlation_is_said() -> None:
    """With many series of 60 nights it is known how alike neighbours are; with one series, or a few nights, it is not."""
    assert watched(nights(1, 8, 70))[0].knows_correlation()
    assert not watched(nights(1, 8, 40))[0].knows_correlation()
    assert not watched(nights(1, 1, 70))[0].knows_correlation()


def test_a_search_goes_on_where_it_was() -> None:
    """Who stops and goes on with what was written down finds the same as who never stopped."""
    values = nights(5, 4, KNOWN + 30)
    values[1, KNOWN - 20 : KNOWN - 12] -= 0.06  # comes back
    values[2, KNOWN - 10 :] -= 0.04
    whole, _ = watched(values)
    before, _ = watched(values[:, :KNOWN])
    after = Watch()
    kept = {name: (track.to_json(), track.values) for name, track in before.tracks.items()}
    after.resume({name: Track.from_json(state, list(known)) for name, (state, known) in kept.items()})
    for night in values[:, KNOWN:].T:
        after.night({str(number): float(value) for number, value in enumerate(night)})
    assert {name: track.to_json() for name, track in after.tracks.items()} == {
        name: track.to_json() for name, track in whole.tracks.items()
    }


def test_series_that_end_and_begin() -> None:
    """Series need not have the same nights, nor many."""
    watch = Watch()
    values = nights(2, 2, 40)
    for night in range(40):
        rates = {"old": float(values[0, night])} if night < 20 else {"new": float(values[1, night])}
        assert watch.night(rates) == {}
    assert {name: len(track.values) for name, track in watch.tracks.items()} == {"old": 20, "new": 20}


def test_rates_that_are_the_same_to_the_last_digit() -> None:
    """Rates that never differ, as made-up ones do, divide nothing by zero, and a change among them is found."""
    values = np.zeros((4, 70))
    values[0, 60:] = -0.01
    _, found = watched(values)
    assert len(found) == 1


def test_noise_is_estimated_whatever_changes() -> None:
    """A step and a drift leave scale, variance and correlation nearly as they are, and so do single bad nights."""
    plain, night = nights(21, 1, 2000, 0.3)[0], np.arange(2000)
    for disturbed in (plain, plain - 0.02 * (night > 1900), plain - 0.00001 * night, np.where(night % 50, plain, -0.5)):
        scale = rough_scale([disturbed])
        noise = Together([scatter([disturbed], scale)]).noise(scatter([disturbed], scale))
        assert scale == pytest.approx(NOISE * math.sqrt(0.7), rel=0.15)
        assert noise.deviation == pytest.approx(NOISE, rel=0.15)
        assert noise.correlation == pytest.approx(0.3, abs=0.13)
        assert np.abs(clipped(disturbed, scale)).max() <= CLIP * scale + 1e-12


def test_many_series_share_what_they_show() -> None:
    """Twenty series of as many nights, equally noisy, know their noise better than one alone; unlike ones keep their own."""
    alike = [scatter([series], NOISE) for series in nights(1, 20, 60)]
    assert Together(alike).noise(alike[0]).degrees_of_freedom > 5 * Together(alike[:1]).noise(alike[0]).degrees_of_freedom
    factors = [1, 5] * 10
    unlike = [scatter([each * by], NOISE * by) for each, by in zip(nights(1, 20, 200), factors, strict=True)]
    assert Together(unlike).noise(unlike[1]).deviation == pytest.approx(5 * NOISE, rel=0.2)
    assert Together(unlike).noise(unlike[0]).deviation == pytest.approx(NOISE, rel=0.2)


@pytest.mark.parametrize("correlation", [0.0, 0.3])
def test_the_error_of_a_difference_is_as_stated(correlation: float) -> None:
    """The standard error of a difference of means, for nights that are alike, too, is what nights that are drawn show."""
    drawn = autoregressive(np.random.default_rng(1), 20_000, 30, correlation)
    differences = drawn[:, 22:].mean(axis=1) - drawn[:, :22].mean(axis=1)
    stated = float(variance_of_difference(np.array([22.0]), np.array([8.0]), correlation)[0])
    assert differences.var() == pytest.approx(stated, rel=0.05)
    after, found = ratios(drawn[:, :], correlation)
    assert found[:, after.tolist().index(8)].std() == pytest.approx(1.0, rel=0.05)


def test_critical_values_follow_the_simulation() -> None:
    """What a rarer level asks for agrees with a simulation of its own, and is never less; the same seed is the same number."""
    tail = simulated(30, 0.0, series=4000)
    assert tail == simulated(30, 0.0, series=4000)
    assert tail.critical(ANCHOR) == pytest.approx(tail.anchor, abs=0.01)
    assert Tail(4.22).critical(0.05) == pytest.approx(3.79, abs=0.02)
    assert Tail(4.22).critical(0.05 / 24) > 4.5
    assert [simulated_as(each) for each in (-0.1, 0.0, 0.29, 0.3, 0.99)] == [0.0, 0.0, 0.2, 0.3, 0.8]


def test_where_a_step_began_stays_where_it_began() -> None:
    """Of a step of 3 % at a noise of 0.4 % most series name the first night, one at most another, and no later night moves it.

    A change is looked for at ever fewer splits the farther back they are; where it began is told among all of them.
    """
    random = np.random.default_rng(5)
    rates = random.normal(0, 0.004, (4, 120)) + np.where(np.arange(120) >= 55, math.log(0.97), 0.0)
    watch, begins = Watch(), list[list[int]]()
    for night in rates.T:
        watch.night({str(number): float(value) for number, value in enumerate(night)})
        begins.append([change.first_bad for track in watch.tracks.values() for change in track.changes])
    assert begins[65].count(55) >= 3
    assert begins[65:] == [begins[65]] * 55
    assert len(begins[65]) == 4
