"""What `config_of` tells sessions, for TensorFlow's eager runtime: before its first operation, for it cannot be told later."""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.devices import config_of, devices_of


def set_up(order: TaskOrder, *, computes: bool = True) -> None:
    """`computes`: whether this process's eager runtime does the arithmetic itself, or a server beside it.

    Raises `InfrastructureError` if the task was promised GPUs that TensorFlow does not see.
    """
    devices_of(order)
    config = config_of(order)
    tf.config.threading.set_intra_op_parallelism_threads(config.intra_op_parallelism_threads)
    tf.config.threading.set_inter_op_parallelism_threads(config.inter_op_parallelism_threads)
    tf.config.set_soft_device_placement(False)  # what cannot be where it should be, fails
    tf.config.optimizer.set_jit("autoclustering" if order.spec.xla else False)
    tf.random.set_seed(order.spec.seed)  # with those of the operations, as in a graph
    gpus = tf.config.list_physical_devices("GPU")[: order.num_devices if order.device == "gpu" and computes else 0]
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, config.gpu_options.allow_growth)
    if order.device == "cpu" and order.num_devices > 1 and computes:
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * order.num_devices)
