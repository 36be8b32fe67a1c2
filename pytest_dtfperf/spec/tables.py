"""Tables of what can be trained: models, variable updates, inputs. Strings name the code, so that nothing is imported.

A model of the user, `train(model=small_cnn)`, is known by the name that Python imports it by, `my_models.small_cnn`: its
`Spec.model`. Names of the package's models have no dot before an identifier, so they differ. See docs/own-models.md.
"""

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_dtfperf.codec import JsonData
from pytest_dtfperf.errors import SpecError, UsageError, show_value
from pytest_dtfperf.extensions import Table

# How gradients may be added over devices: spec/all_reduce.py.
ALGORITHMS = ("nccl", "nccl/xring", "nccl/rechd", "nccl/pscpu", "xring", "pscpu", "psgpu", "pscpu/pscpu", "collective")


@dataclass(frozen=True)
class Model:
    """A network: where its code is, and what it trains on by default."""

    implementation: str  # "module:Class", a string so that naming a model imports no TensorFlow
    batch_size: int  # images per device and step; tf_cnn_benchmarks' or the report's protocol
    data: tuple[str, ...]  # the inputs it can be fed from
    optimizer: str = "sgd"
    learning_rate: float = 0.005  # tf_cnn_benchmarks' default


@dataclass(frozen=True)
class VariableUpdate:
    """How replicas share their variables: where its code is, what processes it is made of, and which fields it knows."""

    implementation: str
    parameter_servers: bool = False  # needs at least one ps task
    alone: bool = True  # ... but for a single device
    local: bool = False  # ... or, without any, one worker process with all devices
    one_process: bool = False  # all devices belong to one worker process
    one_device: bool = False  # every device has a worker process of its own
    one_cpu: bool = False  # on hosts without GPUs it is so, too
    workers_communicate: bool = False  # workers talk to each other, not to parameter servers alone
    single_session: bool = False  # the chief's session computes on all workers, which only provide their devices
    synchronous: bool = True  # knows cross_replica_sync=True
    asynchronous: bool = False  # knows cross_replica_sync=False
    lockstep: bool = True  # a synchronous step waits for the other workers
    coordinated: bool = False  # a coordinator gives each worker its next step as soon as it is ready: the faster do more
    # Into how many pieces what a server has is cut, where the placement cuts: each piece is updated and goes back to the
    # workers while the next one still comes. None: into those that the placement makes for balance.
    pieces_per_server: int | None = None
    ends_apart: bool = False  # a step ends for each worker when the new values have reached it, whenever that is for others
    engine: str = "pytest_dtfperf.training.graph:GraphTraining"
    knows: frozenset[str] = frozenset()  # of MODE_OPTIONS
    all_reduce: tuple[str, ...] = ()  # the algorithms that all_reduce_spec may name
    all_reduce_shards: tuple[str, ...] | None = None  # those of them that may cut tensors into parts; None: all
    all_reduce_by_size: bool = False  # one for each range of sizes
    even_hierarchy: bool = False  # hierarchical_copy is for an even number of devices
    inputs: tuple[str, ...] | None = None  # that can feed it; None: all
    keeps_threads: bool = False  # what is asked of a server keeps a thread of it until it is done
    dynamic_loss_scale: bool = True  # knows fp16_enable_auto_loss_scale
    requires: str | None = None  # a module that the hosts must have beside TensorFlow, or else the test is skipped
    install: str | None = None  # how they get it

    @property
    def has_variable_placement(self) -> bool:
        """Whether variables are on parameter servers, placed by us and not by TensorFlow's own strategy."""
        return self.parameter_servers and self.engine == VariableUpdate.engine


@dataclass(frozen=True)
class VariablePlacement:
    """Which parameter server holds which variable: where its code is, and which modes follow it."""

    implementation: str  # a function, as training/placement.py has it
    in_strategies: bool = False  # else TensorFlow 2's own strategy, which knows turns alone, goes on placing in turn
    cuts: bool = False  # large variables into pieces


@dataclass(frozen=True)
class Input:
    """What is trained on: where its code is, and what it fixes."""

    implementation: str
    needs_data_dir: bool = False
    image_shape: tuple[int, int, int] | None = None  # height, width, channels; None: any that the model wants
    classes: int | None = None  # None: as many as the model has
    test_set: bool = False  # accuracy can be measured on it
    models: tuple[str, ...] = ()  # that it feeds besides those whose rows name it: ours do not know another package's input
    images_per_epoch: int | None = None  # of the original data set, where a learning-rate rule counts in epochs


_MODELS = "pytest_dtfperf.training.models"
_UPDATES = "pytest_dtfperf.training.variable_update"
_STRATEGIES = "pytest_dtfperf.training.strategies"
_INPUTS = "pytest_dtfperf.training.inputs"
_PLACEMENT = "pytest_dtfperf.training.placement"

# Made in any size, so that every model can have them; and what only some can have.
_MADE = ("synthetic", "synthetic-host", "python-queue", "python-dataset", "zmq")
_IMAGENET, _CIFAR10, _MNIST = (*_MADE, "imagenet"), (*_MADE, "cifar10"), (*_MADE, "mnist")

# Batch sizes and learning rates are tf_cnn_benchmarks', but where another source is named.
_OUR_MODELS: Mapping[str, Model] = {
    "trivial": Model(f"{_MODELS}.sequential:Trivial", batch_size=32, data=(*_IMAGENET, "cifar10")),
    "mnist": Model(
        f"{_MODELS}.sequential:DeepMnist",
        batch_size=64,
        data=_MNIST,
        optimizer="adam",
        learning_rate=1e-4,  # the TensorFlow tutorial's, which the 2017 report trains
    ),
    "mnist_softmax": Model(f"{_MODELS}.sequential:MnistSoftmax", batch_size=100, data=_MNIST, learning_rate=0.5),  # as well
    "lenet": Model(f"{_MODELS}.sequential:LeNet", batch_size=32, data=_MNIST),
    "alexnet": Model(f"{_MODELS}.sequential:AlexNet", batch_size=512, data=(*_IMAGENET, "cifar10")),
    "overfeat": Model(f"{_MODELS}.sequential:OverFeat", batch_size=32, data=_IMAGENET),
    "vgg11": Model(f"{_MODELS}.sequential:vgg11", batch_size=64, data=_IMAGENET),
    "vgg16": Model(f"{_MODELS}.sequential:vgg16", batch_size=64, data=_IMAGENET),
    "vgg19": Model(f"{_MODELS}.sequential:vgg19", batch_size=64, data=_IMAGENET),
    "googlenet": Model(f"{_MODELS}.inception:GoogLeNet", batch_size=32, data=_IMAGENET),
    "inception3": Model(f"{_MODELS}.inception:InceptionV3", batch_size=64, data=_IMAGENET),  # 2017's batch, the report's
    "inception4": Model(f"{_MODELS}.inception:InceptionV4", batch_size=32, data=_IMAGENET),
    # ResNets learn at 0.128 per 256 images, once tf_cnn_benchmarks' warm-up of five epochs is over.
    "resnet50": Model(f"{_MODELS}.resnet:resnet50", batch_size=64, data=_IMAGENET, learning_rate=0.032),
    "resnet50_v1.5": Model(f"{_MODELS}.resnet:resnet50_v1_5", batch_size=64, data=_IMAGENET, learning_rate=0.032),
    "resnet50_v2": Model(f"{_MODELS}.resnet:resnet50_v2", batch_size=64, data=_IMAGENET, learning_rate=0.032),
    "resnet101": Model(f"{_MODELS}.resnet:resnet101", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet101_v1.5": Model(f"{_MODELS}.resnet:resnet101_v1_5", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet101_v2": Model(f"{_MODELS}.resnet:resnet101_v2", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet152": Model(f"{_MODELS}.resnet:resnet152", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet152_v1.5": Model(f"{_MODELS}.resnet:resnet152_v1_5", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet152_v2": Model(f"{_MODELS}.resnet:resnet152_v2", batch_size=32, data=_IMAGENET, learning_rate=0.016),
    "resnet20": Model(f"{_MODELS}.resnet:resnet20", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet20_v2": Model(f"{_MODELS}.resnet:resnet20_v2", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet32": Model(f"{_MODELS}.resnet:resnet32", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet32_v2": Model(f"{_MODELS}.resnet:resnet32_v2", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet44": Model(f"{_MODELS}.resnet:resnet44", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet44_v2": Model(f"{_MODELS}.resnet:resnet44_v2", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet56": Model(f"{_MODELS}.resnet:resnet56", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet56_v2": Model(f"{_MODELS}.resnet:resnet56_v2", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet110": Model(f"{_MODELS}.resnet:resnet110", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "resnet110_v2": Model(f"{_MODELS}.resnet:resnet110_v2", batch_size=128, data=_CIFAR10, learning_rate=0.1),
    "densenet40_k12": Model(f"{_MODELS}.densenet:densenet40_k12", batch_size=64, data=_CIFAR10, learning_rate=0.1),
    "densenet100_k12": Model(f"{_MODELS}.densenet:densenet100_k12", batch_size=64, data=_CIFAR10, learning_rate=0.1),
    "densenet100_k24": Model(f"{_MODELS}.densenet:densenet100_k24", batch_size=64, data=_CIFAR10, learning_rate=0.1),
}

# The fields that only some variable updates know; see `VariableUpdate.knows`.
MODE_OPTIONS = (
    "local_parameter_device", "all_reduce_spec", "hierarchical_copy", "gradient_repacking", "agg_small_grads_max_bytes",
    "agg_small_grads_max_group", "staged_vars", "variable_consistency", "wire_precision",
)  # fmt: skip
_PACKING = frozenset({"agg_small_grads_max_bytes", "agg_small_grads_max_group"})

# Inputs that are TensorFlow's from end to end, so that a strategy without sessions can be fed from them.
_DATASETS = ("synthetic", "synthetic-host", "imagenet", "cifar10", "mnist")

VARIABLE_UPDATES: Mapping[str, VariableUpdate] = {
    "parameter_server": VariableUpdate(
        f"{_UPDATES}.parameter_server:ParameterServer",
        parameter_servers=True,
        local=True,
        asynchronous=True,
        knows=_PACKING | {"local_parameter_device", "staged_vars", "wire_precision"},
    ),
    "distributed_replicated": VariableUpdate(
        f"{_UPDATES}.distributed_replicated:DistributedReplicated",
        parameter_servers=True,
        pieces_per_server=16,
        ends_apart=True,
        knows=_PACKING | {"wire_precision"},
    ),
    "replicated": VariableUpdate(
        f"{_UPDATES}.replicated:Replicated",
        one_process=True,
        knows=_PACKING
        | {"local_parameter_device", "all_reduce_spec", "hierarchical_copy", "gradient_repacking", "variable_consistency"},
        all_reduce=ALGORITHMS,
    ),
    "independent": VariableUpdate(f"{_UPDATES}.replicated:Independent", workers_communicate=True, lockstep=False),
    "distributed_all_reduce": VariableUpdate(
        f"{_UPDATES}.replicated:DistributedAllReduce",
        workers_communicate=True,
        single_session=True,
        knows=_PACKING | {"all_reduce_spec", "wire_precision"},
        all_reduce=tuple(algorithm for algorithm in ALGORITHMS if algorithm != "collective"),
        all_reduce_by_size=True,
        inputs=(*_DATASETS, "python-queue", "zmq"),  # a dataset of Python's lives in the chief's process alone
    ),
    "collective_all_reduce": VariableUpdate(
        f"{_UPDATES}.replicated:CollectiveAllReduce",
        workers_communicate=True,
        knows=_PACKING | {"all_reduce_spec", "wire_precision"},
        all_reduce=("collective",),
    ),
    "horovod": VariableUpdate(
        f"{_UPDATES}.horovod:Horovod",
        one_device=True,
        workers_communicate=True,
        knows=_PACKING,
        requires="horovod.tensorflow",
        install="On its hosts: HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 pip install --no-build-isolation horovod",
    ),
    "mirrored": VariableUpdate(
        "tensorflow:distribute.MirroredStrategy",
        one_process=True,
        engine=f"{_STRATEGIES}.mirrored:SingleProcessTraining",
        knows=frozenset({"hierarchical_copy", "all_reduce_spec"}),
        all_reduce=("nccl", "pscpu", "psgpu"),
        all_reduce_shards=("nccl",),
        even_hierarchy=True,
        inputs=_DATASETS,
        dynamic_loss_scale=False,
    ),
    "multi_worker_mirrored": VariableUpdate(
        "tensorflow:distribute.MultiWorkerMirroredStrategy",
        one_cpu=True,
        workers_communicate=True,
        engine=f"{_STRATEGIES}.mirrored:MultiWorkerMirrored",
        knows=frozenset({"all_reduce_spec"}),
        all_reduce=("nccl", "xring"),
        all_reduce_shards=(),
        inputs=_DATASETS,
        dynamic_loss_scale=False,
    ),
    "parameter_server_v2": VariableUpdate(
        "tensorflow:distribute.ParameterServerStrategy",
        parameter_servers=True,
        alone=False,
        one_device=True,
        single_session=True,
        coordinated=True,
        synchronous=False,
        asynchronous=True,
        engine=f"{_STRATEGIES}.parameter_server:make_training",
        keeps_threads=True,
        inputs=_DATASETS,
        dynamic_loss_scale=False,
    ),
}

_OUR_INPUTS: Mapping[str, Input] = {
    "synthetic": Input(f"{_INPUTS}.in_memory:Synthetic"),
    "synthetic-host": Input(f"{_INPUTS}.in_memory:SyntheticHost"),
    "python-queue": Input(f"{_INPUTS}.python_sources:PythonQueue"),
    "python-dataset": Input(f"{_INPUTS}.python_sources:PythonDataset"),
    "zmq": Input(f"{_INPUTS}.python_sources:ZmqProducer"),
    "imagenet": Input(
        f"{_INPUTS}.imagenet:TFRecords",
        needs_data_dir=True,
        classes=1001,  # 1 to 1000; 0 is the background, which no image shows
        test_set=True,
        images_per_epoch=1_281_167,
    ),
    "cifar10": Input(
        f"{_INPUTS}.in_memory:BinaryFiles",
        needs_data_dir=True,
        image_shape=(32, 32, 3),
        classes=10,
        test_set=True,
        images_per_epoch=50_000,
    ),
    "mnist": Input(
        f"{_INPUTS}.in_memory:IdxFiles",
        needs_data_dir=True,
        image_shape=(28, 28, 1),
        classes=10,
        test_set=True,
        images_per_epoch=60_000,
    ),
}

# With those of other packages that are installed: docs/extending.md.
MODELS: Table[Model] = Table("pytest_dtfperf.models", Model, _OUR_MODELS)
INPUTS: Table[Input] = Table("pytest_dtfperf.inputs", Input, _OUR_INPUTS)


def inputs_of(model: str) -> tuple[str, ...]:
    """All that it can be fed from: what its own row names, and inputs that name it. One that cannot be had feeds nothing."""
    named = MODELS[model].data
    return (*named, *(data for data in INPUTS if data not in named and _names(data, model)))


def can_feed(data: str, model: str) -> bool:
    """Whether it is among `inputs_of`, without asking all others. Raises `UsageError` where its own row cannot be had."""
    return data in MODELS[model].data or model in INPUTS[data].models


def _names(data: str, model: str) -> bool:
    try:
        return model in INPUTS[data].models
    except UsageError:
        return False


DATA_FORMATS = ("NHWC", "NCHW")
PRECISIONS = ("fp32", "fp16", "bf16")
OPTIMIZERS = ("adam", "momentum", "rmsprop", "sgd")
# Of variables over parameter servers.
VARIABLE_PLACEMENTS: Mapping[str, VariablePlacement] = {
    "greedy": VariablePlacement(f"{_PLACEMENT}:greedy"),  # by bytes, in the network's order
    "round_robin": VariablePlacement(f"{_PLACEMENT}:round_robin"),
    "largest_first": VariablePlacement(f"{_PLACEMENT}:largest_first", in_strategies=True),
    "split": VariablePlacement(f"{_PLACEMENT}:split", in_strategies=True, cuts=True),
}
LOCAL_PARAMETER_DEVICES = ("cpu", "gpu")  # gpu: what computes, which on a host without GPUs is a share of its cores
VARIABLE_CONSISTENCIES = ("strong", "relaxed")
WIRE_PRECISIONS = ("fp32", "bf16")
RESIZE_METHODS = ("area", "bicubic", "bilinear", "nearest", "round_robin")
GPU_THREAD_MODES = ("global", "gpu_private", "gpu_shared")


LAYERS = "layers"  # a `Network` made of `Layers`: computed in any format, counted without TensorFlow
TENSORFLOW = "tensorflow"  # a Keras model, or a function of tensors: only TensorFlow can list its operations
OWN_MODEL_KINDS = (LAYERS, TENSORFLOW)

# The defaults of own models, where they differ from those of our models: a loss of Keras' has its own regularisation.
OWN_MODEL_DEFAULTS: Mapping[str, Mapping[str, Any]] = {LAYERS: {}, TENSORFLOW: {"weight_decay": 0.0, "data_format": "NHWC"}}

OWN_MODEL_BATCH_SIZE = 32  # as in Keras, unless the test sets another
# Of an order, which a task reads from a socket that holds some 200 KiB. Python packs to a quarter of its size.
MOST_PACKED_SOURCES = 96 << 10

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class OwnModel(JsonData):
    """A model that no table has."""

    module: str
    attribute: str  # within the module; of something nested with dots
    kind: str  # of KINDS
    packed: str = ""  # its module with what that imports, if it travels; empty: it belongs to a package that is installed
    package: str | None = None  # which one that is: "my-models 1.0"

    @property
    def name(self) -> str:
        return f"{self.module}.{self.attribute}"

    @property
    def sources(self) -> Mapping[str, str]:
        """Path below the folder that Python finds the module in, to text."""
        return unpack_sources(self.packed) if self.packed else {}

    @property
    def digest(self) -> str:
        """Of its code, as far as that travels."""
        return hashlib.sha256(self.packed.encode()).hexdigest()


_own_models: dict[str, OwnModel] = {}
_expired_own_models: set[str] = set()


def expire_own_models() -> None:
    """Whatever is known by now may have been edited since."""
    _expired_own_models.update(_own_models)


def add_own_model(model: OwnModel) -> None:
    """Let its name be known in this process, with the code that it has now: what is edited later is for the next session.

    Raises `SpecError` where an installed package has a model of that name.
    """
    if model.name in _own_models and model.name not in _expired_own_models:
        return
    _expired_own_models.discard(model.name)
    if model.name in MODELS and model.name not in _own_models:
        raise SpecError(f"train(): {model.name} is the name of an installed package's model, too: give yours another one")
    _own_models[model.name] = model
    MODELS.data[model.name] = Model(f"{model.module}:{model.attribute}", batch_size=OWN_MODEL_BATCH_SIZE, data=())


def find_own_model(name: str) -> OwnModel | None:
    """Return what was added to this process by that name."""
    return _own_models.get(name)


def is_own_model_name(name: str) -> bool:
    """Return whether an own model may be called so. Records may name some that do not exist here any more."""
    return bool(_NAME.fullmatch(name))


def check_own_model_name(name: object) -> None:
    """Raise `SpecError` if no own model can be called so."""
    if not isinstance(name, str) or not is_own_model_name(name):
        raise SpecError(
            f"model={show_value(name)} is no name of an own model: that is a module's with the model's, a.dot.between, of "
            "the letters a to z and A to Z, digits and underscores"
        )


def pack_sources(sources: Mapping[str, str]) -> str:
    """Return the sources as text for an order: the same for the same sources."""
    return base64.b85encode(zlib.compress(json.dumps(sources, sort_keys=True).encode(), 9)).decode()


def unpack_sources(text: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(zlib.decompress(base64.b85decode(text)))
    return found
