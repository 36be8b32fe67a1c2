"""What cannot be asked of precision, optimizer, forward passes, threads and environment."""

import math
import shlex
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import learning_rate
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import VariableUpdate

# Option -> the field and the value without which it means nothing.
_ONLY_WITH = {
    "fp16_loss_scale": ("precision", "fp16"),
    "fp16_enable_auto_loss_scale": ("precision", "fp16"),
    "fp16_inc_loss_scale_every_n": ("fp16_enable_auto_loss_scale", True),
    "momentum": ("optimizer", "momentum"),
    "rmsprop_decay": ("optimizer", "rmsprop"),
    "rmsprop_momentum": ("optimizer", "rmsprop"),
    "rmsprop_epsilon": ("optimizer", "rmsprop"),
    "adam_beta1": ("optimizer", "adam"),
    "adam_beta2": ("optimizer", "adam"),
    "adam_epsilon": ("optimizer", "adam"),
}

# The least, and what is no longer allowed: a mean that forgets nothing never moves.
_BOUNDS = {
    "fp16_loss_scale": (1.0, math.inf),
    "momentum": (0.0, 1.0),
    "rmsprop_decay": (0.0, 1.0),
    "rmsprop_momentum": (0.0, 1.0),
    "adam_beta1": (0.0, 1.0),
    "adam_beta2": (0.0, 1.0),
}
MOST_SEED = 2**63 - 1
_POSITIVE = ("rmsprop_epsilon", "adam_epsilon", "gradient_clip")

# What a training that learns nothing has no use for.
_LEARNING = (
    "evaluate", "eval_during_training_every_n_steps", "stop_at_top_1_accuracy", "staged_vars", "variable_consistency",
    "gradient_repacking", "gradient_clip", "fp16_loss_scale", "fp16_enable_auto_loss_scale", "piecewise_learning_rate_schedule",
    "num_epochs_per_decay", "num_learning_rate_warmup_epochs",
)  # fmt: skip

# Variables that are told otherwise, and how.
_ADVICE: Mapping[str, str] = {
    "CUDA_VISIBLE_DEVICES": "gpus: every task sees its own",
    "CUDA_DEVICE_ORDER": "gpus: every task sees its own, by nvidia-smi's numbers",
    "TF_ENABLE_ONEDNN_OPTS": "onednn",
    "TF_GPU_THREAD_COUNT": "per_gpu_thread_count",
    "TF_GPU_THREAD_MODE": "gpu_thread_mode",
    "TF_CONFIG": "gpus and num_ps: every task has its own part",
}
# Read when a process is started, and tasks are forked from one that has been.
_TOO_LATE = ("LD_", "PYTHON", "MALLOC_", "GLIBC_TUNABLES", "DTFPERF_")
ZMQ_PRODUCER = "DTFPERF_ZMQ_PRODUCER"  # but this one a worker reads when it starts its producer: data=zmq


def check(spec: Fields) -> None:
    """Raise `SpecError` with what is wrong and what is allowed."""
    _check_dependents(spec)
    _check_engine(spec)
    if spec.forward_only:
        _check_forward_only(spec)
    _check_threads(spec)
    if not spec.command:  # a program's processes are its own
        for assignment in spec.environment:
            _check_variable(spec, *assignment.split("=", 1))
        learning_rate.check(spec)


def _is_usual(spec: Fields, name: str) -> bool:
    return bool(getattr(spec, name) == spec.__dataclass_fields__[name].default)


def _check_dependents(spec: Fields) -> None:
    for name, (other, value) in _ONLY_WITH.items():
        if not _is_usual(spec, name) and getattr(spec, other) != value:
            raise SpecError(
                f"{name} means nothing to {other}={_as_written(getattr(spec, other))}. It is for {other}={_as_written(value)}."
            )


def check_range(name: str, value: Any) -> None:
    """Of a number that `checks` has found to be one."""
    if name in _BOUNDS:
        least, below = _BOUNDS[name]
        if not least <= value < below:
            bounds = f"at least {least:g}" + (f" and below {below:g}" if math.isfinite(below) else "")
            raise SpecError(f"{name} must be {bounds}, not {value!r}")
    if name == "seed" and value > MOST_SEED:
        raise SpecError(f"seed must be at most {MOST_SEED}, the largest that TensorFlow takes, not {value!r}")
    if name in _POSITIVE and value == 0:
        raise SpecError(f"{name} must be more than 0")
    if name == "stop_at_top_1_accuracy" and not 0 < value <= 1:
        raise SpecError(f"{name} must lie between 0 and 1, not at {value!r}")


def _check_engine(spec: Fields) -> None:
    """TensorFlow 2's own strategies have no place for these."""
    if spec.mode.engine == VariableUpdate.engine:
        return
    for name in ("forward_only", "fp16_enable_auto_loss_scale"):
        if getattr(spec, name):
            raise SpecError(
                f"{name} is not for variable_update={spec.variable_update}, which is TensorFlow's own. Leave it out."
            )


def _check_forward_only(spec: Fields) -> None:
    for name in _LEARNING:
        if not _is_usual(spec, name):
            raise SpecError(f"forward_only trains nothing, so {name} means nothing to it. Leave one of them out.")


def _check_threads(spec: Fields) -> None:
    if spec.gpu_thread_mode == "global" and not _is_usual(spec, "per_gpu_thread_count"):
        raise SpecError(
            "per_gpu_thread_count means nothing to gpu_thread_mode=global, in which GPUs have no threads of their own"
        )


def _check_variable(spec: Fields, name: str, value: str) -> None:
    if name in _ADVICE:
        raise SpecError(f"environment cannot set {name}. Say {_ADVICE[name]}.")
    if name == ZMQ_PRODUCER:
        _check_producer(spec, value)
    elif name.startswith(_TOO_LATE):
        raise SpecError(
            f"environment cannot set {name}: it is read when a process is started, and tasks are forked. "
            "Set it for the whole host, with the cluster's `setup` lines."
        )


def _check_producer(spec: Fields, command: str) -> None:
    if spec.data != "zmq":
        raise SpecError(
            f"{ZMQ_PRODUCER} names the program that makes images for data=zmq: it means nothing to data={spec.data}"
        )
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise SpecError(f"{ZMQ_PRODUCER}={command} is no command: {exc}") from exc
    if not words:
        raise SpecError(f"{ZMQ_PRODUCER} is empty: it must be a program and its words, or be left out for our own producer")


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
