"""Measure the effect of a variable update on learning: the deep MNIST network, with the same number of images in every step."""

import pytest

IMAGES_PER_STEP = 64
REPEATS = 3  # the number of steps differs from run to run, and fewer runs are not enough
TARGET = 0.95  # top-1 accuracy on the test set

WAYS = [
    "parameter_server",
    "distributed_replicated",
    "replicated",
    "collective_all_reduce",
    "distributed_all_reduce",
    "mirrored",
    "multi_worker_mirrored",
]


@pytest.mark.dtfperf(min_gpus=2, variable_update=WAYS)
def test_time_to_accuracy(train, baseline, mnist_dir, gpus, num_ps, variable_update):
    """Training on many devices reaches 95 % in at most 1.5 times the steps of one process."""
    learning = {
        "data": "mnist", "data_dir": mnist_dir, "optimizer": "adam", "learning_rate": 1e-3,
        "eval_during_training_every_n_steps": 20, "stop_at_top_1_accuracy": TARGET, "warmup_steps": 0, "steps": 400,
    }  # fmt: skip
    one = train(model="mnist", gpus=1, num_ps=0, batch_size=IMAGES_PER_STEP, repeats=REPEATS, **learning)
    many = train(
        model="mnist", gpus=gpus, num_ps=num_ps, variable_update=variable_update, batch_size=IMAGES_PER_STEP // gpus,
        repeats=REPEATS, **learning,
    )  # fmt: skip
    baseline.check_learning(many, anchor=one, at_most=1.5)
