"""Tests of noise that is estimated from rates."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_dtfperf.stats.noise import (
    Noise,
    compute_correlation,
    do_sessions_differ,
    estimate_variance_components,
    pool_spreads,
)

# Yield of dyestuff, g: six batches of five. O. L. Davies and P. L. Goldsmith, Statistical Methods in Research and Production,
# 1972, table 6.1; the variance components are 1764 and 2451.
DYESTUFF = [
    [1545, 1440, 1440, 1520, 1580],
    [1540, 1555, 1490, 1560, 1495],
    [1595, 1550, 1605, 1510, 1560],
    [1445, 1440, 1595, 1465, 1545],
    [1595, 1630, 1515, 1635, 1625],
    [1520, 1455, 1450, 1480, 1445],
]
# Calcium in turnip greens, %: four leaves, four determinations each. G. W. Snedecor and W. G. Cochran, Statistical Methods,
# 1967, section 10.13; the mean squares are 0.2961 and 0.0066, the component of leaves is 0.0724.
CALCIUM = [[3.28, 3.09, 3.03, 3.03], [3.52, 3.48, 3.38, 3.38], [2.88, 2.80, 2.81, 2.76], [3.34, 3.38, 3.23, 3.26]]
RATES = st.lists(st.lists(st.integers(1000, 9999).map(float), min_size=2, max_size=5), min_size=2, max_size=5)


@pytest.mark.parametrize(
    "values, unit, run, session, degrees_of_freedom, digits",
    [(DYESTUFF, 1000, 2451e-6, 1764e-6, 24, 1e-3), (CALCIUM, 1, 0.0066, 0.0724, 12, 5e-3)],
    ids=["dyestuff", "calcium in leaves"],
)
def test_variance_components_are_those_of_textbooks(
    values: list[list[float]], unit: float, run: float, session: float, degrees_of_freedom: float, digits: float
) -> None:
    """Both variances of textbook tables, as logarithms of rates, are those in the textbooks."""
    noise = estimate_variance_components([[math.exp(each / unit) for each in group] for group in values])
    assert noise.run**2 == pytest.approx(run, rel=digits)
    assert noise.session**2 == pytest.approx(session, rel=digits)
    assert noise.degrees_of_freedom == degrees_of_freedom


def test_variances_of_unequal_sessions_are_right_on_average() -> None:
    """With sessions of different sizes both variances are right on average."""
    random = np.random.default_rng(1)
    sizes, found = (2, 3, 5, 8, 1), []
    for _ in range(3000):
        sessions = [np.exp(random.normal(random.normal(0, 0.03), 0.02, size)).tolist() for size in sizes]
        found.append(estimate_variance_components(sessions))
    assert found[0].degrees_of_freedom == sum(sizes) - len(sizes)
    assert np.mean([each.run**2 for each in found]) == pytest.approx(0.02**2, rel=0.03)
    assert np.mean([each.session**2 for each in found]) == pytest.approx(0.03**2, rel=0.06)


def test_sessions_of_close_means_do_not_differ() -> None:
    """The variance between sessions is zero if their means are closer than by chance."""
    assert estimate_variance_components([[100.0, 102.0], [102.0, 100.0], [101.0, 101.01]]).session == 0


@given(sessions=RATES, unit=st.floats(0.01, 100))
def test_units_and_order_do_not_change_the_noise(sessions: list[list[float]], unit: float) -> None:
    """Noise is the same in other units, and in another order of sessions and runs."""
    assume(any(len(set(group)) > 1 for group in sessions))
    noise = estimate_variance_components(sessions)
    again = estimate_variance_components([[unit * rate for rate in reversed(group)] for group in reversed(sessions)])
    assert again.run == pytest.approx(noise.run, rel=1e-6, abs=1e-9)
    assert again.session == pytest.approx(noise.session, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "sessions, words",
    [
        ([], "0 runs in 0 sessions are too few for noise"),
        ([[1.0, 1.1, 1.2]], "3 runs in 1 sessions are too few for noise: there must be at least 2 sessions"),
        ([[1.0], [1.1], []], "2 runs in 2 sessions are too few for noise"),
        ([[1.0, 1.0], [2.0, 2.0]], "the very same rate: that is no measurement"),
    ],
    ids=["nothing", "one session", "single runs", "copies"],
)
def test_too_few_runs_have_no_noise(sessions: list[list[float]], words: str) -> None:
    """Too few sessions or runs, and copies of runs, are refused with the reason."""
    with pytest.raises(ValueError, match=words):
        estimate_variance_components(sessions)


@pytest.mark.parametrize(
    "noise", [{"run": 0.0}, {"run": -0.01}, {"run": 0.01, "degrees_of_freedom": -1}, {"run": 0.01, "session": -0.1}]
)
def test_negative_noise_is_refused(noise: dict[str, float]) -> None:
    """Noise with a value that is negative, or zero between runs, is refused."""
    with pytest.raises(ValueError, match="noise is positive"):
        Noise(**noise)


def test_pooled_spread_counts_degrees_of_freedom() -> None:
    """The spread is the root of the pooled variance of the runs and of the known noise, by their degrees of freedom."""
    groups = [[math.exp(each) for each in group] for group in ([0.0, 0.2], [1.0, 1.0, 1.3])]  # squares: 0.02 and 0.06
    spread, degrees_of_freedom = pool_spreads(groups, Noise(run=0.1, degrees_of_freedom=5))
    assert degrees_of_freedom == 8
    assert spread == pytest.approx(math.sqrt((0.02 + 0.06 + 5 * 0.01) / 8))


def test_spread_is_not_below_the_known_noise() -> None:
    """The spread of equal runs is the known noise."""
    assert pool_spreads([[100.0, 100.0, 100.0]], Noise(run=0.01)) == (0.01, 2)
    assert pool_spreads([[100.0]], Noise(run=0.01)) == (0.01, 0)


def simulate_sessions(random: np.random.Generator, sessions: int, runs: int, resemblance: float) -> list[list[float]]:
    """Return sessions of runs with a CV of 1 %, each of which resembles the one before."""
    found = []
    for _ in range(sessions):
        values = [random.normal()]
        for _ in range(runs - 1):
            values.append(resemblance * values[-1] + math.sqrt(1 - resemblance**2) * random.normal())
        found.append([100 * math.exp(0.01 * value) for value in values])
    return found


def test_correlation_of_runs_is_found() -> None:
    """A correlation is found in nearly all cases with a correlation of 0.7, and in hardly any case of independent runs."""
    random = np.random.default_rng(3)
    independent, alike = ([compute_correlation(simulate_sessions(random, 10, 10, by)) for _ in range(40)] for by in (0.0, 0.7))
    assert sum(each is not None for each in independent) <= 3
    seen = [each for each in alike if each is not None]
    assert len(seen) >= 37
    assert 0.4 < statistics.fmean(seen) < 0.9


def test_sessions_of_other_speed_differ() -> None:
    """Sessions with all runs slower by 10 % differ from the others, and sessions of equal runs do not."""
    random = np.random.default_rng(4)
    same = simulate_sessions(random, 6, 4, 0.0)
    assert not do_sessions_differ(same)
    assert do_sessions_differ([[rate * (0.9 if i % 2 else 1.0) for rate in rates] for i, rates in enumerate(same)])
    assert compute_correlation(same) is None


@pytest.mark.parametrize("sessions", [[[100.0, 101.0]], [[100.0], [101.0]], [[100.0] * 4, [100.0] * 4], []], ids=str)
def test_too_few_runs_show_no_correlation(sessions: list[list[float]]) -> None:
    """One session, single runs or equal runs show no correlation, and no difference between sessions."""
    assert compute_correlation(sessions) is None
    assert do_sessions_differ(sessions) is False
