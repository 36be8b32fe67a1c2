"""Tests of steps and drifts in series of nights. benchmarks/changes.py measures the promised rates; a small part is here."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.changes import simulate_autoregression, simulate_threshold
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
)
from tests import campaign

NOISE = 0.01
KNOWN = 60
UNCHANGED = 12 if campaign.WHOLE else 6  # series without a change


def simulate_nights(seed: int, series: int, count: int, correlation: float = 0.0) -> Array:
    return NOISE * simulate_autoregression(np.random.default_rng(seed), series, count, correlation)


def watch_nights(values: Array) -> tuple[ChangeWatch, list[RateChange]]:
    """Search all nights of all series (series, night), and return the watch with the changes that it confirmed."""
    watch, found = ChangeWatch(), list[RateChange]()
    for night in values.T:
        found += watch.add_night({str(number): float(value) for number, value in enumerate(night)}).values()
    return watch, found


def learn_nights(values: Array) -> ChangeWatch:
    """Return a watch that knows these nights without a search of them."""
    watch, count = ChangeWatch(), values.shape[1]
    watch.resume({str(n): Track(values=each.tolist(), kept=list(range(count))) for n, each in enumerate(values)})
    return watch


def compute_error_of_months(watch: ChangeWatch, name: str) -> float:
    noise = watch.get_noise(name)
    assert noise
    return float(noise.compute_errors(np.array([30.0]), np.array([30.0]))[0])


def make_step(size: float) -> Callable[[int], float]:
    return lambda night: math.log1p(size) if night >= 0 else 0.0


CHANGES = {
    "a loss of 3 %": (make_step(-0.03), "step", -0.03, 6),
    "a loss of 2 %": (make_step(-0.02), "step", -0.02, 12),
    "a gain of 4 %": (make_step(0.04), "step", 0.04, 6),
    "a drift of 5 % in 60 nights": (lambda night: -0.05 * min(1.0, max(0, night) / 60), "drift", -0.05, 60),
}


@pytest.mark.parametrize("track, kind, size, within", CHANGES.values(), ids=CHANGES)
def test_change_of_one_series_is_found(track: Callable[[int], float], kind: str, size: float, within: int) -> None:
    """A change of one series of eight is found in time, in this one alone, with its size, kind and begin."""
    values = simulate_nights(5, 8, KNOWN + 70)
    values[3] += [track(night - KNOWN) for night in range(values.shape[1])]
    watch, found = watch_nights(values)
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


def test_three_steps_of_a_year_are_found() -> None:
    """Three losses of 2 %, a hundred nights apart, are three steps."""
    values = simulate_nights(11, 4, 320)
    for begin in (90, 190, 290):
        values[0, begin:] -= 0.02
    watch, _ = watch_nights(values)
    assert [round(change.first_bad, -1) for change in watch.tracks["0"].changes] == [90, 190, 290]
    assert [change.kind for change in watch.tracks["0"].changes] == ["step"] * 3


def test_second_step_does_not_change_the_first() -> None:
    """In each night after a second loss the first one is still a step of its size, also before the second one is found."""
    values = 0.1 * simulate_nights(6, 3, KNOWN + 20)
    values[0, KNOWN:] -= 0.36
    values[0, KNOWN + 5 :] -= 1.36
    watch = ChangeWatch()
    for number, night in enumerate(values.T):
        watch.add_night({str(name): float(value) for name, value in enumerate(night)})
        changes = watch.tracks["0"].changes
        if number >= KNOWN + 4:
            assert [each.kind for each in changes] == ["step"] * len(changes), number
            assert changes[0].size == pytest.approx(-0.36, abs=0.02), number
    assert [each.size for each in changes] == pytest.approx([-0.36, -1.36], abs=0.02)
    assert [each.first_bad for each in changes] == [KNOWN, KNOWN + 5]


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_few_bad_nights_are_no_change(bad: int) -> None:
    """Up to three successive nights with a loss of 30 % are no change."""
    values = simulate_nights(3, 4, KNOWN + 20)
    values[1, KNOWN : KNOWN + bad] -= 0.3
    assert watch_nights(values)[1] == []


def test_loss_that_comes_back_is_reverted() -> None:
    """A loss of eight nights is found and then reverted, and these nights are not kept."""
    values = simulate_nights(4, 4, KNOWN + 40)
    values[0, KNOWN : KNOWN + 8] -= 0.05
    watch, found = watch_nights(values)
    track = watch.tracks["0"]
    assert len(found) == 1
    assert found[0].is_reverted
    assert track.changes == []
    assert track.past == found
    assert abs(len(track.values) - len(track.kept) - 8) <= 1


def _draw_weekly_nights(random: np.random.Generator) -> Array:
    return NOISE * random.standard_normal((UNCHANGED, 150)) + NOISE * np.isin(np.arange(150) % 7, [5, 6])


NOTHING: dict[str, Callable[[np.random.Generator], Array]] = {
    "independent": lambda random: NOISE * random.standard_normal((UNCHANGED, 150)),
    "heavy-tailed": lambda random: NOISE * random.standard_t(3, (UNCHANGED, 150)),
    "alike": lambda random: NOISE * simulate_autoregression(random, UNCHANGED, 150, 0.6),
    "weekly": _draw_weekly_nights,
    "slow alone": lambda random: simulate_autoregression(random, UNCHANGED, 150, 0.95) * 0.003,
    "slow part": lambda random: (
        simulate_autoregression(random, UNCHANGED, 150, 0.95) * 0.003
        + simulate_autoregression(random, UNCHANGED, 150, 0.0) * NOISE
    ),
    "large slow part": lambda random: (
        simulate_autoregression(random, UNCHANGED, 150, 0.95) * 0.005
        + simulate_autoregression(random, UNCHANGED, 150, 0.0) * NOISE
    ),
}


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("nights_of", NOTHING.values(), ids=NOTHING)
def test_series_without_a_change_have_none(nights_of: Callable[[np.random.Generator], Array]) -> None:
    """Series without a change have none, for each kind of nights. The benchmark measures the rate of errors."""
    _, found = watch_nights(nights_of(np.random.default_rng(8)))
    assert found == []


def test_noise_is_known_from_many_series_and_nights() -> None:
    """The noise is known from many series of many nights, and not from one series, few nights, or rates that wander slowly."""
    assert learn_nights(simulate_nights(1, 24, 100)).is_noise_known()
    assert not learn_nights(simulate_nights(1, 24, 40)).is_noise_known()
    assert not learn_nights(simulate_nights(1, 1, 70)).is_noise_known()
    assert not learn_nights(simulate_nights(1, 24, 60) + 0.3 * simulate_nights(2, 24, 60, 0.95)).is_noise_known()


def test_series_of_other_kinds_are_not_pooled() -> None:
    """Two series that wander slowly have larger standard errors than 20 series of independent nights beside them."""
    values = simulate_nights(2, 22, 120)
    values[:2] += 0.8 * simulate_nights(3, 2, 120, 0.95)
    watch = learn_nights(values)
    errors = [compute_error_of_months(watch, name) for name in watch.tracks]
    assert min(errors[:2]) > 1.5 * max(errors[2:])


def test_short_history_has_a_larger_error() -> None:
    """The standard error of a difference of months, in units of a night's scatter, is larger with few nights than with many."""
    (short, few), (long, many) = [
        (learn_nights(values), values) for values in (simulate_nights(6, 1, 20), simulate_nights(1, 24, 200))
    ]
    assert compute_error_of_months(short, "0") / few[0].std() > 1.3 * compute_error_of_months(long, "0") / many[0].std()
    assert compute_error_of_months(long, "0") == pytest.approx(NOISE * math.sqrt(2 / 30), rel=0.25)


def test_search_resumes_from_json() -> None:
    """A search that stops and continues from its JSON ends in the same state as one that did not stop."""
    values = simulate_nights(5, 4, KNOWN + 30)
    values[1, KNOWN - 20 : KNOWN - 12] -= 0.06  # comes back
    values[2, KNOWN - 10 :] -= 0.04
    whole, _ = watch_nights(values)
    before, _ = watch_nights(values[:, :KNOWN])
    after = ChangeWatch()
    kept = {name: (track.to_json(), track.values) for name, track in before.tracks.items()}
    after.resume({name: Track.from_json(state, list(known)) for name, (state, known) in kept.items()})
    for night in values[:, KNOWN:].T:
        after.add_night({str(number): float(value) for number, value in enumerate(night)})
    assert {name: track.to_json() for name, track in after.tracks.items()} == {
        name: track.to_json() for name, track in whole.tracks.items()
    }


def test_series_may_have_different_nights() -> None:
    """A series that ends and a series that begins have their own nights, and no change."""
    watch = ChangeWatch()
    values = simulate_nights(2, 2, 40)
    for night in range(40):
        rates = {"old": float(values[0, night])} if night < 20 else {"new": float(values[1, night])}
        assert watch.add_night(rates) == {}
    assert {name: len(track.values) for name, track in watch.tracks.items()} == {"old": 20, "new": 20}


def test_change_of_equal_rates_is_found() -> None:
    """A change among series of otherwise equal rates is found, without a division by zero."""
    values = np.zeros((4, 70))
    values[0, 60:] = -0.01
    _, found = watch_nights(values)
    assert len(found) == 1


def test_single_bad_nights_do_not_change_the_noise() -> None:
    """Single bad nights leave scale and standard errors nearly unchanged, and are clipped."""
    plain, night = simulate_nights(22, 1, 300, 0.3)[0], np.arange(300)
    found = []
    for values in (plain, np.where(night % 50, plain, -0.5)):
        scale = estimate_scale([values])
        noise = Together([compute_scatter([values], scale)]).get_noise(compute_scatter([values], scale))
        assert scale == pytest.approx(NOISE * math.sqrt(0.7), rel=0.2)
        around = np.median(np.lib.stride_tricks.sliding_window_view(values, AROUND), axis=-1)
        assert np.abs(clip_nights(values, scale)[AROUND // 2 : -(AROUND // 2)] - around).max() <= CLIP * scale + 1e-12
        found.append(float(noise.compute_errors(np.array([60.0]), np.array([20.0]))[0]))
    assert found[1] == pytest.approx(found[0], rel=0.25)


def test_series_of_equal_noise_are_pooled() -> None:
    """Twenty series of equal noise have more degrees of freedom than one, and series of different noise keep their own
    errors."""
    alike = [compute_scatter([series], NOISE) for series in simulate_nights(1, 20, 60)]
    assert (
        Together(alike).get_noise(alike[0]).degrees_of_freedom > 2 * Together(alike[:1]).get_noise(alike[0]).degrees_of_freedom
    )
    factors = [1, 5] * 10
    unlike = [compute_scatter([each * by], NOISE * by) for each, by in zip(simulate_nights(1, 20, 200), factors, strict=True)]
    weeks = np.array([7.0]), np.array([7.0])
    one, other = (float(Together(unlike).get_noise(unlike[number]).compute_errors(*weeks)[0]) for number in (0, 1))
    assert other == pytest.approx(5 * one, rel=0.3)
    assert one == pytest.approx(NOISE * math.sqrt(2 / 7), rel=0.3)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.95])
def test_error_of_a_difference_is_that_of_drawn_nights(correlation: float) -> None:
    """The standard error of a difference of means is that of drawn nights, with and without correlation."""
    drawn = simulate_autoregression(np.random.default_rng(1), 20_000, 30, correlation)
    found = compute_differences(drawn, np.array([8]))[:, 0]
    assert found == pytest.approx(drawn[:, 22:].mean(axis=1) - drawn[:, :22].mean(axis=1))
    stated = float(compute_variance_of_difference(np.array([22.0]), np.array([8.0]), correlation)[0])
    assert found.var() == pytest.approx(stated, rel=0.05)
    kind = next(number for number, each in enumerate(KINDS) if each.slow in (0.0, 1.0) and each.correlation == correlation)
    assert compute_variances(np.array([22.0]), np.array([8.0]))[kind, 0] == pytest.approx(stated)
    assert compute_variances_of_splits(30)[kind, list_split_sizes(30).tolist().index(8)] == pytest.approx(stated)


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("number", [0, 5, 18, 24, 36])
def test_stored_tails_are_those_of_a_simulation(number: int) -> None:
    """The stored tail of a kind is that of a smaller simulation, and has its stated probability."""
    assert simulate_threshold(KINDS[number], series=1500, seed=5) == pytest.approx(TAILS[number], abs=0.3)
    ratios = np.full((len(KINDS), 1), TAILS[number])
    assert math.exp(float(compute_log_probabilities(ratios)[number, 0])) == pytest.approx(ANCHOR)


def test_begin_of_a_step_does_not_move() -> None:
    """Most of four series with a step name its first night as the begin, and no later night changes any of the four.

    The search for a change tries fewer splits the farther back they are, and the search for its begin tries all of them.
    """
    random = np.random.default_rng(5)
    rates = random.normal(0, 0.004, (4, 120)) + np.where(np.arange(120) >= 55, math.log(0.97), 0.0)
    watch, begins = ChangeWatch(), list[list[int]]()
    for night in rates.T:
        watch.add_night({str(number): float(value) for number, value in enumerate(night)})
        begins.append([change.first_bad for track in watch.tracks.values() for change in track.changes])
    assert begins[65].count(55) >= 3
    assert begins[65:] == [begins[65]] * 55
    assert len(begins[65]) == 4
