"""Evaluations on the test set: their content, their times, and that training continues unchanged."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import VARIABLE_UPDATES, Spec
from tests.training.conftest import RunTraining, assert_same_variables

# It takes softmax regression some twenty steps, in all modes, and four or five looks.
ENOUGH, EVERY = 0.6, 5
UNTIL_ENOUGH: dict[str, Any] = {
    "model": "mnist_softmax", "steps": 200, "learning_rate": 0.1, "eval_during_training_every_n_steps": EVERY,
    "stop_at_top_1_accuracy": ENOUGH,
}  # fmt: skip


def test_score_equals_numpys(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """Images, both losses and both accuracies after training are those that the saved variables give in numpy."""
    spec = tiny.replace(model="mnist_softmax", weight_decay=0.01, evaluate=True, steps=20)
    (report,) = run_training(spec, checkpoint=str(tmp_path / "trained.npz"))
    (evaluation,) = report.evaluations
    images, labels = digits_to_test(Path(str(spec.data_dir)))
    with np.load(tmp_path / "trained.npz") as values:
        logits = images @ values["dense0/weights"] + values["dense0/bias"]
        penalty = 0.01 * sum(float((values[name] ** 2).sum()) / 2 for name in values)
    of_label = logits[np.arange(len(labels)), labels]
    rank = (logits >= of_label[:, None]).sum(axis=1)
    loss = float((np.log(np.exp(logits).sum(axis=1)) - of_label).mean())
    assert evaluation.score.images == len(labels) == 297
    np.testing.assert_allclose([evaluation.score.loss, evaluation.score.total_loss], [loss, loss + penalty], rtol=1e-4)
    np.testing.assert_allclose(
        [evaluation.score.top_1, evaluation.score.top_5], [(rank <= 1).mean(), (rank <= 5).mean()], atol=0.01
    )
    assert evaluation.score.top_1 < evaluation.score.top_5


def test_evaluations_within_training_do_not_change_it(run_training: RunTraining, tiny: Spec, tmp_path: Path) -> None:
    """Two workers that stop three times for an evaluation learn the same as one without, and only the chief has evaluated."""
    alone = tiny.replace(batch_size=16, warmup_steps=1, steps=5)
    run_training(alone, checkpoint=str(tmp_path / "straight.npz"))
    spec = alone.replace(batch_size=8, gpus=2, num_ps=1)
    reports = run_training(
        spec.replace(eval_during_training_every_n_steps=2), workers=2, checkpoint=str(tmp_path / "looking.npz")
    )
    _, chief, other = reports
    assert [evaluation.step for evaluation in chief.evaluations] == [3, 5, 6]
    assert other.evaluations == []
    assert [len(worker.step_s) for worker in (chief, other)] == [5, 5]
    assert chief.evaluations[-1].trained_s == chief.elapsed_s
    assert_same_variables(tmp_path / "looking.npz", tmp_path / "straight.npz")


@pytest.mark.campaign(part=2)
@pytest.mark.parametrize(
    "options",
    [{}, {"xla_compile": True, "model": "mnist_softmax"}, {"forward_only": True}],
    ids=str,
)
def test_divided_variables_train_as_whole_ones(
    run_training: RunTraining, tiny: Spec, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Losses and the test set's score with variables in parts on three servers are those of one process."""
    spec = tiny.replace(batch_size=12, evaluate=not options.get("forward_only", False), **options)
    (alone,) = run_training(spec)
    together = spec.replace(gpus=2, num_ps=3, batch_size=6, variable_placement="split")
    *_, chief, other = run_training(together, workers=2)
    found = [(one + two) / 2 for one, two in zip(chief.loss, other.loss, strict=True)]
    np.testing.assert_allclose(found, alone.loss, rtol=1e-5)
    for expected, evaluation in zip(alone.evaluations, chief.evaluations, strict=True):
        np.testing.assert_allclose(evaluation.score.loss, expected.score.loss, rtol=1e-4)
        np.testing.assert_allclose(evaluation.score.total_loss, expected.score.total_loss, rtol=1e-4)


@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_all_workers_stop_at_the_target(run_training: RunTraining, tiny: Spec, synchronous: bool) -> None:
    """All workers stop at the evaluation that reaches the target, with the same number of steps."""
    spec = tiny.replace(gpus=2, num_ps=1, cross_replica_sync=synchronous, **UNTIL_ENOUGH)
    _, chief, other = run_training(spec, workers=2)
    assert len(chief.step_s) == len(other.step_s) < 200
    assert len(chief.step_s) == chief.evaluations[-1].step
    found = [evaluation.score.top_1 >= ENOUGH for evaluation in chief.evaluations]
    assert found == [False] * (len(found) - 1) + [True]


@pytest.mark.campaign(part=3)  # the modes with graphs broadcast the decision by the same operations
@pytest.mark.parametrize(
    "variable_update, num_ps",
    [
        ("distributed_replicated", 1),
        ("independent", 0),
        ("distributed_all_reduce", 0),
        ("collective_all_reduce", 0),
        ("multi_worker_mirrored", 0),
        ("parameter_server_v2", 1),
    ],
)
def test_every_mode_stops_at_the_target(run_training: RunTraining, tiny: Spec, variable_update: str, num_ps: int) -> None:
    """All workers stop when the target is reached, with sessions of their own and without."""
    synchronous = variable_update != "parameter_server_v2"
    spec = tiny.replace(gpus=2, num_ps=num_ps, variable_update=variable_update, cross_replica_sync=synchronous, **UNTIL_ENOUGH)
    *_, chief, other = run_training(spec, workers=2)
    assert len(chief.step_s) == chief.evaluations[-1].step < 200
    assert chief.evaluations[-1].score.top_1 >= ENOUGH
    assert len(other.step_s) == (0 if VARIABLE_UPDATES[variable_update].single_session else len(chief.step_s))
    assert other.evaluations == []


def test_lone_process_stops_at_the_target(run_training: RunTraining, tiny: Spec) -> None:
    """A lone process evaluates at each interval, and stops at the evaluation that reaches the target."""
    spec = tiny.replace(**UNTIL_ENOUGH)
    (report,) = run_training(spec)
    assert report.evaluations[-1].score.top_1 >= ENOUGH
    assert [evaluation.step for evaluation in report.evaluations] == list(range(EVERY, len(report.step_s) + 1, EVERY))
    seconds = [evaluation.trained_s for evaluation in report.evaluations]
    assert seconds == sorted(set(seconds))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a target without looks": ({"stop_at_top_1_accuracy": 0.9}, "needs eval_during_training_every_n_steps"),
    "a target out of reach": (
        {"stop_at_top_1_accuracy": 1.5, "eval_during_training_every_n_steps": 5}, "must be more than 0 and at most 1, not 1.5",
    ),
    "looks at noise": ({"data": "synthetic", "eval_during_training_every_n_steps": 5}, "accuracy on synthetic images"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_invalid_evaluations_are_refused(case: str) -> None:
    """A target without evaluations, above 1, or on synthetic images is refused with a message."""
    changes, words = WRONG[case]
    with pytest.raises(SpecError, match=words):
        Spec(**{"model": "mnist", "batch_size": 8, "data": "mnist", "data_dir": "/d", **changes})


def digits_to_test(folder: Path) -> tuple[Any, Any]:
    """The test set as (images, pixels) from 0 to 1, and its labels."""
    read = [gzip.decompress((folder / f"t10k-{kind}-ubyte.gz").read_bytes()) for kind in ("images-idx3", "labels-idx1")]
    images = np.frombuffer(read[0], np.uint8, offset=16).reshape(-1, 28 * 28)
    return images / 255, np.frombuffer(read[1], np.uint8, offset=8)
