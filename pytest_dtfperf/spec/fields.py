"""The fields of a training, and what follows from them at once. Possible values and how they are written: `spec.py`."""

from dataclasses import dataclass

from pytest_dtfperf.spec.tables import INPUTS, VARIABLE_UPDATES, Input, VariableUpdate


@dataclass(frozen=True, kw_only=True)
class Fields:
    """One training: model, input, devices, strategy and length, whether or not it can be.

    What is not explained here has tf_cnn_benchmarks' name, meaning and default; docs/training.md describes all of it.
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
    wire_precision: str = "fp32"  # of values and gradients between tasks; variables, sums and updates are always fp32

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

    own_model: str | None = None  # the model is one of whoever tests, "layers" or "tensorflow": docs/own-models.md

    command: tuple[str, ...] = ()  # an external command, which is run instead of our training: docs/command.md
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
