"""How TensorFlow runs what it computes: settings that are in no graph, and that make the same graph faster or slower."""

import os
from collections.abc import Iterator
from typing import Any

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training import memory
from pytest_dtfperf.training.devices import config_of

# What a session's or a server's ConfigProto says of which task this is, and of how many devices: that is in the spec.
_ROLE = ("device_count", "device_filters", "experimental.collective_group_leader", "gpu_options.visible_device_list")
# Environment variables, by how they begin, that TensorFlow and what it computes with are known to go by.
_VARIABLES = (
    "DNNL_", "GRPC_", "KMP_", "LD_PRELOAD", "MALLOC_", "MKL_", "NCCL_", "OMP_", "ONEDNN_", "TF_CUDNN_", "TF_DISABLE_",
    "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_GRPC_WORKER_", "TF_NUM_", "TF_XLA_", "XLA_FLAGS",
)  # fmt: skip
# Of these, those that say what is written where, or whom to trust: no step is faster or slower for it.
_NO_MATTER = ("GRPC_DEFAULT_SSL_", "GRPC_SSL_", "GRPC_TRACE", "GRPC_VERBOSITY", "NCCL_DEBUG", "DNNL_VERBOSE", "ONEDNN_VERBOSE")


def settings_of(order: TaskOrder) -> dict[str, str]:
    """Name -> value, as text, of all that is not as TensorFlow has it by itself."""
    config = dict(_fields(config_of(order)))
    return {
        "malloc": memory.SETTING,
        **{name: value for name, value in sorted(config.items()) if not name.startswith(_ROLE)},
        **{name: value for name, value in sorted(os.environ.items()) if _matters(name)},
    }


def _matters(variable: str) -> bool:
    return variable.startswith(_VARIABLES) and not variable.startswith(_NO_MATTER)


def _fields(message: Any, within: str = "") -> Iterator[tuple[str, str]]:
    """Those that are set, of a protocol buffer: `gpu_options.allow_growth`."""
    for field, value in message.ListFields():
        name = f"{within}{field.name}"
        if field.message_type is not None and not hasattr(value, "__len__"):
            yield from _fields(value, f"{name}.")
        else:
            yield name, str(list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else value)
