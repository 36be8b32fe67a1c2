"""Networks as tasks train them; what they are is proven in `models/`, and that they learn in tests/real/test_perf_tests.py."""

from pathlib import Path

import numpy as np

from pytest_dtfperf.spec import Spec
from tests.training.conftest import RunTraining, assert_same_variables


def test_both_data_formats_train_the_same(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """A step in NHWC and one in NCHW have the same loss, and lead to the same variables: forward and backward agree."""
    losses = {}
    for data_format in ("NHWC", "NCHW"):
        spec = tiny.replace(data_format=data_format, steps=1)
        (report,) = run_training(spec, checkpoint=str(tmp_path / f"{data_format}.npz"), threads=2)
        losses[data_format] = report.loss
    np.testing.assert_allclose(losses["NCHW"], losses["NHWC"], rtol=1e-5)
    assert_same_variables(tmp_path / "NCHW.npz", tmp_path / "NHWC.npz", atol=1e-5)


def test_trivial_trains_and_stays_finite(run_training: RunTraining) -> None:
    """tf_cnn_benchmarks' trivial model does ten steps on synthetic images, and its loss stays a number."""
    (report,) = run_training(Spec(model="trivial", batch_size=4, warmup_steps=1, steps=10))
    assert len(report.loss) == len(report.step_s) == 10
    assert np.isfinite(report.loss).all()
