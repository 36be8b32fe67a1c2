"""Tests of drifts of the speed within a run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verdicts import draw_correlated_steps
from pytest_dtfperf.stats.noise import FALSE_FLAGS, LEAST_STEPS, compute_drift
from tests import campaign

RUNS = 3000 if campaign.WHOLE else 1000
JUMP = np.where(np.arange(100) < 50, 1.0, 1.05)
RAMP = np.linspace(1, 1.1, 100)


def compute_flagged_share(resemblance: float, pattern: "np.ndarray | float" = 1.0, runs: int = RUNS, steps: int = 100) -> float:
    """Return the share of runs called unsteady, with steps that have a coefficient of variation of 2 %."""
    random = np.random.default_rng(7)
    step_s = 0.1 * np.exp(0.02 * draw_correlated_steps(random, runs, steps, resemblance)) * pattern
    found = [compute_drift(each) for each in step_s.tolist()]
    return float(np.mean([each is not None and each.is_more_than(0) for each in found]))


@pytest.mark.campaign
@pytest.mark.parametrize("steps", [LEAST_STEPS, 50, 100, 240])
@pytest.mark.parametrize("resemblance", [0.0, 0.5])
def test_steady_runs_are_not_flagged(resemblance: float, steps: int) -> None:
    """At most one steady run in a hundred is flagged, also if each step resembles the one before."""
    assert compute_flagged_share(resemblance, steps=steps) <= FALSE_FLAGS + 2 * (FALSE_FLAGS / RUNS) ** 0.5


@pytest.mark.campaign
@pytest.mark.parametrize("pattern", [JUMP, RAMP, 1 / JUMP, 1 / RAMP], ids=["jump down", "ramp down", "jump up", "ramp up"])
@pytest.mark.parametrize("resemblance, least", [(0.0, 0.98), (0.5, 0.85)])
def test_jumps_and_ramps_are_found(pattern: "np.ndarray", resemblance: float, least: float) -> None:
    """A jump of 5 % and a ramp of 10 % within 100 steps are found, in both directions."""
    assert compute_flagged_share(resemblance, pattern, runs=300) >= least


def test_change_is_that_of_the_rate() -> None:
    """Steps that take 5 % longer are a loss of 4.8 % of the rate."""
    found = compute_drift([0.1] * 60 + [0.105] * 60)
    assert found is not None
    assert found.change == pytest.approx(1 / 1.05 - 1)
    assert found.p_value < 1e-6
    assert found.is_more_than(0.04)
    assert not found.is_more_than(0.05)


@given(step_s=st.floats(1e-6, 1e3), steps=st.integers(LEAST_STEPS, 300))
def test_equal_steps_are_no_drift(step_s: float, steps: int) -> None:
    """Equal steps are no drift, with any rounding of their sums."""
    found = compute_drift([step_s] * steps)
    assert found is not None
    assert found.p_value == 1


def test_too_few_steps_have_no_drift() -> None:
    """Fewer steps than the least number have no drift."""
    assert compute_drift([0.1] * (LEAST_STEPS - 1)) is None


def test_steps_before_the_first_block_are_left_out() -> None:
    """One slow first step, which fills no block, does not count."""
    assert compute_drift([9.0, *[0.1] * 100]) == compute_drift([0.1] * 100)
