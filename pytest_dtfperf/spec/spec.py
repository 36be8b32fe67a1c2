"""What to train, and on how much. Goes down to the hosts as JSON, so it needs nothing but Python there."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from pytest_dtfperf.spec.checks import check, check_field
from pytest_dtfperf.spec.command import COMMAND_FIELDS, program
from pytest_dtfperf.spec.tables import INPUTS, VARIABLE_UPDATES, Input, VariableUpdate

# Stands in every key, in this order. Whatever else a rate depends on stands in it only where it is not as usual, so that a new
# option leaves the baselines of old specs where they are.
KEY_FIELDS = (
    "model", "batch_size", "gpus", "num_ps", "variable_update", "data", "data_format", "precision", "xla", "optimizer",
    "cross_replica_sync", "variable_placement",
)  # fmt: skip

# Does not change what is measured, only from where, how long, or what is looked at afterwards.
NOT_IN_KEY = frozenset({
    "data_dir", "learning_rate", "evaluate", "stop_at_top_1_accuracy", "eval_during_training_every_n_steps", "warmup_steps",
    "steps", "seed", "command_dir", "rate_pattern", "rate_of", "role_flags",
})  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One training: model, input, devices, strategy and length. Raises `SpecError` if no such training can be.

    What is not explained here has tf_cnn_benchmarks' name, meaning and default; docs/training.md tells all of it.
    """

    model: str
    batch_size: int  # images per device and step
    gpus: int = 1  # devices of the whole cluster, GPUs or shares of cores
    num_ps: int = 0  # parameter servers

    variable_update: str = "parameter_server"
    cross_replica_sync: bool = True  # False: workers apply their gradients without waiting for each other
    variable_placement: str = "greedy"
    local_parameter_device: str = "cpu"
    all_reduce_spec: str | None = None
    hierarchical_copy: bool = False
    gradient_repacking: int = 0  # into how many equal parts the gradients are cut before they are added; 0: as they are
    agg_small_grads_max_bytes: int | None = None  # larger variables are never packed; None: see packing.py, 0: none is
    agg_small_grads_max_group: int | None = None  # most variables in a pack; None: as many as have room
    staged_vars: bool = False  # fetch the variables while the step before is under way: they are one step old
    variable_consistency: str = "strong"  # relaxed: apply the gradients of the step before

    data: str = "synthetic"
    data_dir: str | None = None  # on the hosts
    distortions: bool = False
    resize_method: str = "bilinear"
    datasets_num_private_threads: int | None = None
    datasets_prefetch_buffer_size: int = 2  # batches

    data_format: str = "NHWC"
    precision: str = "fp32"  # of the arithmetic; variables are always kept in fp32
    fp16_loss_scale: float | None = None
    fp16_enable_auto_loss_scale: bool = False
    fp16_inc_loss_scale_every_n: int = 1000
    xla: bool = False  # compile what can be grouped
    xla_compile: bool = False  # compile each tower's whole step

    optimizer: str = "sgd"
    learning_rate: float = 0.005
    weight_decay: float = 4e-5
    momentum: float = 0.9
    rmsprop_decay: float = 0.9
    rmsprop_momentum: float = 0.9
    rmsprop_epsilon: float = 1.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    gradient_clip: float | None = None
    piecewise_learning_rate_schedule: str | None = None
    num_epochs_per_decay: float = 0.0
    learning_rate_decay_factor: float = 0.0
    minimum_learning_rate: float = 0.0
    num_learning_rate_warmup_epochs: float = 0.0
    forward_only: bool = False  # neither gradients nor updates

    num_intra_threads: int | None = None  # None: the task's share of its host's cores
    num_inter_threads: int | None = None
    cpu_affinity: bool = True  # tasks keep to their share of the cores
    onednn: bool | None = None  # None: as TensorFlow decides
    allow_growth: bool = True
    gpu_thread_mode: str = "gpu_private"
    per_gpu_thread_count: int = 2
    environment: tuple[str, ...] = ()  # NAME=value of every task, on top of its host's: NCCL_ALGO=Ring

    command: tuple[str, ...] = ()  # another's program, which is run instead of our training: docs/command.md
    command_dir: str | None = None  # where it runs, on the hosts
    rate_pattern: str | None = None  # the lines in which it says its images/sec; None: tf_cnn_benchmarks'
    rate_of: str = "chief"  # how its workers' numbers become the cluster's
    role_flags: tuple[str, ...] | str | None = None  # how its tasks are told who they are; None: tf_cnn_benchmarks' flags

    evaluate: bool = False  # measure loss and accuracy on the test set once training is over, outside the measured steps
    stop_at_top_1_accuracy: float | None = None  # end when the test set is answered so well, 0 to 1
    eval_during_training_every_n_steps: int | None = None  # outside the measured steps, too
    warmup_steps: int = 10
    steps: int = 100  # measured steps
    seed: int = 1234  # tf_cnn_benchmarks' tf_random_seed

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def check_field(cls, name: str, value: object) -> None:
        """Raise `SpecError` if no spec can have this value there."""
        check_field(name, value, cls.__dataclass_fields__[name].default)

    @property
    def key(self) -> str:
        """The part of the spec a rate depends on, as one line: what a baseline is stored under."""
        unusual = [name for name in self._unusual if name in UNUSUAL_KEY_FIELDS]
        return " ".join(f"{name}={word_of(getattr(self, name))}" for name in (*KEY_FIELDS, *unusual))

    @property
    def mode(self) -> VariableUpdate:
        """What the variable update needs and knows."""
        return VARIABLE_UPDATES[self.variable_update]

    @property
    def input(self) -> Input:
        """What the input needs and fixes."""
        return INPUTS[self.data]

    @property
    def in_one_process(self) -> bool:
        """Whether all devices belong to one worker process, and so are on one host."""
        return self.mode.one_process or (self.mode.local and self.num_ps == 0 and not self.command)

    @property
    def in_lockstep(self) -> bool:
        """Whether every step of a worker waits for all others."""
        return self.cross_replica_sync and self.mode.lockstep and not self.forward_only

    @property
    def evaluates(self) -> bool:
        """Whether the test set is looked at, after training or within it."""
        return self.evaluate or self.eval_during_training_every_n_steps is not None

    @property
    def label(self) -> str:
        """A short name for people: `inception3 b8 gpus=2 num_ps=1 parameter_server`, and what is unusual about it."""
        batch = [f"b{self.batch_size}"] if self.batch_size else []
        words = [self.model, *batch, f"gpus={self.gpus}", f"num_ps={self.num_ps}", self.variable_update]
        said = {"model", "batch_size", "gpus", "num_ps", "variable_update"}
        silent = {"data_format", "optimizer", *(NOT_IN_KEY - {"evaluate", "stop_at_top_1_accuracy"}), *COMMAND_FIELDS}
        if self.command and program(self.command) != self.model:
            words.append(f"command={program(self.command)}")
        words += [f"{name}={word_of(getattr(self, name))}" for name in self._unusual if name not in said | silent]
        return " ".join(words)

    @property
    def _unusual(self) -> list[str]:
        """Names of the fields that are not as usual, in their order."""
        return [field.name for field in fields(self) if getattr(self, field.name) != field.default]

    def but(self, **changes: Any) -> "Spec":
        """The same training with some things changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Of an older version, too: what it did not know is as usual."""
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
        return cls(**values)


def word_of(value: object) -> str:
    """A field's value as it stands in keys and labels."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return re.sub(r"[\s%]", lambda blank: f"%{ord(blank[0]):02X}", ",".join(map(str, value)))  # a key is cut at its blanks
    return str(value)


# Stands in a key, behind the others, where it is not as usual.
UNUSUAL_KEY_FIELDS = tuple(field.name for field in fields(Spec) if field.name not in NOT_IN_KEY.union(KEY_FIELDS))
