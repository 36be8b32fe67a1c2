"""parameter_server: every gradient counts once, synchronous or not, and all workers make each synchronous step."""

import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pytest_dtfperf.spec import Spec
from tests.training.conftest import RunTraining

FEW = 12  # images: a step of all devices together has each of them once, in any order
LABELS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], np.uint8)
PIXELS = np.random.default_rng(0).integers(0, 256, (FEW, 28, 28)).astype(np.uint8)

Values = Mapping[str, NDArray[np.float64]]


@pytest.fixture(scope="module")
def few_images_spec(tiny: Spec, tmp_path_factory: pytest.TempPathFactory) -> Spec:
    """Softmax regression from zeros, on a set of a few images."""
    folder = tmp_path_factory.mktemp("few")
    (folder / "train-images-idx3-ubyte").write_bytes(struct.pack(">4I", 0x803, *PIXELS.shape) + PIXELS.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, FEW) + LABELS.tobytes())
    return tiny.replace(
        model="mnist_softmax", batch_size=FEW, data_dir=str(folder), learning_rate=0.1, weight_decay=0.0, steps=4
    )


def gradients_at(values: Values) -> Values:
    """Return the mean gradients of softmax regression's cross-entropy over all images, by the textbook formula."""
    images = PIXELS.reshape(FEW, -1) / 255
    exponentials = np.exp(images @ values["dense0/weights"] + values["dense0/bias"])
    error = exponentials / exponentials.sum(axis=1, keepdims=True) - np.eye(10)[LABELS]
    return {"dense0/weights": images.T @ error / FEW, "dense0/bias": error.mean(axis=0)}


def descend(spec: Spec, delay: int = 0, sent: Callable[[Values], Values] = lambda values: values) -> Values:
    """Return the variables after gradient descent with gradients of `delay` steps before; `sent` rounds all numbers."""
    path: list[Values] = [{"dense0/weights": np.zeros((784, 10)), "dense0/bias": np.zeros(10)}]
    for step in range(spec.steps):
        gradients = sent(gradients_at(sent(path[max(step - delay, 0)])))
        path.append({name: value - spec.learning_rate * gradients[name] for name, value in path[-1].items()})
    return path[-1]


def in_bf16(values: Values) -> Values:
    """Rounded to the upper 16 of 32 bits, to the nearest, and to the even one of two."""
    found = {}
    for name, value in values.items():
        bits = value.astype(np.float32).view(np.uint32)
        upper = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        found[name] = upper.astype(np.uint32).view(np.float32).astype(np.float64)
    return found


def cut_off(values: Values) -> Values:
    """The upper 16 of 32 bits."""
    found = {name: (value.astype(np.float32).view(np.uint32) & 0xFFFF0000).astype(np.uint32) for name, value in values.items()}
    return {name: bits.view(np.float32).astype(np.float64) for name, bits in found.items()}


@pytest.mark.campaign
@pytest.mark.parametrize("staged_vars", [False, True])
@pytest.mark.parametrize("placement", ["greedy", "split"])
@pytest.mark.parametrize("workers, gpus, num_ps, device", [(1, 1, 0, "cpu"), (2, 2, 2, "cpu"), (2, 4, 1, "gpu")])
def test_training_is_gradient_descent_and_staged_its_delayed_kin(
    run_training: RunTraining,
    few_images_spec: Spec,
    tmp_path: Path,
    staged_vars: bool,
    workers: int,
    gpus: int,
    num_ps: int,
    device: str,
    placement: str,
) -> None:
    """The variables equal numpy's gradient descent, with gradients of the step before if they are staged."""
    spec = few_images_spec.replace(
        batch_size=FEW // gpus, gpus=gpus, num_ps=num_ps, local_parameter_device=device, staged_vars=staged_vars,
        agg_small_grads_max_bytes=0, variable_placement=placement,
    )  # fmt: skip
    run_training(spec, workers=workers, checkpoint=str(tmp_path / "trained.npz"))
    expected = descend(spec, delay=1 if staged_vars else 0)
    with np.load(tmp_path / "trained.npz") as values:
        for name in expected:
            np.testing.assert_allclose(values[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize(
    "mode, options",
    [
        ("parameter_server", {}),
        ("parameter_server", {"cross_replica_sync": False, "variable_placement": "split"}),
        ("distributed_replicated", {"variable_placement": "split"}),
    ],
    ids=["parameter_server", "asynchronous, split", "distributed_replicated, split"],
)
def test_numbers_on_the_wire_are_rounded_to_the_nearest(
    run_training: RunTraining, few_images_spec: Spec, tmp_path: Path, mode: str, options: dict[str, Any]
) -> None:
    """Values come and gradients go rounded, masters and updates are not: as numpy does it, and not as if bits were cut off."""
    spec = few_images_spec.replace(
        variable_update=mode, num_ps=2, wire_precision="bf16", agg_small_grads_max_bytes=0, steps=2, **options
    )
    run_training(spec, checkpoint=str(tmp_path / "trained.npz"))
    expected, plain, cut = (descend(spec, sent=sent) for sent in (in_bf16, lambda values: values, cut_off))
    with np.load(tmp_path / "trained.npz") as values:
        for name, value in expected.items():
            off, others = np.linalg.norm(values[name] - value), [np.linalg.norm(one[name] - value) for one in (plain, cut)]
            assert off < 0.1 * min(others), (name, off, others)  # numpy's last bits round some the other way


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize("workers, steps", [(2, 150), (3, 50)])
def test_asynchronous_gradients_are_each_applied_once(
    run_training: RunTraining, few_images_spec: Spec, tmp_path: Path, workers: int, steps: int
) -> None:
    """The bias of a network with constant gradients is their exact sum: none is lost or counted twice."""
    spec = few_images_spec.replace(
        model="saturated", gpus=workers, num_ps=1, cross_replica_sync=False, batch_size=FEW // workers, learning_rate=1e-8,
        steps=steps,
    )  # fmt: skip
    reports = run_training(spec, workers=workers, checkpoint=str(tmp_path / "trained.npz"), threads=2)
    assert [len(report.step_s) for report in reports] == [0, *[steps] * workers]
    with np.load(tmp_path / "trained.npz") as values:
        moved = values["dense1/bias"] / spec.learning_rate
    gradients = workers * steps
    expected = gradients * np.bincount(LABELS, minlength=10) / FEW
    expected[np.argmin(moved)] -= gradients  # the class that it is sure of
    np.testing.assert_allclose(moved, expected, rtol=1e-4)


def test_asynchronous_training_ends_with_the_slowest_worker(run_training: RunTraining, tiny: Spec) -> None:
    """Each does its own steps on the same variables, and the chief's window closes with the slowest."""
    spec = tiny.replace(gpus=2, num_ps=1, cross_replica_sync=False, steps=40, warmup_steps=2)
    _, chief, other = run_training(spec, workers=2)
    assert [len(worker.step_s) for worker in (chief, other)] == [40, 40]
    assert chief.elapsed_s >= math.fsum(chief.step_s)
    assert sum(chief.loss[-10:]) < sum(chief.loss[:10])


def test_a_slow_worker_slows_all_when_they_step_together(run_training: RunTraining, tiny: Spec) -> None:
    """A sleep injected into one worker's steps is in the chief's measured time: of five sleeps at least four, for the chief's
    window may begin during the first."""
    spec = tiny.replace(gpus=2, num_ps=1, steps=5)
    _, chief, other = run_training(spec, workers=2, sleep_s={"worker:1": 0.2})
    assert math.fsum(other.step_s) >= 1.0
    assert math.fsum(chief.step_s) >= 0.8


def test_servers_share_the_bytes(run_training: RunTraining, tiny: Spec) -> None:
    """Two parameter servers share all variables, and the report has the bytes of each."""
    _, _, alone = run_training(tiny.replace(num_ps=2, agg_small_grads_max_bytes=0), workers=1)
    assert [device.split("/device")[0] for device in sorted(alone.variable_bytes)] == ["/job:ps/task:0", "/job:ps/task:1"]
    trainable = 3 * 3 * 12 + 12 + 3 * 3 * 12 * 64 + 64 + 64 * 10 + 10
    assert sum(alone.variable_bytes.values()) == 4 * trainable
