"""The life of a task, seen by the process that started it."""

import math
from pathlib import Path

import numpy as np
import pytest

from pytest_dtfperf.spec import Spec
from tests.training.conftest import RunTasks, RunTraining, assert_same_variables, orders_of, report_of


def test_a_seed_gives_the_same_training_again(run_training: RunTraining, tiny: Spec) -> None:
    """Input, first values and dropout all follow from the seed: losses are equal to the last bit, and differ under another."""
    spec = tiny.replace(model="tiny_normed", batch_size=4, warmup_steps=1, steps=4)
    first, again, other = (run_training(spec.replace(seed=seed))[0].loss for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_every_strategy_starts_from_the_same_variables(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """The saved variables of all strategies at a learning rate of zero are equal to the last bit."""
    still = tiny.replace(learning_rate=0.0, steps=1)
    run_training(still, checkpoint=str(tmp_path / "alone.npz"))
    run_training(still.replace(gpus=2, num_ps=2), workers=2, checkpoint=str(tmp_path / "servers.npz"))
    run_training(still.replace(gpus=2, variable_update="replicated"), checkpoint=str(tmp_path / "copies.npz"))
    for name in ("servers", "copies"):
        assert_same_variables(tmp_path / f"{name}.npz", tmp_path / "alone.npz", rtol=0, atol=0)
    with np.load(tmp_path / "alone.npz") as values:
        assert all(np.ptp(values[name]) > 0 for name in values if name.endswith("weights"))


def test_a_report_accounts_for_every_step_and_phase(run_training: RunTraining, tiny: Spec) -> None:
    """Times and losses are counted, the steps add up to the window, phases and placement are named."""
    server, chief, other = run_training(tiny.replace(gpus=2, num_ps=1, warmup_steps=2, steps=7), workers=2)
    for worker in (chief, other):
        assert len(worker.step_s) == len(worker.loss) == 7
        assert math.fsum(worker.step_s) == worker.elapsed_s
        assert np.isfinite(worker.loss).all()
        assert list(worker.startup_s) == ["server", "build", "session", "first_step", "warmup"]
        assert worker.devices == [f"/job:worker/replica:0/task:{worker.index}/device:CPU:0"]
        assert worker.cpu_s > 0
    assert list(server.startup_s) == ["server"]
    assert server.peak_rss_bytes > 0


def test_xla_trains_the_same(run_training: RunTraining, tiny: Spec) -> None:
    """Compiled by XLA, a step has the same losses to the tolerance of fused sums, and its device is still known."""
    plain, compiled = (run_training(tiny.replace(xla=xla))[0] for xla in (False, True))
    np.testing.assert_allclose(compiled.loss, plain.loss, rtol=1e-4)
    assert compiled.devices == plain.devices


def test_an_injected_sleep_is_in_the_measured_steps(run_training: RunTraining, tiny: Spec) -> None:
    """Each step takes at least as long as its sleep."""
    (report,) = run_training(tiny, sleep_s=0.1)
    assert min(report.step_s) >= 0.1


def test_progress_counts_warm_up_and_is_seldom(run_tasks: RunTasks, tiny: Spec) -> None:
    """Progress is sent at most four times a second, over warm-up and measured steps together."""
    with orders_of(tiny.replace(warmup_steps=5, steps=10), workers=1, sleep_s=0.1) as orders:
        (outcome,) = run_tasks(orders)
    progress = [event for event in outcome["events"] if event["kind"] == "progress"]
    report = report_of(outcome)
    trained_s = report.startup_s["first_step"] + report.startup_s["warmup"] + report.elapsed_s
    assert 1 <= len(progress) <= 4 * trained_s + 1
    assert [event["total_steps"] for event in progress] == [15] * len(progress)
    assert progress[0]["step"] <= 5 < progress[-1]["step"]
    assert all(event["images_per_sec"] > 0 for event in progress)
    assert [outcome["events"][0]["kind"], outcome["events"][-1]["kind"]] == ["ready", "report"]


def test_missing_gpus_of_a_worker_are_reported(run_tasks: RunTasks, tiny: Spec) -> None:
    """Promised GPUs that TensorFlow does not see are named with what to look at, and nothing is trained."""
    with orders_of(tiny.replace(gpus=64, variable_update="replicated"), workers=1, device="gpu") as orders:
        (outcome,) = run_tasks(orders)
    assert outcome["code"] == 1
    assert outcome["events"][-1]["error"] == "InfrastructureError"
    assert "was to compute on 64 GPUs, but TensorFlow" in outcome["events"][-1]["message"]
    assert "CUDA_VISIBLE_DEVICES" in outcome["events"][-1]["message"]


@pytest.mark.parametrize("missing", ["train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"])
def test_a_missing_data_file_ends_the_task_before_training(
    run_tasks: RunTasks, digit_files: Path, tmp_path: Path, missing: str
) -> None:
    """The error names the folder and the file."""
    for path in digit_files.iterdir():
        if path.name != missing:
            (tmp_path / path.name).symlink_to(path)
    spec = Spec(model="mnist", batch_size=2, data="mnist", data_dir=str(tmp_path), evaluate=True, warmup_steps=0, steps=1)
    with orders_of(spec, workers=1) as orders:
        (outcome,) = run_tasks(orders)
    assert outcome["events"][-1]["error"] == "SpecError"
    assert f"{tmp_path} has neither {missing.removesuffix('.gz')}" in outcome["events"][-1]["message"]
