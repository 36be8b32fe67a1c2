"""Tables that the tests of numerics and their program share."""

from bisect import bisect_right
from dataclasses import replace
from typing import Any

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.spec.learning_rate import LearningRate

HYPERPARAMETERS: dict[str, dict[str, float]] = {
    "sgd": {},
    "momentum": {"momentum": 0.8},
    "rmsprop": {"rmsprop_decay": 0.7, "rmsprop_momentum": 0.6, "rmsprop_epsilon": 0.5},
    "adam": {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-3},
}

# On MNIST an epoch is 60,000 images: 100 steps of 2 x 300.
_MNIST: dict[str, Any] = {
    "model": "mnist", "data": "mnist", "data_dir": "/data", "batch_size": 300, "gpus": 2, "num_ps": 1, "learning_rate": 0.4,
}  # fmt: skip
RATES: dict[str, dict[str, Any]] = {
    "pieces": _MNIST | {"piecewise_learning_rate_schedule": "0.1;2;0.01;5;0.001"},
    "decay": _MNIST | {"num_epochs_per_decay": 1.5, "learning_rate_decay_factor": 0.5},
    "decay to an end": _MNIST | {"num_epochs_per_decay": 1.5, "learning_rate_decay_factor": 0.5, "minimum_learning_rate": 0.15},
    "warm-up": _MNIST | {"num_learning_rate_warmup_epochs": 2},
    "warm-up to pieces": _MNIST | {"num_learning_rate_warmup_epochs": 2, "piecewise_learning_rate_schedule": "0.1;3;0.01"},
}


def compute_rate(rule: LearningRate, step: int) -> float:
    """Return the rate that the graph is to have after so many steps."""
    if step < rule.warmup_steps:
        return rule.values[0] * step / rule.warmup_steps
    value = rule.values[bisect_right(rule.starts, step) - 1]
    return max(value * rule.decay_factor ** (step // rule.decay_steps), rule.minimum) if rule.decay_steps else value


STEPS = (0, 1, 149, 150, 199, 200, 299, 300, 450, 499, 500, 1000)

NAN, INF = float("nan"), float("inf")
OVERFLOWS = (1.0, INF, 1.0, 1.0, 1.0, NAN, -INF, 1.0)  # gradients

_ON_GPUS = TaskOrder(
    run="r", job="worker", index=0, spec=Spec(model="trivial", batch_size=1, gpus=4, variable_update="replicated"), cluster={},
    device="gpu", num_devices=4, threads=6,
)  # fmt: skip


def _make_order(**changes: Any) -> TaskOrder:
    return replace(_ON_GPUS, spec=_ON_GPUS.spec.replace(**changes))


_SERVER = replace(
    _ON_GPUS,
    job="ps",
    spec=_ON_GPUS.spec.replace(variable_update="parameter_server", num_ps=1),
    cluster={"ps": ("a:1",), "worker": ("b:2",)},
)
_ON_ONE_CORE = replace(_SERVER, job="worker", device="cpu", num_devices=1, threads=1)
CONFIGS = (
    _ON_GPUS,
    _make_order(gpu_thread_mode="gpu_shared", per_gpu_thread_count=3, allow_growth=False),
    _make_order(gpu_thread_mode="global"),
    replace(_SERVER, cluster={"ps": ("a:1",), "worker": ("a:2",)}),
    _ON_ONE_CORE,
    replace(_ON_ONE_CORE, cluster={"ps": ("a:1",), "worker": ("a:2",)}),
    replace(_ON_ONE_CORE, spec=_ON_ONE_CORE.spec.replace(num_inter_threads=1)),
    replace(_make_order(num_intra_threads=3, num_inter_threads=2), device="cpu"),
    _SERVER,
)
