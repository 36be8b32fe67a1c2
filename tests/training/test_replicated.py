"""replicated: every device has its own copy of the variables, and all copies stay one network."""

from pathlib import Path

from pytest_dtfperf.spec import Spec
from tests.training.conftest import RunTraining


def test_dropout_differs_between_devices_and_copies_do_not(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """Saving refuses copies that differ: after steps with dropout of their own, three devices still have one network."""
    spec = tiny.replace(model="tiny_normed", batch_size=2, gpus=3, variable_update="replicated", optimizer="adam")
    (report,) = run_training(spec, checkpoint=str(tmp_path / "copies.npz"))
    assert len(report.devices) == len(report.variable_bytes) == 3
    assert (tmp_path / "copies.npz").exists()
