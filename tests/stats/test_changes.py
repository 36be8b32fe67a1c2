"""Steps and drifts in series of nights. benchmarks/changes.py measures the promised rates; a small part of that is here."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from pytest_dtfperf.stats.changes import ChangeWatch, RateChange, Track
from pytest_dtfperf.stats.nights import (
    ANCHOR,
    AROUND,
    CLIP,
    KINDS,
    TAILS,
    Array,
    Together,
    clip_nights,
    compute_differences,
    compute_log_probabilities,
    compute_scatter,
    compute_variance_of_difference,
    compute_variances,
    compute_variances_of_splits,
    estimate_scale,
    list_split_sizes,
    simulate_autoregression,
    simulate_threshold,
)

NOISE = 0.01
KNOWN = 60


def nights(seed: int, series: int, count: int, correlation: float = 0.0) -> Array:
    return NOISE * simulate_autoregression(np.random.default_rng(seed), series, count, correlation)


def watched(values: Array) -> tuple[ChangeWatch, list[RateChange]]:
    """All nights of all series (series, night), and what was confirmed."""
    watch, found = ChangeWatch(), list[RateChange]()
    for night in values.T:
        found += watch.night({str(number): float(value) for number, value in enumerate(night)}).values()
    return watch, found


def learned(values: Array) -> ChangeWatch:
    """What is known of nights that were not searched."""
    watch, count = ChangeWatch(), values.shape[1]
    watch.resume({str(n): Track(values=each.tolist(), kept=list(range(count))) for n, each in enumerate(values)})
    return watch


def error_of_months(watch: ChangeWatch, name: str) -> float:
    noise = watch.noise(name)
    assert noise
    return float(noise.errors(np.array([30.0]), np.array([30.0]))[0])


def step(size: float) -> Callable[[int], float]:
    return lambda night: math.log1p(size) if night >= 0 else 0.0


CHANGES = {
    "a loss of 3 %": (step(-0.03), "step", -0.03, 6),
    "a loss of 2 %": (step(-0.02), "step", -0.02, 12),
    "a gain of 4 %": (step(0.04), "step", 0.04, 6),
    "a drift of 5 % in 60 nights": (lambda night: -0.05 * min(1.0, max(0, night) / 60), "drift", -0.05, 60),
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
    values = nights(11, 4, 320)
    for begin in (90, 190, 290):
        values[0, begin:] -= 0.02
    watch, _ = watched(values)
    assert [round(change.first_bad, -1) for change in watch.tracks["0"].changes] == [90, 190, 290]
    assert [change.kind for change in watch.tracks["0"].changes] == ["step"] * 3


def test_a_step_after_a_step_leaves_the_first_as_it_was() -> None:
    """In each night after a second loss, the first one is still a step of its size, also while the second one is unknown."""
    values = 0.1 * nights(6, 3, KNOWN + 20)
    values[0, KNOWN:] -= 0.36
    values[0, KNOWN + 5 :] -= 1.36
    watch = ChangeWatch()
    for number, night in enumerate(values.T):
        watch.night({str(name): float(value) for name, value in enumerate(night)})
        changes = watch.tracks["0"].changes
        if number >= KNOWN + 4:
            assert [each.kind for each in changes] == ["step"] * len(changes), number
            assert changes[0].size == pytest.approx(-0.36, abs=0.02), number
    assert [each.size for each in changes] == pytest.approx([-0.36, -1.36], abs=0.02)
    assert [each.first_bad for each in changes] == [KNOWN, KNOWN + 5]


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


def _weekly(random: np.random.Generator) -> Array:
    return NOISE * random.standard_normal((12, 150)) + NOISE * np.isin(np.arange(150) % 7, [5, 6])


NOTHING: dict[str, Callable[[np.random.Generator], Array]] = {
    "independent": lambda random: NOISE * random.standard_normal((12, 150)),
    "heavy-tailed": lambda random: NOISE * random.standard_t(3, (12, 150)),
    "alike": lambda random: NOISE * simulate_autoregression(random, 12, 150, 0.6),
    "weekly": _weekly,
    "slow alone": lambda random: simulate_autoregression(random, 12, 150, 0.95) * 0.003,
    "slow part": lambda random: (
        simulate_autoregression(random, 12, 150, 0.95) * 0.003 + simulate_autoregression(random, 12, 150, 0.0) * NOISE
    ),
    "large slow part": lambda random: (
        simulate_autoregression(random, 12, 150, 0.95) * 0.005 + simulate_autoregression(random, 12, 150, 0.0) * NOISE
    ),
}


@pytest.mark.parametrize("nights_of", NOTHING.values(), ids=NOTHING)
def test_nothing_is_found_where_nothing_changes(nights_of: Callable[[np.random.Generator], Array]) -> None:
    """Twelve series without a change, of each kind of nights: nothing is found. The benchmark measures how seldom it is."""
    _, found = watched(nights_of(np.random.default_rng(8)))
    assert found == []


def test_what_is_known_of_the_noise_is_said() -> None:
    """With many series of many nights it is known how slowly rates wander; with one series or few nights it is not."""
    assert learned(nights(1, 24, 100)).knows_noise()
    assert not learned(nights(1, 24, 40)).knows_noise()
    assert not learned(nights(1, 1, 70)).knows_noise()
    assert not learned(nights(1, 24, 60) + 0.3 * nights(2, 24, 60, 0.95)).knows_noise()


def test_series_of_unlike_kinds_are_not_pooled() -> None:
    """Among 20 series of independent nights two that wander slowly have standard errors of their own, which are greater."""
    values = nights(2, 22, 120)
    values[:2] += 0.8 * nights(3, 2, 120, 0.95)
    watch = learned(values)
    errors = [error_of_months(watch, name) for name in watch.tracks]
    assert min(errors[:2]) > 1.5 * max(errors[2:])


def test_a_short_history_is_careful() -> None:
    """Of few nights the standard error of a difference of months is greater, in parts of a night's, than of many."""
    (short, few), (long, many) = [(learned(values), values) for values in (nights(6, 1, 20), nights(1, 24, 200))]
    assert error_of_months(short, "0") / few[0].std() > 1.3 * error_of_months(long, "0") / many[0].std()
    assert error_of_months(long, "0") == pytest.approx(NOISE * math.sqrt(2 / 30), rel=0.25)


def test_a_search_goes_on_where_it_was() -> None:
    """A search that stops and continues from its JSON finds the same as one that never stopped."""
    values = nights(5, 4, KNOWN + 30)
    values[1, KNOWN - 20 : KNOWN - 12] -= 0.06  # comes back
    values[2, KNOWN - 10 :] -= 0.04
    whole, _ = watched(values)
    before, _ = watched(values[:, :KNOWN])
    after = ChangeWatch()
    kept = {name: (track.to_json(), track.values) for name, track in before.tracks.items()}
    after.resume({name: Track.from_json(state, list(known)) for name, (state, known) in kept.items()})
    for night in values[:, KNOWN:].T:
        after.night({str(number): float(value) for number, value in enumerate(night)})
    assert {name: track.to_json() for name, track in after.tracks.items()} == {
        name: track.to_json() for name, track in whole.tracks.items()
    }


def test_series_that_end_and_begin() -> None:
    """Series need not have the same nights, nor many."""
    watch = ChangeWatch()
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


def test_single_bad_nights_change_no_noise() -> None:
    """Bad nights now and then leave scale and standard errors nearly as they are, and no night is beyond the clip."""
    plain, night = nights(22, 1, 300, 0.3)[0], np.arange(300)
    found = []
    for values in (plain, np.where(night % 50, plain, -0.5)):
        scale = estimate_scale([values])
        noise = Together([compute_scatter([values], scale)]).noise(compute_scatter([values], scale))
        assert scale == pytest.approx(NOISE * math.sqrt(0.7), rel=0.2)
        around = np.median(np.lib.stride_tricks.sliding_window_view(values, AROUND), axis=-1)
        assert np.abs(clip_nights(values, scale)[AROUND // 2 : -(AROUND // 2)] - around).max() <= CLIP * scale + 1e-12
        found.append(float(noise.errors(np.array([60.0]), np.array([20.0]))[0]))
    assert found[1] == pytest.approx(found[0], rel=0.25)


def test_many_series_share_what_they_show() -> None:
    """Twenty series of as many nights, equally noisy, know their noise better than one alone; unlike ones keep their own."""
    alike = [compute_scatter([series], NOISE) for series in nights(1, 20, 60)]
    assert Together(alike).noise(alike[0]).degrees_of_freedom > 2 * Together(alike[:1]).noise(alike[0]).degrees_of_freedom
    factors = [1, 5] * 10
    unlike = [compute_scatter([each * by], NOISE * by) for each, by in zip(nights(1, 20, 200), factors, strict=True)]
    weeks = np.array([7.0]), np.array([7.0])
    one, other = (float(Together(unlike).noise(unlike[number]).errors(*weeks)[0]) for number in (0, 1))
    assert other == pytest.approx(5 * one, rel=0.3)
    assert one == pytest.approx(NOISE * math.sqrt(2 / 7), rel=0.3)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.95])
def test_the_error_of_a_difference_is_as_stated(correlation: float) -> None:
    """The standard error of a difference of means, for nights that are alike, too, is what nights that are drawn show."""
    drawn = simulate_autoregression(np.random.default_rng(1), 20_000, 30, correlation)
    found = compute_differences(drawn, np.array([8]))[:, 0]
    assert found == pytest.approx(drawn[:, 22:].mean(axis=1) - drawn[:, :22].mean(axis=1))
    stated = float(compute_variance_of_difference(np.array([22.0]), np.array([8.0]), correlation)[0])
    assert found.var() == pytest.approx(stated, rel=0.05)
    kind = next(number for number, each in enumerate(KINDS) if each.slow in (0.0, 1.0) and each.correlation == correlation)
    assert compute_variances(np.array([22.0]), np.array([8.0]))[kind, 0] == pytest.approx(stated)
    assert compute_variances_of_splits(30)[kind, list_split_sizes(30).tolist().index(8)] == pytest.approx(stated)


@pytest.mark.parametrize("number", [0, 5, 18, 24, 36])
def test_the_stored_tails_are_those_of_the_simulation(number: int) -> None:
    """What is stored of a kind agrees with a smaller simulation of its own, and the tail with the part that exceeds it."""
    assert simulate_threshold(KINDS[number], series=1500, seed=5) == pytest.approx(TAILS[number], abs=0.3)
    ratios = np.full((len(KINDS), 1), TAILS[number])
    assert math.exp(float(compute_log_probabilities(ratios)[number, 0])) == pytest.approx(ANCHOR)


def test_where_a_step_began_stays_where_it_began() -> None:
    """Of a step of 3 % at a noise of 0.4 % most series name the first night, one at most another, and no later night moves it.

    A change is looked for at ever fewer splits the farther back they are; where it began is told among all of them.
    """
    random = np.random.default_rng(5)
    rates = random.normal(0, 0.004, (4, 120)) + np.where(np.arange(120) >= 55, math.log(0.97), 0.0)
    watch, begins = ChangeWatch(), list[list[int]]()
    for night in rates.T:
        watch.night({str(number): float(value) for number, value in enumerate(night)})
        begins.append([change.first_bad for track in watch.tracks.values() for change in track.changes])
    assert begins[65].count(55) >= 3
    assert begins[65:] == [begins[65]] * 55
    assert len(begins[65]) == 4
