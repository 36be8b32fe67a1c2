"""What options of modes do to real trainings, beyond what the conformance suite asks of all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.variable_update.all_reduce_algorithms import CHUNK_BYTES, count_rings
from tests.training.conftest import RunTasks, RunTraining, assert_same_variables, orders_of

RELAXED: Mapping[str, Any] = {"variable_update": "replicated", "gpus": 2, "variable_consistency": "relaxed"}


@pytest.fixture(scope="module")
def plain_spec(tiny: Spec) -> Spec:
    """Gradients alone move the variables."""
    return tiny.replace(batch_size=4, weight_decay=0.0)


def test_relaxed_steps_apply_the_gradients_of_the_step_before(
    run_training: RunTraining, plain_spec: Spec, tmp_path: Path
) -> None:
    """Two relaxed steps lead where the first strong one does: the first of them had nothing to apply yet."""
    run_training(plain_spec.replace(batch_size=8, steps=1), checkpoint=str(tmp_path / "strong.npz"))
    run_training(plain_spec.replace(**RELAXED, steps=2), checkpoint=str(tmp_path / "relaxed.npz"))
    assert_same_variables(tmp_path / "relaxed.npz", tmp_path / "strong.npz", rtol=1e-5, atol=1e-7)


def test_relaxed_steps_read_the_variables_before_they_change_them(
    run_training: RunTraining, plain_spec: Spec, tmp_path: Path
) -> None:
    """The first two relaxed gradients on constant images are of the first variables: one strong step of twice the rate.

    Also repacked, reduced in a ring and left in staging areas, each gradient is applied to its variable.
    """
    constant = plain_spec.replace(data="synthetic", data_dir=None, variable_update="replicated", gpus=2)
    run_training(constant.replace(steps=1, learning_rate=2 * plain_spec.learning_rate), checkpoint=str(tmp_path / "strong.npz"))
    relaxed = constant.replace(**RELAXED, steps=3, gradient_repacking=3, all_reduce_spec="xring")
    run_training(relaxed, checkpoint=str(tmp_path / "relaxed.npz"))
    assert_same_variables(tmp_path / "relaxed.npz", tmp_path / "strong.npz", rtol=1e-5, atol=1e-7)


def test_first_relaxed_step_applies_weight_decay_alone(run_training: RunTraining, plain_spec: Spec, tmp_path: Path) -> None:
    """The first relaxed step applies weight decay, which is not part of the delayed gradients."""
    run_training(plain_spec.replace(steps=1, learning_rate=0.0), checkpoint=str(tmp_path / "start.npz"))
    run_training(
        plain_spec.replace(**RELAXED, steps=1, learning_rate=0.5, weight_decay=0.5), checkpoint=str(tmp_path / "decayed.npz")
    )
    with np.load(tmp_path / "start.npz") as start, np.load(tmp_path / "decayed.npz") as decayed:
        for name in start:
            np.testing.assert_allclose(decayed[name], start[name] * (1 - 0.5 * 0.5), rtol=1e-6, err_msg=name)


def test_collectives_share_large_tensors_out_to_several_rings(run_training: RunTraining, tmp_path: Path) -> None:
    """The trivial model's 16 MB of weights go round in parts, and every part finds its place: as added by one device."""
    spec = Spec(model="trivial", batch_size=1, gpus=2, variable_update="replicated", warmup_steps=0, steps=2)
    run_training(spec, checkpoint=str(tmp_path / "added.npz"))
    run_training(spec.replace(variable_update="collective_all_reduce"), checkpoint=str(tmp_path / "collected.npz"))
    assert_same_variables(tmp_path / "collected.npz", tmp_path / "added.npz")
    with np.load(tmp_path / "collected.npz") as variables:
        assert max(count_rings(variables[name].nbytes, devices=2) for name in variables) == 8


@pytest.mark.parametrize(
    "size_bytes, devices, shards, rings",
    [(0, 2, 1, 1), (CHUNK_BYTES, 2, 1, 1), (8 * CHUNK_BYTES, 2, 1, 4), (8 * CHUNK_BYTES, 8, 1, 1), (8 * CHUNK_BYTES, 2, 3, 12)],
)
def test_each_ring_carries_about_a_megabyte_per_device(size_bytes: int, devices: int, shards: int, rings: int) -> None:
    """Small tensors have one ring, larger ones as many as make such chunks, and shards multiply them."""
    assert count_rings(size_bytes, devices, shards) == rings


@pytest.fixture(scope="module")
def alone(run_training: RunTraining, plain_spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the variables that one process on one device learns."""
    path = tmp_path_factory.mktemp("alone") / "alone.npz"
    run_training(plain_spec.replace(batch_size=8), checkpoint=str(path))
    return path


@pytest.mark.parametrize("mode", ["collective_all_reduce", "distributed_all_reduce"])
def test_more_shards_learn_the_same(
    run_training: RunTraining, plain_spec: Spec, alone: Path, tmp_path: Path, mode: str
) -> None:
    """Three rings over two workers of two devices end where one process does."""
    algorithm = "collective#3" if mode == "collective_all_reduce" else "xring#3"
    spec = plain_spec.replace(batch_size=2, gpus=4, variable_update=mode, all_reduce_spec=algorithm)
    run_training(spec, workers=2, checkpoint=str(tmp_path / "together.npz"))
    assert_same_variables(tmp_path / "together.npz", alone)


def test_worker_without_a_session_of_its_own_reports_no_steps(run_training: RunTraining, plain_spec: Spec) -> None:
    """The chief's report has all towers, and that of the worker with allocated devices has its start-up and no steps."""
    chief, worker = run_training(plain_spec.replace(gpus=2, variable_update="distributed_all_reduce"), workers=2)
    assert [device.split("/device")[0][-6:] for device in chief.devices] == ["task:0", "task:1"]
    assert len(chief.step_s) == 3
    assert not worker.step_s
    assert not worker.devices
    assert worker.startup_s.keys() >= {"server", "build", "session"}


def test_nccl_is_refused_where_there_are_no_gpus(run_tasks: RunTasks, plain_spec: Spec) -> None:
    """The task ends with what may be taken instead."""
    with orders_of(plain_spec.replace(gpus=2, variable_update="replicated", all_reduce_spec="nccl"), workers=1) as orders:
        (outcome,) = run_tasks(orders)
    error = outcome["events"][-1]
    assert (error["kind"], error["error"]) == ("error", "SpecError")
    assert error["message"] == "all_reduce_spec: nccl adds on GPUs, but here are none: take xring, pscpu or pscpu/pscpu"
