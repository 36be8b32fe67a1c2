"""What a task computes on, and how TensorFlow is told."""

import os
from dataclasses import dataclass

import tensorflow as tf

from pytest_dtfperf.errors import InfrastructureError
from pytest_dtfperf.spec import TaskOrder

v1 = tf.compat.v1


@dataclass(frozen=True)
class Devices:
    """TensorFlow's names of the devices a worker uses."""

    host: str  # its own CPU: input, and what its towers share
    towers: tuple[str, ...]  # one replica of the network on each
    servers: tuple[str, ...]  # the CPUs of the parameter servers; none in a lone process


def devices_of(order: TaskOrder) -> Devices:
    """Raises `InfrastructureError` if the task was promised GPUs that TensorFlow does not see."""
    if order.device == "gpu":
        _check_gpus(order)
    task = f"/job:{order.job}/task:{order.index}" if order.cluster else ""
    return Devices(
        host=f"{task}/device:CPU:0",
        towers=tuple(f"{task}/device:{order.device.upper()}:{i}" for i in range(order.num_devices)),
        servers=tuple(f"/job:ps/task:{i}/device:CPU:0" for i in range(len(order.cluster.get("ps", ())))),
    )


def _check_gpus(order: TaskOrder) -> None:
    seen = tf.config.list_physical_devices("GPU")
    if len(seen) < order.num_devices:
        raise InfrastructureError(
            f"{order.name} was to compute on {order.num_devices} GPUs, but TensorFlow {tf.__version__} sees {len(seen)} on "
            f"this host: {', '.join(gpu.name for gpu in seen) or 'none'}. Is the driver loaded (nvidia-smi)? Does "
            "CUDA_VISIBLE_DEVICES hide some? Is this TensorFlow built for CUDA (pip install 'tensorflow[and-cuda]')?"
        )


def config_of(order: TaskOrder) -> tf.compat.v1.ConfigProto:
    """For the task's server and its session alike. Nothing is placed softly: what cannot be where it should be, fails."""
    config = v1.ConfigProto(intra_op_parallelism_threads=order.threads, inter_op_parallelism_threads=order.threads)
    if order.job == "worker" and order.device == "gpu":
        config.device_count["GPU"] = order.num_devices
        config.gpu_options.allow_growth = True  # or the tasks of a host would take each other's memory
    else:
        config.device_count["GPU"] = 0
        config.device_count["CPU"] = order.num_devices if order.job == "worker" else 1  # logical devices on the same cores
    if order.spec.xla:
        # Of itself, TensorFlow compiles for GPUs alone. It reads this when the first graph is compiled.
        os.environ["TF_XLA_FLAGS"] = f"{os.environ.get('TF_XLA_FLAGS', '')} --tf_xla_cpu_global_jit"
        config.graph_options.optimizer_options.global_jit_level = v1.OptimizerOptions.ON_1
    if order.cluster:
        # Without filters, a session waits at its start for tasks that it need not know.
        config.device_filters.extend(["/job:ps", f"/job:{order.job}/task:{order.index}"])
    return config


def start_server(order: TaskOrder) -> str:
    """Bind the task's port and serve its devices for the rest of the process's life. Returns the address for a session."""
    if not order.cluster:
        return ""
    cluster = tf.train.ClusterSpec({job: list(addresses) for job, addresses in order.cluster.items()})
    server = tf.distribute.Server(cluster, job_name=order.job, task_index=order.index, config=config_of(order))
    return str(server.target)
