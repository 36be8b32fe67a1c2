"""Checks of a spec: its fields, and combinations of precision, optimizer, threads, input and variable update."""

import math
import re
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from types import NoneType
from typing import Any, get_args, get_type_hints

from pytest_dtfperf.errors import SpecError, describe_unknown_name, show_value
from pytest_dtfperf.spec import all_reduce, command, learning_rate, tables
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import INPUTS, MODE_OPTIONS, MODELS, VARIABLE_UPDATES, VariableUpdate

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

# What a training that learns nothing has no use for.
_LEARNING = (
    "evaluate", "eval_during_training_every_n_steps", "stop_at_top_1_accuracy", "staged_vars", "variable_consistency",
    "gradient_repacking", "gradient_clip", "fp16_loss_scale", "fp16_enable_auto_loss_scale", "piecewise_learning_rate_schedule",
    "num_epochs_per_decay", "num_learning_rate_warmup_epochs",
)  # fmt: skip

# Variables that are set otherwise, and how.
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


def check_numerics(spec: Fields) -> None:
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


def _check_engine(spec: Fields) -> None:
    """Refuse fields that TensorFlow 2's own strategies do not have."""
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
        raise SpecError(f"environment cannot set {name}. Use {_ADVICE[name]}.")
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
        arguments = shlex.split(command)
    except ValueError as exc:
        raise SpecError(f"{ZMQ_PRODUCER}={command} is no command: {exc}") from exc
    if not arguments:
        raise SpecError(f"{ZMQ_PRODUCER} is empty: it must be a program and its arguments; without it, our own producer runs")


def _as_written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_CHOICES = {
    "model": MODELS,
    "own_model": tables.OWN_MODEL_KINDS,
    "variable_update": VARIABLE_UPDATES,
    "variable_placement": tuple(tables.VARIABLE_PLACEMENTS),
    "local_parameter_device": tables.LOCAL_PARAMETER_DEVICES,
    "variable_consistency": tables.VARIABLE_CONSISTENCIES,
    "wire_precision": tables.WIRE_PRECISIONS,
    "data": INPUTS,
    "resize_method": tables.RESIZE_METHODS,
    "data_format": tables.DATA_FORMATS,
    "precision": tables.PRECISIONS,
    "optimizer": tables.OPTIMIZERS,
    "gpu_thread_mode": tables.GPU_THREAD_MODES,
    "rate_of": command.RATE_RULES,
}

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def check(spec: Fields) -> None:
    """Raise `SpecError` with what is wrong and what is allowed."""
    _check_fields(spec)
    _check_devices(spec)
    _check_mode(spec)
    all_reduce.check(spec)
    check_numerics(spec)
    command.check(spec)
    if not spec.command:
        _check_input(spec)


def check_field(name: str, value: object, usual: object) -> None:
    """Raise `SpecError` if no spec can have this value there, with any other fields. `usual`: the field's default."""
    if value is None and usual is None:
        return
    if name in _CHOICES and not (isinstance(value, str) and value in _CHOICES[name]):
        raise SpecError(describe_unknown_name(name, value, _CHOICES[name]))
    hint, limits = _hints()[name], Fields.__dataclass_fields__[name].metadata.get("range", {})
    if hint is bool and not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {show_value(value)}")
    if hint is int:
        _check_whole_number(name, value, limits)
    if hint is float:
        _check_number(name, value, limits)
    if hint is str and name not in _CHOICES and not (isinstance(value, str) and value):
        raise SpecError(f"{name} must be text, not {show_value(value)}")
    if name == "environment":
        _check_environment(value)


@cache
def _hints() -> Mapping[str, Any]:
    """Return the type of each field: T of a field that is T or None."""
    hints = get_type_hints(Fields)
    kinds = {name: [each for each in get_args(hint) if each is not NoneType] for name, hint in hints.items()}
    return {name: kinds[name][0] if len(kinds[name]) == 1 else hint for name, hint in hints.items()}


def _check_whole_number(name: str, value: object, limits: Mapping[str, float]) -> None:
    least = max(1, limits["at_least"]) if name == "batch_size" else limits["at_least"]  # 0 is for external commands only
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"{name} must be a whole number of at least {least}, not {show_value(value)}")
    if value > limits.get("at_most", value):
        raise SpecError(f"{name} must be at most {limits['at_most']}, not {show_value(value)}")


def _check_number(name: str, value: object, limits: Mapping[str, float]) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= sys.float_info.max:
        raise SpecError(f"{name} must be a finite number of at least 0, not {show_value(value)}")
    if value <= limits.get("above", -1) or value > limits.get("at_most", value):
        bounds = f"more than {limits['above']:g}" + (f" and at most {limits['at_most']:g}" if "at_most" in limits else "")
        raise SpecError(f"{name} must be {bounds}, not {value!r}")
    if value < limits["at_least"] or value >= limits.get("below", math.inf):
        bounds = f"at least {limits['at_least']:g}" + (f" and below {limits['below']:g}" if "below" in limits else "")
        raise SpecError(f"{name} must be {bounds}, not {value!r}")


def _check_environment(variables: object) -> None:
    if not isinstance(variables, tuple):
        raise SpecError(f"environment must be a list of texts of the form NAME=value, not {show_value(variables)}")
    for word in variables:
        if not (isinstance(word, str) and _ASSIGNMENT.fullmatch(word)):
            raise SpecError(f"environment must be texts of the form NAME=value, not {show_value(word)}")


def _check_fields(spec: Fields) -> None:
    for name, field in spec.__dataclass_fields__.items():
        value = getattr(spec, name)
        if spec.command and (name == "model" or (name == "batch_size" and value == 0)):
            continue  # the program's own affair
        if spec.own_model and name == "model":
            tables.check_own_model_name(value)
            continue
        check_field(name, value, field.default)


def _check_devices(spec: Fields) -> None:
    many = spec.gpus > 1 and not spec.in_one_process
    if spec.mode.parameter_servers and spec.num_ps == 0 and (many or not spec.mode.alone):
        raise SpecError(f"variable_update={spec.variable_update} with gpus={spec.gpus} needs num_ps of at least 1")
    if not spec.mode.parameter_servers and spec.num_ps:
        raise SpecError(f"variable_update={spec.variable_update} has no parameter servers: num_ps must be 0, not {spec.num_ps}")


def _check_mode(spec: Fields) -> None:
    if not spec.cross_replica_sync and not spec.mode.asynchronous:
        raise SpecError(f"variable_update={spec.variable_update} is always synchronous: cross_replica_sync=false is not for it")
    if spec.cross_replica_sync and not spec.mode.synchronous:
        raise SpecError(f"variable_update={spec.variable_update} is never synchronous: set cross_replica_sync=false")
    if spec.hierarchical_copy and spec.mode.even_hierarchy and spec.gpus % 2:
        raise SpecError(
            f"hierarchical_copy of variable_update={spec.variable_update} adds the gradients of two halves of the devices, and "
            f"would leave one of {spec.gpus} out: use an even number of them, or variable_update=replicated"
        )
    if spec.fp16_enable_auto_loss_scale and not spec.mode.dynamic_loss_scale:
        raise SpecError(f"variable_update={spec.variable_update} has no dynamic loss scale: set fp16_loss_scale, a fixed one")
    for name in MODE_OPTIONS:
        if getattr(spec, name) != spec.__dataclass_fields__[name].default and name not in spec.mode.knows:
            knowing = [mode for mode, row in VARIABLE_UPDATES.items() if name in row.knows]
            raise SpecError(
                f"{name} means nothing to variable_update={spec.variable_update}. It is for {', '.join(knowing) or 'none'}."
            )


def _check_input(spec: Fields) -> None:
    if spec.own_model == tables.TENSORFLOW and spec.data_format != "NHWC":
        raise SpecError(
            f"{spec.model} computes in whatever order its own layers and operations have, and is given images in "
            f"data_format=NHWC, not {spec.data_format}"
        )
    if not spec.own_model and not tables.can_feed(spec.data, spec.model):
        allowed = tables.inputs_of(spec.model)
        raise SpecError(f"{spec.model} cannot be fed from data={spec.data}. Allowed: {', '.join(allowed)}.")
    if spec.mode.inputs is not None and spec.data not in spec.mode.inputs:
        raise SpecError(
            f"variable_update={spec.variable_update} cannot be fed from data={spec.data}. "
            f"Allowed: {', '.join(spec.mode.inputs)}."
        )
    if spec.input.needs_data_dir and spec.data_dir is None:
        raise SpecError(f"data={spec.data} needs data_dir, the folder of its files on the hosts")
    if spec.evaluates and not spec.input.test_set:
        raise SpecError(f"evaluate=true needs real data: accuracy on {spec.data} images means nothing")
    if spec.stop_at_top_1_accuracy is not None and spec.eval_during_training_every_n_steps is None:
        raise SpecError("stop_at_top_1_accuracy needs eval_during_training_every_n_steps: how often to evaluate")
