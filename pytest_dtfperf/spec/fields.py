"""The fields of a training with their units and ranges, and what follows from them at once.

`checks.py` has the combinations of fields that are possible, `spec.py` the forms in which a spec is written.
"""

from dataclasses import dataclass, field
from typing import Any

from pytest_dtfperf.codec import describe
from pytest_dtfperf.spec.tables import INPUTS, VARIABLE_UPDATES, Input, VariableUpdate

MAX_SEED = 2**63 - 1  # the largest that TensorFlow accepts


def _option(default: Any, description: str = "", **range_: Any) -> Any:
    """Declare a field with a default. A field without a description has tf_cnn_benchmarks' name and meaning."""
    return field(default=default, metadata=describe(description, **range_))


def _count(default: int | None, description: str = "", *, at_least: int = 0, **more: Any) -> Any:
    return _option(default, description, at_least=at_least, at_most=10**18, **more)


def _number(default: float | None, description: str = "", *, at_least: float = 0, **more: Any) -> Any:
    return _option(default, description, at_least=at_least, **more)


@dataclass(frozen=True, kw_only=True)
class Fields:
    """One training: model, input, devices, strategy and length, whether or not it is possible.

    docs/training.md describes all fields.
    """

    model: str
    batch_size: int = field(metadata=describe("images per device and step; 0: an external command sets it", at_least=0))
    gpus: int = _option(1, "devices of the whole cluster, GPUs or shares of cores", at_least=1, at_most=1_000_000)
    num_ps: int = _count(0, "parameter servers")

    variable_update: str = _option("parameter_server")
    cross_replica_sync: bool = _option(True, "`false`: workers apply their gradients without waiting for each other")
    variable_placement: str = _option("greedy")
    local_parameter_device: str = _option("cpu")
    all_reduce_spec: str | None = _option(None)
    hierarchical_copy: bool = _option(False)
    gradient_repacking: int = _count(0, "equal parts into which the gradients are cut before they are added; 0: as they are")
    agg_small_grads_max_bytes: int | None = _count(
        None, "larger variables are never packed; none: see packing.py, 0: none is packed", unit="bytes"
    )
    agg_small_grads_max_group: int | None = _count(None, "most variables in a pack; none: as many as have room", at_least=1)
    staged_vars: bool = _option(False, "fetch the variables during the step before: they are one step old")
    variable_consistency: str = _option("strong", "`relaxed`: apply the gradients of the step before")
    wire_precision: str = _option("fp32", "of values and gradients between tasks; variables, sums and updates are always fp32")

    data: str = _option("synthetic")
    data_dir: str | None = _option(None, "on the hosts")
    distortions: bool = _option(False)
    resize_method: str = _option("bilinear")
    datasets_num_private_threads: int | None = _count(None, at_least=1)
    datasets_prefetch_buffer_size: int = _count(2, "batches")

    data_format: str = _option("NHWC")
    precision: str = _option("fp32", "of the arithmetic; variables are always kept in fp32")
    fp16_loss_scale: float | None = _number(None, at_least=1)
    fp16_enable_auto_loss_scale: bool = _option(False)
    fp16_inc_loss_scale_every_n: int = _count(1000, at_least=1)
    xla: bool = _option(False, "compile the operations that can be grouped")
    xla_compile: bool = _option(False, "compile the whole step of each tower")

    optimizer: str = _option("sgd")
    learning_rate: float = _number(0.005)
    weight_decay: float = _number(4e-5)
    # A mean that forgets nothing never moves: these decays are below 1.
    momentum: float = _number(0.9, below=1)
    rmsprop_decay: float = _number(0.9, below=1)
    rmsprop_momentum: float = _number(0.9, below=1)
    rmsprop_epsilon: float = _number(1.0, above=0)
    adam_beta1: float = _number(0.9, below=1)
    adam_beta2: float = _number(0.999, below=1)
    adam_epsilon: float = _number(1e-8, above=0)
    gradient_clip: float | None = _number(None, above=0)
    piecewise_learning_rate_schedule: str | None = _option(None)
    num_epochs_per_decay: float = _number(0.0)
    learning_rate_decay_factor: float = _number(0.0)
    minimum_learning_rate: float = _number(0.0)
    num_learning_rate_warmup_epochs: float = _number(0.0)
    forward_only: bool = _option(False, "neither gradients nor updates")

    num_intra_threads: int | None = _count(None, "none: the task's share of its host's cores", at_least=1)
    num_inter_threads: int | None = _count(None, at_least=1)
    cpu_affinity: bool = _option(True, "tasks keep to their share of the cores")
    onednn: bool | None = _option(None, "none: TensorFlow decides")
    allow_growth: bool = _option(True)
    gpu_thread_mode: str = _option("gpu_private")
    per_gpu_thread_count: int = _count(2, at_least=1)
    environment: tuple[str, ...] = _option(
        (), "NAME=value for every task, in addition to the variables of its host: NCCL_ALGO=Ring"
    )

    own_model: str | None = _option(
        None, "`layers` or `tensorflow` of a model of your own: docs/own-models.md", omit_empty=True
    )

    command: tuple[str, ...] = _option((), "an external command that trains: docs/command.md")
    command_dir: str | None = _option(None, "its working directory, on the hosts")
    rate_pattern: str | None = _option(None, "the lines with its images/sec; none: those of tf_cnn_benchmarks")
    rate_of: str = _option("chief", "how the numbers of its workers become the cluster's")
    role_flags: tuple[str, ...] | str | None = _option(
        None, "how its tasks receive their roles; none: the flags of tf_cnn_benchmarks"
    )

    evaluate: bool = _option(False, "measure loss and accuracy on the test set after training, outside the measured steps")
    stop_at_top_1_accuracy: float | None = _number(None, "end at this accuracy on the test set, 0 to 1", above=0, at_most=1)
    eval_during_training_every_n_steps: int | None = _count(None, "outside the measured steps, too", at_least=1)
    warmup_steps: int = _count(10)
    steps: int = _count(100, "measured steps", at_least=1)
    seed: int = _option(1234, "`tf_random_seed` of tf_cnn_benchmarks", at_least=0, at_most=MAX_SEED)

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
