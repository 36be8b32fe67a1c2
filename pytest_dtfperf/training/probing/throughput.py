"""Measure how fast a device computes in TensorFlow, and how fast an input delivers images without training."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import config_of
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import network_of
from pytest_dtfperf.training.own import building
from pytest_dtfperf.training.probing.readings import How, Reading, measure_repeatedly
from pytest_dtfperf.training.reason import format_reason

v1 = tf.compat.v1

CHAIN = 4  # consecutive operations of one call on a GPU: a call takes longer than an operation


@dataclass(frozen=True)
class ProbeOperation:
    """An operation that is computed in a chain: the shapes of its operands, and how it combines them."""

    shape: tuple[int, ...]
    weights: tuple[int, ...]
    apply: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]  # returns a tensor of the same shape
    flops: float  # multiplications and additions
    how: How


def make_matmul(size: int) -> ProbeOperation:
    """Return the product of two square matrices as an operation."""
    return ProbeOperation((size, size), (size, size), tf.linalg.matmul, 2.0 * size**3, {"size": size})


def make_convolution(batch: int, side: int, channels: int, data_format: str) -> ProbeOperation:
    """Return a 3x3 convolution of stride 1, as in a ResNet: (batch, height, width, channels), or channels before the height."""
    image = (side, side, channels) if data_format == "NHWC" else (channels, side, side)

    def convolve(images: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(images, weights, strides=1, padding="SAME", data_format=data_format)

    flops = 2.0 * batch * side**2 * channels**2 * 9
    how: How = {"batch": batch, "side": side, "channels": channels, "data_format": data_format}
    return ProbeOperation((batch, *image), (3, 3, channels, channels), convolve, flops, how)


def make_core_operations(threads: int) -> Mapping[str, ProbeOperation]:
    """Return operations that keep many threads busy, and that one thread finishes within milliseconds."""
    wide = threads > 8
    return {
        "matmul": make_matmul(512 if threads == 1 else 2048 if wide else 1024),
        "convolution": make_convolution(2 if threads == 1 else 4 * threads if wide else 8, 56, 64, "NHWC"),
    }


def make_gpu_operations() -> Mapping[str, ProbeOperation]:
    """Return operations that are large enough for any GPU."""
    return {"matmul": make_matmul(4096), "convolution": make_convolution(64, 28, 256, "NCHW")}


def measure_cores(threads: int) -> Mapping[str, Any]:
    """Return readings and errors by operation, with this many threads, in a process that has not computed before."""
    config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1, device_count={"GPU": 0})
    return {name: try_operation(each, "/device:CPU:0", config, threads) for name, each in make_core_operations(threads).items()}


def measure_gpus(count: int) -> Mapping[str, Any]:
    """Return readings and errors by GPU and operation, such as "0.matmul"."""
    seen = len(tf.config.list_physical_devices("GPU"))
    if seen < count:
        raise RuntimeError(f"TensorFlow {tf.__version__} sees {seen} of {count} GPUs")
    config = v1.ConfigProto()
    config.gpu_options.allow_growth = True
    return {
        f"{index}.{name}": try_operation(each, f"/device:GPU:{index}", config, None, chain=CHAIN)
        for index in range(count)
        for name, each in make_gpu_operations().items()
    }


def try_operation(
    operation: ProbeOperation, device: str, config: tf.compat.v1.ConfigProto, threads: int | None, *, chain: int = 1
) -> Reading:
    """Return the reading of one operation on one device, or its error."""
    try:
        with tf.Graph().as_default(), v1.Session(config=config) as session:
            with v1.device(device):
                begun, done = _build_chain(operation, chain)
            session.run(begun)
            how = {**operation.how, **({"threads": threads} if threads else {})}
            return measure_repeatedly(lambda: session.run(done), chain * operation.flops, how, cores=threads)
    except (tf.errors.OpError, TimeoutError) as error:
        return {"error": (format_reason(error) or [str(error)])[0]}


def _build_chain(operation: ProbeOperation, chain: int) -> tuple[tf.Operation, tf.Tensor]:
    """Return the operation that initialises a chain, and one number that is known once all of it is computed.

    Its operands are variables, because constants would be folded.
    """
    fed = v1.Variable(lambda: tf.random.normal(operation.shape, seed=1), use_resource=True)
    weights = v1.Variable(lambda: tf.random.normal(operation.weights, stddev=0.01, seed=2), use_resource=True)
    values, kernel = fed.read_value(), weights.read_value()
    for _ in range(chain):
        values = operation.apply(values, kernel)
    return v1.global_variables_initializer(), tf.reshape(values, [-1])[0]


BATCH = 16  # at most, so that a window has several batches
WARM_UP_S = 0.3  # by then the prefetched batches are used up
_CPU = "/device:CPU:0"


def measure_input(order: TaskOrder, cpus: Collection[int]) -> Reading:
    """Fetch the batches of all towers on these cores, or on all if none are given, and discard them.

    Raises the input's errors.
    """
    if cpus:
        os.sched_setaffinity(0, cpus)
    building.register_own_model(order)
    spec = replace(order.spec, batch_size=min(BATCH, order.spec.batch_size))
    alone = replace(order, spec=spec, cluster={}, device="cpu")
    feed: TrainingInput = load(spec.input.implementation)(alone, network_of(spec), _CPU)
    with tf.Graph().as_default() as graph, explain_errors([feed]):
        with v1.device(_CPU):
            fetched = tf.group(*(tensor for tower in range(order.num_devices) for tensor in feed.batch(tower)))
        prepared = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer())
        session = v1.Session(graph=graph, config=config_of(alone))  # never closed: this process ends
        session.run(prepared)
        feed.start(session)
        how: How = {"data": spec.data, "model": spec.model, "batch": spec.batch_size, "threads": order.threads}
        cores = len(os.sched_getaffinity(0))
        return measure_repeatedly(
            lambda: session.run(fetched), spec.batch_size * order.num_devices, how, cores=cores, warm_up_s=WARM_UP_S
        )
