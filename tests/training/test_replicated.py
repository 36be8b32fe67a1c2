"""replicated: every device has its own copy of the variables, and all copies stay one network."""

from pathlib import Path

import pytest

from pytest_dtfperf.spec import OPTIMIZERS, Spec
from tests.training.conftest import RATES, TOLERANCE, Trained, assert_same_variables


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_devices_learn_what_one_learns_from_their_batches_together(
    trained: Trained, alone: Path, tiny: Spec, tmp_path: Path, optimizer: str
) -> None:
    """After three steps the variables are the same as one process's; saving them has found all copies equal."""
    spec = tiny.but(optimizer=optimizer, learning_rate=RATES[optimizer], gpus=2, variable_update="replicated")
    (report,) = trained(spec, checkpoint=str(tmp_path / "copies.npz"))
    assert_same_variables(tmp_path / "copies.npz", alone / f"{optimizer}.npz", atol=TOLERANCE[optimizer])
    assert len(report.devices) == len(report.variable_bytes) == 2


def test_dropout_differs_between_devices_and_copies_do_not(trained: Trained, digit_files: Path, tmp_path: Path) -> None:
    """Saving refuses copies that differ: after steps with dropout of their own, three devices still have one network."""
    spec = Spec(
        model="mnist", batch_size=2, gpus=3, variable_update="replicated", data="mnist", data_dir=str(digit_files),
        optimizer="adam", warmup_steps=1, steps=3,
    )  # fmt: skip
    trained(spec, checkpoint=str(tmp_path / "copies.npz"))
    assert (tmp_path / "copies.npz").exists()
