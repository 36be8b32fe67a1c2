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

    model: str = field(metadata=describe("name of the model: docs/models.md, or of an external command"))
    batch_size: int = field(metadata=describe("images per device and step; 0: an external command sets it", at_least=0))
    gpus: int = _option(1, "devices of the whole cluster, GPUs or shares of cores", at_least=1, at_most=1_000_000)
    num_ps: int = _count(0, "parameter servers")

    variable_update: str = _option("parameter_server", "way in which replicas share variables: docs/variable-update.md")
    cross_replica_sync: bool = _option(True, "`false`: workers apply their gradients without waiting for each other")
    variable_placement: str = _option("greedy", "server of each variable: greedy, round_robin, largest_first or split")
    local_parameter_device: str = _option("cpu", "place where a worker keeps fetched values: cpu or gpu")
    all_reduce_spec: str | None = _option(None, "algorithm that adds gradients")
    hierarchical_copy: bool = _option(False, "add within each half of the devices, then across")
    gradient_repacking: int = _count(0, "equal parts into which the gradients are cut before they are added; 0: not cut")
    agg_small_grads_max_bytes: int | None = _count(
        None, "largest size of a packed variable; none: see packing.py, 0: no packs", unit="bytes"
    )
    agg_small_grads_max_group: int | None = _count(
        None, "maximum number of variables in a pack; none: as many as fit", at_least=1
    )
    staged_vars: bool = _option(False, "fetch the variables during the previous step: they are one step old")
    variable_consistency: str = _option("strong", "`relaxed`: apply the gradients of the previous step")
    wire_precision: str = _option("fp32", "precision between tasks; variables, sums and updates are always fp32")

    data: str = _option("synthetic", "input: docs/inputs.md")
    data_dir: str | None = _option(None, "folder of the data set on the hosts, or s3://...")
    distortions: bool = _option(False, "random crops, mirroring and colours of images")
    resize_method: str = _option("bilinear", "nearest, bilinear, bicubic, area or round_robin")
    datasets_num_private_threads: int | None = _count(
        None, "separate threads for reading and decoding; none: the threads that train", at_least=1
    )
    datasets_prefetch_buffer_size: int = _count(2, "batches that are prefetched per device")

    data_format: str = _option("NHWC", "NHWC or NCHW")
    precision: str = _option("fp32", "precision of the arithmetic; variables are always fp32")
    fp16_loss_scale: float | None = _number(None, "factor of the loss in fp16; none: 128", at_least=1)
    fp16_enable_auto_loss_scale: bool = _option(False, "adjust the loss scale automatically")
    fp16_inc_loss_scale_every_n: int = _count(1000, "steps with finite gradients before the loss scale doubles", at_least=1)
    xla: bool = _option(False, "compile the operations that can be grouped")
    xla_compile: bool = _option(False, "compile the whole step of each tower")

    optimizer: str = _option("sgd", "sgd, momentum, rmsprop or adam")
    learning_rate: float = _number(0.005, "learning rate")
    weight_decay: float = _number(4e-5, "factor of the variables that is added to their gradients")
    # A mean that forgets nothing never moves: these decays are below 1.
    momentum: float = _number(0.9, "decay of the optimizer momentum", below=1)
    rmsprop_decay: float = _number(0.9, "decay of the mean square", below=1)
    rmsprop_momentum: float = _number(0.9, "momentum of rmsprop", below=1)
    rmsprop_epsilon: float = _number(1.0, "term in the denominator of rmsprop", above=0)
    adam_beta1: float = _number(0.9, "decay of the mean of gradients", below=1)
    adam_beta2: float = _number(0.999, "decay of the mean of their squares", below=1)
    adam_epsilon: float = _number(1e-8, "term in the denominator of adam", above=0)
    gradient_clip: float | None = _number(None, "largest absolute value of a gradient; none: no limit", above=0)
    piecewise_learning_rate_schedule: str | None = _option(None, "rates and the epochs between them, as 0.1;10;0.01")
    num_epochs_per_decay: float = _number(0.0, "epochs between two decays of the learning rate; 0: no decay")
    learning_rate_decay_factor: float = _number(0.0, "factor of each decay")
    minimum_learning_rate: float = _number(0.0, "minimum of the decay")
    num_learning_rate_warmup_epochs: float = _number(0.0, "epochs in which the learning rate grows linearly from zero")
    forward_only: bool = _option(False, "compute only the loss, without gradients and updates")

    num_intra_threads: int | None = _count(
        None, "threads within operations; none: the task's share of its host's cores", at_least=1
    )
    num_inter_threads: int | None = _count(
        None, "threads between operations; none: the task's share of its host's cores", at_least=1
    )
    cpu_affinity: bool = _option(True, "tasks run only on their share of the cores")
    onednn: bool | None = _option(None, "use TensorFlow's oneDNN kernels; none: TensorFlow decides")
    allow_growth: bool = _option(True, "take GPU memory when it is needed")
    gpu_thread_mode: str = _option("gpu_private", "threads that launch kernels: global, gpu_private or gpu_shared")
    per_gpu_thread_count: int = _count(2, "number of these threads for each GPU", at_least=1)
    environment: tuple[str, ...] = _option(
        (), "NAME=value for every task, in addition to the variables of its host: NCCL_ALGO=Ring"
    )

    own_model: str | None = _option(None, "kind of an own model, `layers` or `tensorflow`: docs/own-models.md", omit_empty=True)

    command: tuple[str, ...] = _option((), "an external command that trains: docs/command.md")
    command_dir: str | None = _option(None, "working directory of the command, on the hosts")
    rate_pattern: str | None = _option(None, "pattern of the lines with images/sec; none: that of tf_cnn_benchmarks")
    rate_of: str = _option("chief", "rule that makes one rate of the workers' numbers")
    role_flags: tuple[str, ...] | str | None = _option(
        None, "arguments that give tasks their roles; none: the flags of tf_cnn_benchmarks"
    )

    evaluate: bool = _option(False, "measure loss and accuracy on the test set after training, outside the measured steps")
    stop_at_top_1_accuracy: float | None = _number(None, "end at this accuracy on the test set, 0 to 1", above=0, at_most=1)
    eval_during_training_every_n_steps: int | None = _count(
        None, "measured steps between two evaluations, which are not measured", at_least=1
    )
    warmup_steps: int = _count(10, "steps before the measured ones")
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
