"""parameter_server: many workers learn what one would, and every step is everybody's."""

from pathlib import Path

import numpy as np
import pytest

from pytest_dtfperf.spec import Spec
from tests.training.conftest import Trained


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("num_ps, placement", [(1, "greedy"), (2, "greedy"), (2, "round_robin")])
def test_two_workers_learn_what_one_process_learns_from_their_batches_together(
    trained: Trained, tiny: Spec, tmp_path: Path, optimizer: str, num_ps: int, placement: str
) -> None:
    """The mean of the workers' gradients is applied exactly once per step, wherever the variables lie."""
    spec = tiny.but(optimizer=optimizer)
    trained(spec.but(batch_size=16), checkpoint=str(tmp_path / "alone.npz"))
    trained(spec.but(gpus=2, num_ps=num_ps, variable_placement=placement), workers=2, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", tmp_path / "alone.npz")


def assert_same_variables(one: Path, other: Path) -> None:
    with np.load(one) as values, np.load(other) as expected:
        assert set(values) == set(expected)
        for name in expected:
            np.testing.assert_allclose(values[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
