"""Describe the devices, settings and memory of a task's TensorFlow."""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import InfrastructureError
from pytest_dtfperf.spec import TaskOrder

# mallopt's names for its parameters, from glibc's malloc.h
TRIM_THRESHOLD = -1
TOP_PAD = -2
MMAP_MAX = -4

PAD_BYTES = 64 << 20  # bytes by which the heap grows

MEMORY_SETTING = f"mmap_max=0 trim_threshold=-1 top_pad={PAD_BYTES}"  # the settings of `keep_freed_memory`


def keep_freed_memory() -> None:
    """Have glibc keep what is freed, instead of giving it back to the kernel and faulting it in again, page by page.

    Every step allocates the same tensors anew, and glibc takes those over 32 MiB fresh from the kernel each time. A step of
    InceptionV3, batch 8, spent 0.3 of its 5 CPU seconds so; now 0.1, at a peak 8 % higher. Other C libraries stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, -1)
        mallopt(TOP_PAD, PAD_BYTES)


v1 = tf.compat.v1


@dataclass(frozen=True)
class Devices:
    """TensorFlow's names of the devices a worker uses."""

    host: str  # its own CPU, for inputs and values that its towers share
    towers: tuple[str, ...]  # one replica of the network on each; those of all workers, if one session computes on all
    hosts: tuple[str, ...]  # of each tower: the CPU beside it
    servers: tuple[str, ...]  # the CPUs of the parameter servers; none in a lone process


def get_devices(order: TaskOrder) -> Devices:
    """Return the task's devices. Raises `InfrastructureError` if TensorFlow does not see the GPUs that were requested."""
    if order.device == "gpu":
        _check_gpus(order)
    tasks = [(_name_task(order, worker), count) for worker, count in _devices_of_workers(order).items()]
    return Devices(
        host=f"{_name_task(order, order.index)}/device:CPU:0",
        towers=tuple(f"{task}/device:{order.device.upper()}:{i}" for task, count in tasks for i in range(count)),
        hosts=tuple(f"{task}/device:CPU:0" for task, count in tasks for _ in range(count)),
        servers=tuple(f"/job:ps/task:{i}/device:CPU:0" for i in range(len(order.cluster.get("ps", ())))),
    )


def _name_task(order: TaskOrder, worker: int) -> str:
    return f"/job:worker/task:{worker}" if order.cluster else ""


def _devices_of_workers(order: TaskOrder) -> dict[int, int]:
    """Return the number of devices that this task's graph uses on each worker: only its own, or all in a single session.

    Workers have equally many devices, except for the last, which has the remaining ones.
    """
    if not order.spec.mode.single_session:
        return {order.index: order.num_devices}
    each = order.num_devices  # the chief's: no other task has such a graph
    return {worker: min(each, order.spec.gpus - worker * each) for worker in range(order.workers)}


def _check_gpus(order: TaskOrder) -> None:
    seen = tf.config.list_physical_devices("GPU")
    if len(seen) < order.num_devices:
        raise InfrastructureError(
            f"{order.name} was to compute on {order.num_devices} GPUs, but TensorFlow {tf.__version__} sees {len(seen)} on "
            f"this host: {', '.join(gpu.name for gpu in seen) or 'none'}. Is the driver loaded (nvidia-smi)? Does "
            "CUDA_VISIBLE_DEVICES hide some? Is this TensorFlow built for CUDA (pip install 'tensorflow[and-cuda]')?"
        )


def make_session_config(order: TaskOrder) -> tf.compat.v1.ConfigProto:
    """Return the configuration of the task's server and its session. Placement is strict: an impossible device is an error.

    Sets this process's environment variables, too, where TensorFlow asks those.
    """
    spec = order.spec
    os.environ.update(make_environment_variables(order))
    config = v1.ConfigProto(
        intra_op_parallelism_threads=spec.num_intra_threads or order.threads,
        inter_op_parallelism_threads=_inter_op_threads(order),
    )
    if _has_gpus(order):
        config.device_count["GPU"] = order.num_devices
        config.gpu_options.allow_growth = spec.allow_growth  # else one task of a host takes all memory
    else:
        config.device_count["GPU"] = 0
        config.device_count["CPU"] = order.num_devices if order.job == "worker" else 1  # logical devices on the same cores
    if spec.xla:
        config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
    if order.cluster and spec.precision == "bf16":
        # Convolution, bias and ReLU would become one operation that TensorFlow has in bf16 in oneDNN alone. A lone process
        # makes it oneDNN's next; a session over several refuses it before.
        config.graph_options.rewrite_options.remapping = config.graph_options.rewrite_options.OFF
    if order.cluster and order.spec.mode.workers_communicate:
        config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"  # it collects the devices of a group
    elif order.cluster:
        # Without filters, a session waits at its start for tasks that it need not know.
        config.device_filters.extend(["/job:ps", f"/job:{order.job}/task:{order.index}"])
    return config


def _inter_op_threads(order: TaskOrder) -> int:
    """Return the number of inter-op threads: at least two between hosts, unless the spec sets it.

    TensorFlow's threads begin with the operation that became ready last. A single thread goes back through the whole network
    before it computes the weights' gradients that it has passed, and the links are idle until then. A second thread computes
    what became ready first.
    """
    asked = order.spec.num_inter_threads
    threads = asked or order.threads
    if order.spec.mode.keeps_threads:
        return max(threads, order.workers + 1)  # from TensorFlow's guide: with fewer, all may wait for each other
    return max(threads, 2) if asked is None and order.is_between_hosts else threads


def make_environment_variables(order: TaskOrder) -> dict[str, str]:
    """Return the environment variables that TensorFlow reads when it makes its first device and compiles its first graph."""
    spec = order.spec
    variables: dict[str, str] = {}
    if spec.xla:  # by default, TensorFlow compiles only for GPUs
        given = os.environ.get("TF_XLA_FLAGS", "").split()  # with ours, if this is called again
        variables["TF_XLA_FLAGS"] = " ".join(dict.fromkeys([*given, "--tf_xla_cpu_global_jit"]))
    if _has_gpus(order):
        variables["TF_GPU_THREAD_MODE"] = spec.gpu_thread_mode
    if _has_gpus(order) and spec.gpu_thread_mode != "global":
        of_pool = order.num_devices if spec.gpu_thread_mode == "gpu_shared" else 1
        variables["TF_GPU_THREAD_COUNT"] = str(spec.per_gpu_thread_count * of_pool)
    return variables


def _has_gpus(order: TaskOrder) -> bool:
    return order.job == "worker" and order.device == "gpu"


def start_server(order: TaskOrder) -> str:
    """Bind the task's port and serve its devices for the rest of the process's life. Returns the address for a session."""
    if not order.cluster:
        return ""
    cluster = tf.train.ClusterSpec({job: list(addresses) for job, addresses in order.cluster.items()})
    server = tf.distribute.Server(cluster, job_name=order.job, task_index=order.index, config=make_session_config(order))
    return str(server.target)


# The fields of a session's or a server's ConfigProto with this task and its number of devices: those are in the spec.
_ROLE = ("device_count", "device_filters", "experimental.collective_group_leader", "gpu_options.visible_device_list")
# Environment variables, by how they begin, that TensorFlow and what it computes with are known to go by.
_VARIABLES = (
    "DNNL_", "GRPC_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "TF_CUDNN_", "TF_DISABLE_",
    "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_GRPC_WORKER_", "TF_NUM_", "TF_XLA_", "XLA_FLAGS",
)  # fmt: skip
# Those of them that set where something is written, or which peers are trusted: no step is faster or slower for it.
_NO_MATTER = ("GRPC_DEFAULT_SSL_", "GRPC_SSL_", "GRPC_TRACE", "GRPC_VERBOSITY", "NCCL_DEBUG", "DNNL_VERBOSE", "ONEDNN_VERBOSE")


def describe_settings(order: TaskOrder) -> dict[str, str]:
    """Return the settings that differ from TensorFlow's defaults, by name and as text."""
    config = dict(_iterate_fields(make_session_config(order)))
    return {
        "malloc": MEMORY_SETTING,
        **{name: value for name, value in sorted(config.items()) if not name.startswith(_ROLE)},
        **{name: value for name, value in sorted(os.environ.items()) if _affects_speed(name)},
    }


def _affects_speed(variable: str) -> bool:
    return variable.startswith(_VARIABLES) and not variable.startswith(_NO_MATTER)


def _iterate_fields(message: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the fields that are set in a protocol buffer: `gpu_options.allow_growth`."""
    for field, value in message.ListFields():
        name = f"{prefix}{field.name}"
        if field.message_type is not None and not hasattr(value, "__len__"):
            yield from _iterate_fields(value, f"{name}.")
        else:
            yield name, str(list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value)
