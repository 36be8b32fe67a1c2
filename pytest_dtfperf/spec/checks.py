"""What no training can be: refused when it is described, before anything starts."""

import re
import sys

from pytest_dtfperf.errors import SpecError, shown, unknown_name
from pytest_dtfperf.spec import all_reduce, command, numerics, own, rate_of, tables
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import INPUTS, MODE_OPTIONS, MODELS, VARIABLE_UPDATES

_CHOICES = {
    "model": MODELS,
    "own_model": own.KINDS,
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
    "rate_of": rate_of.RULES,
}

# Whole numbers and the least that each may be. None is allowed where it is the default.
_COUNTS = {
    "batch_size": 1, "gpus": 1, "num_ps": 0, "gradient_repacking": 0, "agg_small_grads_max_bytes": 0,
    "agg_small_grads_max_group": 1, "datasets_num_private_threads": 1, "datasets_prefetch_buffer_size": 0,
    "fp16_inc_loss_scale_every_n": 1, "num_intra_threads": 1, "num_inter_threads": 1, "per_gpu_thread_count": 1,
    "eval_during_training_every_n_steps": 1, "warmup_steps": 0, "steps": 1, "seed": 0,
}  # fmt: skip

_NUMBERS = (
    "fp16_loss_scale", "learning_rate", "weight_decay", "momentum", "rmsprop_decay", "rmsprop_momentum", "rmsprop_epsilon",
    "adam_beta1", "adam_beta2", "adam_epsilon", "gradient_clip", "num_epochs_per_decay", "learning_rate_decay_factor",
    "minimum_learning_rate", "num_learning_rate_warmup_epochs", "stop_at_top_1_accuracy",
)  # fmt: skip

_FLAGS = (
    "cross_replica_sync", "hierarchical_copy", "staged_vars", "distortions", "fp16_enable_auto_loss_scale", "xla",
    "xla_compile", "forward_only", "cpu_affinity", "allow_growth", "evaluate", "onednn",
)  # fmt: skip

_TEXTS = ("data_dir", "all_reduce_spec", "piecewise_learning_rate_schedule", "command_dir", "rate_pattern")

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)


def check(spec: Fields) -> None:
    """Raise `SpecError` with what is wrong and what is allowed."""
    _check_fields(spec)
    _check_devices(spec)
    _check_mode(spec)
    all_reduce.check(spec)
    numerics.check(spec)
    command.check(spec)
    if not spec.command:
        _check_input(spec)


def check_field(name: str, value: object, usual: object) -> None:
    """Raise `SpecError` if no spec can say this there, whatever else it says. `usual`: the field's default."""
    if value is None and usual is None:
        return
    if name in _CHOICES and not (isinstance(value, str) and value in _CHOICES[name]):
        raise SpecError(unknown_name(name, value, _CHOICES[name]))
    if name in _COUNTS and not _is_count(value, _COUNTS[name]):
        raise SpecError(f"{name} must be a whole number of at least {_COUNTS[name]}, not {shown(value)}")
    if name in _NUMBERS and not _is_number(value):
        raise SpecError(f"{name} must be a finite number of at least 0, not {shown(value)}")
    if name in _FLAGS and not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, not {shown(value)}")
    if name in _TEXTS and not (isinstance(value, str) and value):
        raise SpecError(f"{name} must be text, not {shown(value)}")
    if name == "environment":
        _check_environment(value)
    numerics.check_range(name, value)


def _check_environment(words: object) -> None:
    if not isinstance(words, tuple):
        raise SpecError(f"environment must be a list of words of the form NAME=value, not {shown(words)}")
    for word in words:
        if not (isinstance(word, str) and _ASSIGNMENT.fullmatch(word)):
            raise SpecError(f"environment must be words of the form NAME=value, not {shown(word)}")


def _check_fields(spec: Fields) -> None:
    for name, field in spec.__dataclass_fields__.items():
        value = getattr(spec, name)
        if spec.command and (name == "model" or (name == "batch_size" and value == 0)):
            continue  # the program's own affair
        if spec.own_model and name == "model":
            own.check_name(value)
            continue
        check_field(name, value, field.default)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max


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
        raise SpecError(f"variable_update={spec.variable_update} is never synchronous: say cross_replica_sync=false")
    if spec.hierarchical_copy and spec.mode.even_hierarchy and spec.gpus % 2:
        raise SpecError(
            f"hierarchical_copy of variable_update={spec.variable_update} adds the gradients of two halves of the devices, and "
            f"would leave one of {spec.gpus} out: use an even number of them, or variable_update=replicated"
        )
    if spec.fp16_enable_auto_loss_scale and not spec.mode.dynamic_loss_scale:
        raise SpecError(f"variable_update={spec.variable_update} has no dynamic loss scale: say fp16_loss_scale, a fixed one")
    for name in MODE_OPTIONS:
        if getattr(spec, name) != spec.__dataclass_fields__[name].default and name not in spec.mode.knows:
            knowing = [mode for mode, row in VARIABLE_UPDATES.items() if name in row.knows]
            raise SpecError(
                f"{name} means nothing to variable_update={spec.variable_update}. It is for {', '.join(knowing) or 'none'}."
            )


def _check_input(spec: Fields) -> None:
    if spec.own_model == own.TENSORFLOW and spec.data_format != "NHWC":
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
