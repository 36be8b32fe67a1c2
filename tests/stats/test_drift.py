"""Whether a run kept its speed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.verdicts import resembling
from pytest_dtfperf.stats.noise import FALSE_FLAGS, LEAST_STEPS, drift

RUNS = 3000
JUMP = np.where(np.arange(100) < 50, 1.0, 1.05)
RAMP = np.linspace(1, 1.1, 100)


def flagged(resemblance: float, pattern: "np.ndarray | float" = 1.0, runs: int = RUNS, steps: int = 100) -> float:
    """The part of the runs that are called unsteady, whose steps have a coefficient of variation of 2 %."""
    random = np.random.default_rng(7)
    step_s = 0.1 * np.exp(0.02 * resembling(random, runs, steps, resemblance)) * pattern
    found = [drift(each) for each in step_s.tolist()]
    return float(np.mean([each is not None and each.is_more_than(0) for each in found]))


@pytest.mark.parametrize("steps", [LEAST_STEPS, 50, 100, 240])
@pytest.mark.parametrize("resemblance", [0.0, 0.5])
def test_steady_runs_are_not_flagged(resemblance: float, steps: int) -> None:
    """At most one steady run in a hundred is flagged, also where each step resembles the one before."""
    assert flagged(resemblance, steps=steps) <= FALSE_FLAGS + 2 * (FALSE_FLAGS / RUNS) ** 0.5


@pytest.mark.parametrize("pattern", [JUMP, RAMP, 1 / JUMP, 1 / RAMP], ids=["jump down", "ramp down", "jump up", "ramp up"])
@pytest.mark.parametrize("resemblance, least", [(0.0, 0.98), (0.5, 0.85)])
def test_drifts_are_found(pattern: "np.ndarray", resemblance: float, least: float) -> None:
    """A jump of 5 % between the halves and an even change of 10 % are found in 100 steps, slower or faster."""
    assert flagged(resemblance, pattern, runs=300) >= least


def test_how_much_faster_or_slower() -> None:
    """The change is that of the rate: steps that take 5 % longer are a loss of 4.8 %."""
    found = drift([0.1] * 60 + [0.105] * 60)
    assert found is not None
    assert found.change == pytest.approx(1 / 1.05 - 1)
    assert found.p_value < 1e-6
    assert found.is_more_than(0.04)
    assert not found.is_more_than(0.05)


@given(step_s=st.floats(1e-6, 1e3), steps=st.integers(LEAST_STEPS, 300))
def test_a_clockwork_is_steady(step_s: float, steps: int) -> None:
    """Steps that all take the very same time are no drift, whatever rounding makes of their sums."""
    found = drift([step_s] * steps)
    assert found is not None
    assert found.p_value == 1


def test_too_few_steps_say_nothing() -> None:
    """Below thirty steps there is no answer."""
    assert drift([0.1] * (LEAST_STEPS - 1)) is None


def test_the_beginning_is_left_out() -> None:
    """Steps that fill no block are those of the beginning: one slow first step of 101 does not count."""
    assert drift([9.0, *[0.1] * 100]) == drift([0.1] * 100)
