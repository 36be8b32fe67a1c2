"""Learning-rate rules, and options without a meaning, which are refused when a training is described."""

import re
from typing import Any

import pytest

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.learning_rate import learning_rate_of
from tests.training.numerics.tables import RATES, compute_rate

# Step -> rate. An epoch of the table's rules has 100 steps.
EXPECTED = {
    "pieces": {0: 0.1, 199: 0.1, 200: 0.01, 499: 0.01, 500: 0.001, 100_000: 0.001},
    "decay": {0: 0.4, 149: 0.4, 150: 0.2, 300: 0.1, 450: 0.05},
    "decay to an end": {149: 0.4, 150: 0.2, 300: 0.15, 100_000: 0.15},
    "warm-up": {0: 0.0, 1: 0.002, 100: 0.2, 199: 0.398, 200: 0.4, 1000: 0.4},
    "warm-up to pieces": {0: 0.0, 100: 0.05, 200: 0.1, 299: 0.1, 300: 0.01},
}


def spec(**changes: Any) -> Spec:
    return Spec(**{"model": "trivial", "batch_size": 32, **changes})


@pytest.mark.parametrize("rule", RATES)
def test_rates_by_step(rule: str) -> None:
    """Each rule's rates, before and after every step at which it changes."""
    rate = learning_rate_of(Spec(**RATES[rule]))
    assert {step: compute_rate(rate, step) for step in EXPECTED[rule]} == pytest.approx(EXPECTED[rule])
    assert not rate.is_constant


def test_rate_without_a_rule_is_constant() -> None:
    """The rate without a rule is the spec's own at every step."""
    rate = learning_rate_of(spec(learning_rate=0.3))
    assert rate.is_constant
    assert compute_rate(rate, 0) == compute_rate(rate, 10**9) == 0.3


def test_an_epoch_of_synthetic_images_is_imagenets() -> None:
    """1,281,167 images are 625 steps of 8 devices with 256 each."""
    rate = learning_rate_of(spec(batch_size=256, gpus=8, num_ps=1, piecewise_learning_rate_schedule="0.1;1;0.01"))
    assert [compute_rate(rate, step) for step in (624, 625)] == [0.1, 0.01]


@pytest.mark.parametrize(
    ("schedule", "problem"),
    [
        ("0.1;ten;0.01", "    0.1;ten;0.01\n        ^ expected an epoch: a number of at least 0"),
        ("0.1;10;-1", "    0.1;10;-1\n           ^ expected a learning rate: a number of at least 0"),
        ("0.1;10", "    0.1;10;\n           ^ expected the learning rate from then on"),
        ("0.1;10;", "    0.1;10;\n           ^ expected a learning rate"),
        ("0.1;10;0.01;10;0.001", "    0.1;10;0.01;10;0.001\n                ^ expected an epoch after the one before"),
        ("0.1;0;0.01", "    0.1;0;0.01\n        ^ expected an epoch after 0, the first"),
        ("nan;1;0.1", "    nan;1;0.1\n    ^ expected a learning rate"),
    ],
)
def test_a_schedule_that_cannot_be_read_is_pointed_at(schedule: str, problem: str) -> None:
    """The grammar, the schedule, and a caret under what is wrong with what is expected there."""
    with pytest.raises(SpecError, match=r"is RATE;EPOCH;RATE.* cannot be read") as refused:
        spec(piecewise_learning_rate_schedule=schedule)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"fp16_loss_scale": 8.0}, "fp16_loss_scale means nothing to precision=fp32. It is for precision=fp16."),
        ({"precision": "fp16", "fp16_loss_scale": 0.5}, "fp16_loss_scale must be at least 1, not 0.5"),
        ({"precision": "fp16", "fp16_inc_loss_scale_every_n": 9}, "It is for fp16_enable_auto_loss_scale=true."),
        ({"momentum": 0.5}, "momentum means nothing to optimizer=sgd. It is for optimizer=momentum."),
        ({"optimizer": "adam", "adam_beta1": 1.0}, "adam_beta1 must be at least 0 and below 1, not 1.0"),
        ({"optimizer": "adam", "adam_epsilon": 0.0}, "adam_epsilon must be more than 0"),
        ({"gradient_clip": 0.0}, "gradient_clip must be more than 0"),
        ({"num_epochs_per_decay": 2.0}, "num_epochs_per_decay needs learning_rate_decay_factor"),
        ({"learning_rate_decay_factor": 0.5}, "learning_rate_decay_factor needs num_epochs_per_decay"),
        ({"minimum_learning_rate": 0.1}, "minimum_learning_rate is where decay ends: it needs num_epochs_per_decay and"),
        (
            {"piecewise_learning_rate_schedule": "0.1", "minimum_learning_rate": 0.1},
            "defines the whole rate: leave out minimum_learning_rate",
        ),
        ({"forward_only": True, "gradient_clip": 1.0}, "forward_only trains nothing, so gradient_clip means nothing to it"),
        ({"forward_only": True, "staged_vars": True}, "forward_only trains nothing, so staged_vars means nothing to it"),
        ({"forward_only": True, "variable_update": "mirrored"}, "forward_only is not for variable_update=mirrored"),
        ({"gpu_thread_mode": "global", "per_gpu_thread_count": 4}, "means nothing to gpu_thread_mode=global"),
        ({"onednn": "on"}, "onednn must be true or false, not 'on'"),
        ({"environment": ("TF_ENABLE_ONEDNN_OPTS=0",)}, "environment cannot set TF_ENABLE_ONEDNN_OPTS. Use onednn."),
        ({"environment": ("CUDA_VISIBLE_DEVICES=0",)}, "Use gpus: every task sees its own."),
        ({"environment": ("LD_PRELOAD=x.so",)}, "it is read when a process is started, and tasks are forked"),
        ({"environment": ("DTFPERF_SLOWDOWN=worker:0=1",)}, "it is read when a process is started, and tasks are forked"),
        (
            {"environment": ("DTFPERF_ZMQ_PRODUCER=/opt/feed",)},
            "names the program that makes images for data=zmq: it means nothing to data=synthetic",
        ),
        ({"data": "zmq", "environment": ("DTFPERF_ZMQ_PRODUCER=feed 'x",)}, "feed 'x is no command: No closing quotation"),
        ({"data": "zmq", "environment": ("DTFPERF_ZMQ_PRODUCER=",)}, "must be a program and its arguments; without it"),
    ],
    ids=lambda value: "" if isinstance(value, str) else " ".join(value),
)
def test_options_that_mean_nothing_are_refused(changes: dict[str, Any], problem: str) -> None:
    """An option without a meaning is refused with the setting that it belongs to."""
    with pytest.raises(SpecError, match=re.escape(problem)):
        spec(**changes)
