"""parameter_server: many workers learn what one would, and every step is everybody's."""

import math
from pathlib import Path

import pytest

from pytest_dtfperf.spec import OPTIMIZERS, Spec
from tests.training.conftest import RATES, TOLERANCE, Trained, assert_same_variables


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_ps, placement", [(1, "greedy"), (2, "greedy"), (2, "round_robin")])
def test_two_workers_learn_what_one_process_learns_from_their_batches_together(
    trained: Trained, alone: Path, tiny: Spec, tmp_path: Path, optimizer: str, num_ps: int, placement: str
) -> None:
    """After three steps all variables are the same: the mean of the gradients was applied exactly once in each."""
    spec = tiny.but(optimizer=optimizer, learning_rate=RATES[optimizer], gpus=2, num_ps=num_ps, variable_placement=placement)
    trained(spec, workers=2, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", alone / f"{optimizer}.npz", atol=TOLERANCE[optimizer])


@pytest.mark.parametrize("workers", [1, 2])
def test_devices_of_a_worker_count_like_workers(trained: Trained, tiny: Spec, tmp_path: Path, workers: int) -> None:
    """Two devices in each worker learn what one process learns from all batches together."""
    devices = 2 * workers
    trained(tiny.but(batch_size=4 * devices), checkpoint=str(tmp_path / "alone.npz"))
    spec = tiny.but(batch_size=4, gpus=devices, num_ps=1)
    reports = trained(spec, workers=workers, checkpoint=str(tmp_path / "together.npz"))
    assert [len(report.devices) for report in reports if report.job == "worker"] == [2] * workers
    assert_same_variables(tmp_path / "together.npz", tmp_path / "alone.npz")


def test_one_step_moves_the_variables_as_in_one_process(trained: Trained, tiny: Spec, tmp_path: Path) -> None:
    """A single step already is the whole update, and the learning rate's multiple of it."""
    trained(tiny.but(batch_size=16, steps=1), checkpoint=str(tmp_path / "alone.npz"))
    trained(tiny.but(gpus=2, num_ps=1, steps=1), workers=2, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", tmp_path / "alone.npz")


def test_asynchronous_workers_train_to_everybodys_end(trained: Trained, tiny: Spec) -> None:
    """Each does its own steps on the same variables, and the chief's window closes with the slowest."""
    spec = tiny.but(gpus=2, num_ps=1, cross_replica_sync=False, steps=40, warmup_steps=2)
    _, chief, other = trained(spec, workers=2)
    assert [len(worker.step_s) for worker in (chief, other)] == [40, 40]
    assert chief.elapsed_s >= math.fsum(chief.step_s)
    assert sum(chief.loss[-10:]) < sum(chief.loss[:10])


def test_a_slow_worker_slows_all_when_they_step_together(trained: Trained, tiny: Spec) -> None:
    """A sleep planted in one worker's steps is in the chief's measured time, whole."""
    spec = tiny.but(gpus=2, num_ps=1, steps=5)
    _, chief, other = trained(spec, workers=2, sleep_s={"worker:1": 0.2})
    assert math.fsum(other.step_s) >= 1.0
    assert math.fsum(chief.step_s) >= 0.95  # the first sleep may begin a moment before the chief's window


def test_servers_share_the_bytes(trained: Trained, tiny: Spec) -> None:
    """Two parameter servers hold all variables between them, and the report says how many bytes each."""
    _, _, alone = trained(tiny.but(num_ps=2), workers=1)
    assert [device.split("/device")[0] for device in sorted(alone.variable_bytes)] == ["/job:ps/task:0", "/job:ps/task:1"]
    trainable = 3 * 3 * 8 + 8 + 3 * 3 * 8 * 12 + 12 + 3 * 3 * 12 * 64 + 64 + 64 * 10 + 10
    assert sum(alone.variable_bytes.values()) == 4 * trainable
