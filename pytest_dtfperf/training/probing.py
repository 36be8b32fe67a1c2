"""Measure what a host and its links can do, in a task that follows the controller's orders.

controller         this task
"compute"    ->    a "reading" of each thing that is measured here, then "facts", then "done"
"listen"     ->    "done", once other hosts can send to this one
"round 3"    ->    a "stream" for each that goes from here in that round, then "done"
"leave"      ->    it ends

A host computes in TensorFlow as fast as its devices can, and its input delivers images without a training.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import tensorflow as tf

from pytest_dtfperf.extensions import load
from pytest_dtfperf.node import host_state, links
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import AgentConnection, probe_readings
from pytest_dtfperf.training.devices import make_session_config
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.damage import explain_errors
from pytest_dtfperf.training.models import get_network
from pytest_dtfperf.training.own import building
from pytest_dtfperf.training.probe_readings import How, Reading, measure_repeatedly
from pytest_dtfperf.training.reason import format_reason
from pytest_dtfperf.training.subprocess_call import NoAnswer, call_in_fork, format_exception

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


def measure_input(order: TaskOrder, cpus: Collection[int], *, is_cold: bool = False) -> Reading:
    """Fetch the batches of all towers on these cores, or on all if none are given, and discard them.

    Args:
        is_cold: read files from their disk and not from the page cache, as far as none is read twice.

    Raises the input's errors.
    """
    if cpus:
        os.sched_setaffinity(0, cpus)
    building.register_own_model(order)
    spec = replace(order.spec, batch_size=min(BATCH, order.spec.batch_size))
    if is_cold and spec.data_dir:
        probe_readings.drop_cached_files(spec.data_dir)
    alone = replace(order, spec=spec, cluster={}, device="cpu")
    feed: TrainingInput = load(spec.input.implementation)(alone, get_network(spec), _CPU)
    feed.shuffles = False
    with tf.Graph().as_default() as graph, explain_errors([feed]):
        with v1.device(_CPU):
            fetched = tf.group(*(tensor for tower in range(order.num_devices) for tensor in feed.batch(tower)))
        prepared = tf.group(v1.global_variables_initializer(), v1.local_variables_initializer(), v1.tables_initializer())
        session = v1.Session(graph=graph, config=make_session_config(alone))  # never closed: this process ends
        session.run(prepared)
        feed.start(session)
        how: dict[str, float | str] = {
            "data": spec.data,
            "model": spec.model,
            "batch": spec.batch_size,
            "threads": order.threads,
        }
        how |= {"page_cache": "dropped"} if is_cold else {}
        cores = len(os.sched_getaffinity(0))
        return measure_repeatedly(
            lambda: session.run(fetched), spec.batch_size * order.num_devices, how, cores=cores, warm_up_s=WARM_UP_S
        )


# For all that is done in one process, TensorFlow's start and the first call included.
CORES_S, GPUS_S, MEMORY_S, INPUT_S = 20.0, 60.0, 15.0, 20.0

Order = Mapping[str, Any]


@dataclass(frozen=True)
class Family:
    """Readings that one process measures, with the last parts of their names."""

    name: str
    members: Sequence[str]
    measure: Callable[[], Mapping[str, Any]]
    within_s: float

    def readings(self, on_poll: Callable[[], object]) -> dict[str, Any]:
        """Return readings by their full names: "cores.matmul", "memory"."""
        try:
            found = call_in_fork(lambda: dict(self.measure()), self.within_s, on_poll, _format_error)
        except NoAnswer as why:
            found = {member: {"error": str(why)} for member in self.members}
        return {f"{self.name}.{member}".removesuffix("."): reading for member, reading in found.items()}


def run(order: Order, connection: AgentConnection) -> None:
    """Run a probing task."""
    connection.send("ready")
    while (word := connection.wait()) != "leave":
        what, _, number = word.partition(" ")
        _ORDERS[what]({**order, **order["probe"]}, connection, int(number or 0))
        connection.send("done", phase=word)


def _compute(order: Order, connection: AgentConnection, _: int) -> None:
    host = host_state.HostCounters()
    before = host.sample()
    clocks: list[float] = []
    for family in _list_families(order):
        if family.name not in order["families"]:
            continue
        for name, found in family.readings(partial(_note_clock, clocks if family.name == "cores" else [])).items():
            reading = None if "error" in found else found
            connection.send("reading", name=name, reading=reading, error=found.get("error"))
    connection.send(
        "facts",
        limits=host_state.read_limits(),
        clock_hz=sum(clocks) / len(clocks) if clocks else None,
        most_clock_hz=host_state.read_max_clock_hz(),
        state=host.account(before, before, host.sample()),
    )


def _list_families(order: Order) -> Iterator[Family]:
    cores = len(os.sched_getaffinity(0))
    operations = list(make_core_operations(1))
    yield Family("core", operations, partial(measure_cores, 1), CORES_S)
    yield Family("cores", operations, partial(measure_cores, cores), CORES_S)
    if gpus := order["gpus"]:
        members = [f"{gpu}.{name}" for gpu in range(gpus) for name in make_gpu_operations()]
        yield Family("gpu", members, partial(measure_gpus, gpus), GPUS_S)
    yield Family("memory", [""], lambda: {"": probe_readings.measure_memory(cores, _get_free_bytes())}, MEMORY_S)
    if worker := order["input"]:
        task = TaskOrder.from_json(worker)
        yield Family(
            "input", [""], lambda: {"": measure_input(task, order["input_cpus"], is_cold=order["cold_input"])}, INPUT_S
        )


def _format_error(error: Exception) -> str:
    return (format_reason(error) or [format_exception(error)])[0]


def _note_clock(clocks: list[float]) -> None:
    if found := host_state.read_clock_hz():
        clocks.append(found)


def _get_free_bytes() -> int | None:
    with open("/proc/meminfo") as file:
        free = host_state.parse_available_bytes(file.read())
    allowed = host_state.read_limits().get("memory_bytes")
    return min((each for each in (free, allowed) if each is not None), default=None)


_LISTENERS: list[links.Listener] = []  # for the rest of this process's life


def _listen(order: Order, connection: AgentConnection, _: int) -> None:
    _LISTENERS.append(links.Listener(order["host"], order["token"], [order["port"]]))


def _send(order: Order, connection: AgentConnection, number: int) -> None:
    """Run all streams of a round that begin on this host, at the same time."""
    targets = [
        {"host": int(target), **order["addresses"][target], "connections": connections}
        for target, connections in order["rounds"][number][str(order["host"])].items()
    ]
    for found in links.measure_concurrently(order["token"], targets, order["part_s"], order["parts"]):
        connection.send("stream", round=number, to=found["to"], parts=found.get("parts", []), error=found.get("error"))


_ORDERS: Mapping[str, Callable[[Order, AgentConnection, int], None]] = {"compute": _compute, "listen": _listen, "round": _send}
