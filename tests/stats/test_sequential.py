"""Tests of critical values, against published ones, by simulation, and of their properties."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from pytest_dtfperf.stats.sequential import compute_critical_values, compute_spent_error

SEED = 6


@pytest.mark.parametrize(
    "information, level, gamma, published",
    [
        pytest.param((1, 2, 3, 4, 5), 0.025, -4.0, (3.2527, 2.9860, 2.6917, 2.3737, 2.0253), id="gsDesign, five looks"),
        pytest.param((0.2, 0.4, 1.0), 0.03, 0.0, (2.5121443, 2.4228747, 2.0280392), id="rpact, uneven looks"),
        pytest.param((1, 2, 3, 4), 0.07, -1.0, (2.2710911, 2.0692301, 1.8645608, 1.6606881), id="rpact, four looks"),
    ],
)
def test_critical_values_are_the_published_ones(
    information: tuple[float, ...], level: float, gamma: float, published: tuple[float, ...]
) -> None:
    """Critical values are those of gsDesign (sfHSD) and of rpact's own tests (asHSD)."""
    assert compute_critical_values(information, level, gamma) == pytest.approx(
        published, abs=5e-5 if len(published) == 5 else 1e-6
    )


def test_single_analysis_has_the_usual_value() -> None:
    """A single analysis has the critical value of a usual test."""
    assert compute_critical_values((3.0,), 0.05, 4.0) == pytest.approx([-ndtri(0.05)])


@pytest.mark.parametrize("gamma", [-4.0, -2.0, 0.0, 4.0])
@pytest.mark.parametrize("information", [tuple(range(1, 11)), tuple(1 / (1 / k + 1 / 5 + 2) for k in range(1, 11))])
def test_repeated_analyses_keep_the_error_rate(information: tuple[float, ...], gamma: float) -> None:
    """Without an effect, sums of normal steps exceed the critical values up to each analysis as often as the spent error."""
    level, cases = 0.05, 100_000
    random = np.random.default_rng(SEED)
    steps = random.normal(size=(cases, len(information))) * np.sqrt(np.diff([0.0, *information]))
    crossed = steps.cumsum(axis=1) / np.sqrt(information) > compute_critical_values(information, level, gamma)
    for analysis, each in enumerate(information):
        expected = level * compute_spent_error(each / information[-1], gamma)
        found = crossed[:, : analysis + 1].any(axis=1).mean()
        assert found == pytest.approx(expected, abs=4 * math.sqrt(expected / cases))


@given(
    steps=st.lists(st.floats(1e-4, 10), min_size=1, max_size=8),
    level=st.floats(1e-4, 0.2),
    gamma=st.floats(-4, 4).map(lambda gamma: round(gamma, 3)),
    unit=st.floats(0.01, 100),
)
def test_units_and_later_analyses_do_not_change_values(steps: list[float], level: float, gamma: float, unit: float) -> None:
    """The values depend on fractions of the information only, and the first ones do not depend on later analyses."""
    information = tuple(float(each) for each in np.cumsum(steps))
    found = compute_critical_values(information, level, gamma)
    assert compute_critical_values(tuple(each * unit for each in information), level, gamma) == pytest.approx(found, abs=1e-5)
    half = len(steps) // 2 + 1
    assert compute_critical_values(information[:half], level, gamma, information[-1]) == pytest.approx(found[:half], abs=1e-5)


@given(level=st.floats(1e-4, 0.1), factor=st.floats(1.1, 2))
def test_larger_error_gives_smaller_values(level: float, factor: float) -> None:
    """A larger error gives smaller critical values, and none is below that of a single analysis at the same level."""
    information = (1.0, 2.0, 3.0)
    strict, lax = compute_critical_values(information, level, 2.0), compute_critical_values(information, level * factor, 2.0)
    assert all(one > other for one, other in zip(strict, lax, strict=True))
    assert min(strict) > -ndtri(level)


@given(gamma=st.floats(-8, 8))
def test_spent_error_grows_from_nothing_to_all(gamma: float) -> None:
    """Each gamma spends no error at the start and all at the end, and a larger gamma spends it earlier."""
    assert compute_spent_error(0, gamma) == 0
    assert compute_spent_error(1, gamma) == pytest.approx(1)
    assert compute_spent_error(0.5, gamma) <= compute_spent_error(0.5, gamma + 0.5)


@pytest.mark.parametrize(
    "information, level, total, words",
    [
        ((), 0.05, None, "must be positive and grow"),
        ((0.0, 1.0), 0.05, None, "must be positive and grow"),
        ((2.0, 1.0), 0.05, None, "must be positive and grow"),
        ((1.0, 2.0), 0.05, 1.5, "cannot be more information than in total: 2.0 of 1.5"),
        ((1.0,), 0.0, None, "between 0 and 1, not 0.0"),
        ((1.0,), 1.0, None, "between 0 and 1, not 1.0"),
    ],
    ids=["no look", "nothing known", "less and less", "more than all", "no errors", "errors only"],
)
def test_invalid_analyses_are_refused(information: tuple[float, ...], level: float, total: float | None, words: str) -> None:
    """Analyses without growing information, and levels outside of 0 to 1, are refused with the reason."""
    with pytest.raises(ValueError, match=words):
        compute_critical_values(information, level, 1.0, total)
