"""What to train, and on how much. Goes down to the hosts as JSON, so it needs nothing but Python there."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self

from pytest_dtfperf.errors import SpecError, unknown_name


@dataclass(frozen=True)
class Model:
    """A network: where its code is, and what it trains on unless told otherwise."""

    implementation: str  # "module:Class", a string so that naming a model imports no TensorFlow
    batch_size: int  # images per device and step; tf_cnn_benchmarks' or the report's protocol
    data: tuple[str, ...]  # the inputs it can be fed from
    optimizer: str = "sgd"
    learning_rate: float = 0.005  # tf_cnn_benchmarks' default


@dataclass(frozen=True)
class VariableUpdate:
    """How replicas share their variables: where its code is, and what processes it is made of."""

    implementation: str
    parameter_servers: bool  # needs at least one ps task
    one_process: bool  # all devices belong to one worker process
    asynchronous: bool = False  # knows cross_replica_sync=False


_MODELS = "pytest_dtfperf.training.models"
_UPDATES = "pytest_dtfperf.training.variable_update"
_INPUTS = "pytest_dtfperf.training.inputs"

MODELS: Mapping[str, Model] = {
    "inception3": Model(f"{_MODELS}.inception:InceptionV3", batch_size=64, data=("synthetic",)),
    "mnist": Model(
        f"{_MODELS}.mnist:DeepMnist",
        batch_size=64,
        data=("synthetic", "mnist"),
        optimizer="adam",
        learning_rate=1e-4,  # the TensorFlow tutorial's, which the 2017 report trains
    ),
    "trivial": Model(f"{_MODELS}.trivial:Trivial", batch_size=32, data=("synthetic",)),
}

VARIABLE_UPDATES: Mapping[str, VariableUpdate] = {
    "parameter_server": VariableUpdate(
        f"{_UPDATES}.parameter_server:ParameterServer", parameter_servers=True, one_process=False, asynchronous=True
    ),
    "replicated": VariableUpdate(f"{_UPDATES}.replicated:Replicated", parameter_servers=False, one_process=True),
}

INPUTS: Mapping[str, str] = {
    "synthetic": f"{_INPUTS}.synthetic:Synthetic",
    "mnist": f"{_INPUTS}.mnist:IdxFiles",
}

DATA_FORMATS = ("NHWC", "NCHW")
PRECISIONS = ("fp32",)
OPTIMIZERS = ("adam", "momentum", "sgd")
VARIABLE_PLACEMENTS = ("greedy", "round_robin")  # over parameter servers: by bytes (GreedyLoadBalancing), or in turn

# What a rate depends on. Steps, seed and the place of the data set do not change what is measured, only how long or where.
KEY_FIELDS = (
    "model", "batch_size", "gpus", "num_ps", "variable_update", "data", "data_format", "precision", "xla", "optimizer",
    "cross_replica_sync", "variable_placement",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One training: model, input, devices, strategy and length. Raises `SpecError` if no such training can be."""

    model: str
    batch_size: int  # images per device and step
    gpus: int = 1  # devices of the whole cluster, GPUs or shares of cores
    num_ps: int = 0  # parameter servers
    variable_update: str = "parameter_server"
    cross_replica_sync: bool = True  # False: workers apply their gradients without waiting for each other
    variable_placement: str = "greedy"
    data: str = "synthetic"
    data_dir: str | None = None  # on the hosts
    data_format: str = "NHWC"
    precision: str = "fp32"
    xla: bool = False
    optimizer: str = "sgd"
    learning_rate: float = 0.005
    weight_decay: float = 4e-5  # tf_cnn_benchmarks' default
    evaluate: bool = False  # measure accuracy on the test set once training is over, outside the measured steps
    warmup_steps: int = 10
    steps: int = 100  # measured steps
    seed: int = 1234  # tf_cnn_benchmarks' tf_random_seed

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)
        _check_combination(self)

    @property
    def key(self) -> str:
        """The part of the spec a rate depends on, as one line: what a baseline is stored under."""
        return " ".join(f"{name}={_word(getattr(self, name))}" for name in KEY_FIELDS)

    @property
    def mode(self) -> VariableUpdate:
        """What the variable update needs and knows."""
        return VARIABLE_UPDATES[self.variable_update]

    @property
    def label(self) -> str:
        """A short name for people: `inception3 b8 gpus=2 num_ps=1 parameter_server`, and what is unusual about it."""
        words = [self.model, f"b{self.batch_size}", f"gpus={self.gpus}", f"num_ps={self.num_ps}", self.variable_update]
        unusual = ("data", "evaluate", "cross_replica_sync", "variable_placement", "precision", "xla")
        defaults = {field.name: field.default for field in fields(Spec)}
        words += [f"{name}={_word(getattr(self, name))}" for name in unusual if getattr(self, name) != defaults[name]]
        return " ".join(words)

    def but(self, **changes: Any) -> "Spec":
        """The same training with some things changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(spec: Spec) -> None:
    allowed = {
        "model": MODELS,
        "variable_update": VARIABLE_UPDATES,
        "variable_placement": VARIABLE_PLACEMENTS,
        "data": INPUTS,
        "data_format": DATA_FORMATS,
        "precision": PRECISIONS,
        "optimizer": OPTIMIZERS,
    }
    for name, known in allowed.items():
        if getattr(spec, name) not in known:
            raise SpecError(unknown_name(name, getattr(spec, name), known))


def _check_numbers(spec: Spec) -> None:
    for name, least in {"batch_size": 1, "gpus": 1, "num_ps": 0, "warmup_steps": 0, "steps": 1}.items():
        value = getattr(spec, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise SpecError(f"{name} must be a whole number of at least {least}, not {value!r}")
    for name in ("learning_rate", "weight_decay"):
        value = getattr(spec, name)
        if not (math.isfinite(value) and value >= 0):
            raise SpecError(f"{name} must be a finite number of at least 0, not {value!r}")


def _check_combination(spec: Spec) -> None:
    if spec.mode.parameter_servers and spec.num_ps == 0 and spec.gpus > 1:
        raise SpecError(f"variable_update={spec.variable_update} over {spec.gpus} devices needs num_ps of at least 1")
    if not spec.mode.parameter_servers and spec.num_ps:
        raise SpecError(f"variable_update={spec.variable_update} has no parameter servers: num_ps must be 0, not {spec.num_ps}")
    if not spec.cross_replica_sync and not spec.mode.asynchronous:
        raise SpecError(f"variable_update={spec.variable_update} is always synchronous: cross_replica_sync=false is not for it")
    if spec.data not in MODELS[spec.model].data:
        raise SpecError(f"{spec.model} cannot be fed from data={spec.data}. Allowed: {', '.join(MODELS[spec.model].data)}.")
    if spec.data != "synthetic" and spec.data_dir is None:
        raise SpecError(f"data={spec.data} needs data_dir, the folder of its files on the hosts")
    if spec.evaluate and spec.data == "synthetic":
        raise SpecError("evaluate=true needs real data: accuracy on synthetic images means nothing")


@dataclass(frozen=True, kw_only=True)
class TaskOrder:
    """What one task is told: the training, its own part in it, and who the others are."""

    run: str  # id of the run
    job: str  # "ps" or "worker"
    index: int
    spec: Spec
    cluster: Mapping[str, tuple[str, ...]]  # job -> "address:port" of each of its tasks; empty for a lone process
    device: str = "cpu"  # "cpu" or "gpu": what does the arithmetic here. A ps always computes on its CPU
    num_devices: int = 1  # of this task
    threads: int = 1  # intra_op and inter_op threads of the task: its share of the host's cores
    sleep_s: float = 0.0  # a planted slow-down: sleep so long within every step, to see that the alarm works
    checkpoint: str | None = None  # the chief saves the trained variables there (npz, by name)

    @property
    def name(self) -> str:
        return f"{self.job}:{self.index}"

    @property
    def is_chief(self) -> bool:
        return self.job == "worker" and self.index == 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"spec": self.spec.to_json(), "cluster": {job: list(at) for job, at in self.cluster.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        cluster = {job: tuple(at) for job, at in data["cluster"].items()}
        return cls(**{**data, "spec": Spec.from_json(data["spec"]), "cluster": cluster})
