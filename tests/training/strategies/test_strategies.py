"""TensorFlow 2's own strategies: properties beyond the suite of all modes."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.spec import Spec
from tests.training.conftest import RunTraining, assert_same_variables

LABEL = 3  # of all images below; the network that is sure of one class is sure of another
IMAGES = 12

# A spec's changes, and how many workers share its two devices.
MODES: dict[str, tuple[dict[str, Any], int]] = {
    "mirrored": ({"variable_update": "mirrored"}, 1),
    "multi_worker_mirrored": ({"variable_update": "multi_worker_mirrored"}, 2),
    "parameter_server_v2": ({"variable_update": "parameter_server_v2", "num_ps": 1, "cross_replica_sync": False}, 2),
    "parameter_server_v2 of 3": (
        {"variable_update": "parameter_server_v2", "num_ps": 3, "cross_replica_sync": False, "optimizer": "momentum"}, 2
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def same_images_spec(tiny: Spec, tmp_path_factory: pytest.TempPathFactory) -> Spec:
    """Return a spec of a network with a constant gradient on images of one label: each batch adds the same to its last bias."""
    folder = tmp_path_factory.mktemp("alike")
    pixels = bytes(IMAGES * 28 * 28)
    for shut_down in ("train", "t10k"):
        (folder / f"{shut_down}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, IMAGES, 28, 28) + pixels)
        (folder / f"{shut_down}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, IMAGES) + bytes([LABEL] * IMAGES))
    return tiny.replace(model="saturated", batch_size=6, gpus=2, data_dir=str(folder), learning_rate=1e-8, weight_decay=0.0)


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("num_ps", [1, 2, 3])
def test_each_batch_that_is_counted_is_applied_once(
    run_training: RunTraining, same_images_spec: Spec, tmp_path: Path, num_ps: int
) -> None:
    """parameter_server_v2: after all windows of steps, the bias has moved by as many gradients as devices had batches."""
    changes, workers = MODES["parameter_server_v2"]
    spec = same_images_spec.replace(
        **changes | {"num_ps": num_ps}, warmup_steps=2, steps=23, eval_during_training_every_n_steps=15
    )
    *_, chief, other = run_training(spec, workers=workers, checkpoint=str(tmp_path / "trained.npz"))
    assert len(chief.step_s) == len(chief.loss) == 23
    assert [evaluation.step for evaluation in chief.evaluations] == [17, 25]
    assert len(other.step_s) == 0
    with np.load(tmp_path / "trained.npz") as values:
        moved = values["dense1/bias"] / spec.learning_rate
    np.testing.assert_allclose([moved.max(), moved.min()], [25 * 2, -25 * 2], rtol=1e-4)
    assert moved.argmax() == LABEL


@pytest.mark.campaign(part=3)
@pytest.mark.parametrize("model, data", [("tiny_normed", "synthetic"), ("mnist_softmax", "synthetic-host")])
@pytest.mark.parametrize("mode", MODES)
def test_synthetic_images_are_learnt(run_training: RunTraining, tiny: Spec, mode: str, model: str, data: str) -> None:
    """Each strategy is fed from inputs on the device and from those of the host, and its loss falls, with batch norm, too."""
    changes, workers = MODES[mode]
    spec = tiny.replace(model=model, data=data, data_dir=None, gpus=2, **changes, learning_rate=0.01, steps=30)
    reports = run_training(spec, workers=workers)
    chief = next(report for report in reports if report.job == "worker")
    assert sum(chief.loss[-5:]) < sum(chief.loss[:5])
    assert 1 <= len(chief.devices) <= 2


def test_one_device_scores_as_a_graph(run_training: RunTraining, tiny: Spec) -> None:
    """Loss and accuracy on the test set equal the graph's after the same steps of a network with batch norm."""
    spec = tiny.replace(model="tiny_normed", evaluate=True)
    (expected,), (found,) = run_training(spec), run_training(spec.replace(variable_update="mirrored"))
    np.testing.assert_allclose(found.evaluations[0].score.loss, expected.evaluations[0].score.loss, rtol=1e-4)
    np.testing.assert_allclose(found.evaluations[0].score.top_1, expected.evaluations[0].score.top_1, atol=0.01)


@pytest.mark.parametrize("changes", [{"xla_compile": True}, {"optimizer": "adam", "learning_rate": 0.001}], ids=["xla", "adam"])
def test_copies_are_updated_as_one_network_is(
    run_training: RunTraining, tiny: Spec, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Compiled by XLA, and with an optimizer that counts its steps beside each copy, two devices learn what one does."""
    spec = tiny.replace(model="mnist_softmax", batch_size=12, **changes)
    run_training(spec.replace(xla_compile=False), checkpoint=str(tmp_path / "alone.npz"))
    run_training(spec.replace(variable_update="mirrored", gpus=2, batch_size=6), checkpoint=str(tmp_path / "copies.npz"))
    assert_same_variables(tmp_path / "copies.npz", tmp_path / "alone.npz", atol=1e-5)
