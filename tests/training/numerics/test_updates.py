"""The effect of an update on a variable: as TensorFlow's optimizers, with decay, clipping, rates and loss scales."""

from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.spec import OPTIMIZERS, Spec
from pytest_dtfperf.spec.learning_rate import learning_rate_of
from tests.training.numerics.tables import RATES, STEPS, compute_rate

RATE = 0.1


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers_are_tensorflows(results: dict[str, Any], optimizer: str) -> None:
    """A variable after each of four updates equals that of tf.compat.v1.train's optimizer, with unusual hyperparameters."""
    both = results["optimizers"][optimizer]
    np.testing.assert_allclose(both["ours"], both["theirs"], rtol=1e-6)
    assert np.ptp(np.array(both["ours"]), axis=0).min() > 0.01


def test_weight_decay_is_the_gradient_of_half_the_square(results: dict[str, Any]) -> None:
    """An update is rate x (gradient + decay x variable), and for batch norm's variables rate x gradient."""
    decaying, kept = np.array(results["start"]), np.array(results["start"])
    for step, gradient in enumerate(np.array(results["gradients"])):
        decaying = decaying - RATE * (gradient + 0.5 * decaying)
        kept = kept - RATE * gradient
        np.testing.assert_allclose(results["decayed"][step], decaying, rtol=1e-6)
        np.testing.assert_allclose(results["batch norm"][step], kept, rtol=1e-6)


def test_clipping_is_of_the_gradient_with_its_decay(results: dict[str, Any]) -> None:
    """Each value of gradient plus decay is cut off at 1.5 on both sides, and some are."""
    variable = np.array(results["start"])
    cut = 0
    for step, gradient in enumerate(np.array(results["gradients"])):
        whole = gradient + 0.5 * variable
        cut += int(np.count_nonzero(abs(whole) > 1.5))
        variable = variable - RATE * np.clip(whole, -1.5, 1.5)
        np.testing.assert_allclose(results["clipped"][step], variable, rtol=1e-6)
    assert 0 < cut < 16


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_compiled_updates_are_the_same(results: dict[str, Any], optimizer: str) -> None:
    """Compiled into one pass, and by the mean of two gradients, with decay, clipping and a rate that changes."""
    found = results["compiled"][optimizer]
    for other in ("compiled", "mean", "compiled mean"):
        np.testing.assert_allclose(found[other], found["plain"], rtol=1e-6, err_msg=other)
    assert np.ptp(np.array(found["plain"]), axis=0).min() > 0


def test_rate_follows_the_number_of_updates(results: dict[str, Any]) -> None:
    """Four steps of warm-up move a variable by 0 to 3/4 of the rate, then by all; one worker's update is half a step."""
    for name, expected in (
        ("warming up", [0, 0.25, 0.5, 0.75, 1, 1]),
        ("warming up alone", [0, 0, 0.25, 0.25, 0.5, 0.5]),
    ):
        moved = -np.diff([results["start"], *results[name]], axis=0)
        np.testing.assert_allclose(moved, RATE * np.broadcast_to(np.reshape(expected, (6, 1, 1)), (6, 2, 2)), atol=1e-6)


@pytest.mark.parametrize("rule", RATES)
def test_graph_rate_equals_the_pure_function(results: dict[str, Any], rule: str) -> None:
    """The graph's rate equals the pure function's at and beside all steps where it changes."""
    pure = learning_rate_of(Spec(**RATES[rule]))
    np.testing.assert_allclose(results["rates"][rule], [compute_rate(pure, step) for step in STEPS], rtol=1e-6)


def test_overflow_halves_the_scale_and_changes_nothing_else(results: dict[str, Any]) -> None:
    """128 doubles after two finite updates in a row, is halved by inf and nan, and then neither variable nor momentum moves."""
    found = results["overflows"]
    assert found["scale"] == [128, 64, 64, 128, 128, 64, 32, 32]
    for at in (1, 5, 6):
        assert found["variable"][at] == found["variable"][at - 1]
        assert found["momentum"][at] == found["momentum"][at - 1]
    velocities = [1.0]
    for _ in range(4):
        velocities.append(0.9 * velocities[-1] + 1)
    np.testing.assert_allclose([found["momentum"][at] for at in (0, 2, 3, 4, 7)], velocities, rtol=1e-6)
