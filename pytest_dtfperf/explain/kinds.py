"""What kinds of work a step is made of, and which of them an operation is."""

import re

from pytest_dtfperf.traces import FED_QUEUE, KERNEL, NO_BATCH, XLA_MODULE, Operation

# Of a moment in which several go on, the first of these that does counts: what computes hides what is under way meanwhile.
WORK = ("forward", "backward", "compiled", "apply", "input", "copy", "reduce", "receive", "send", "wait")
# Where none of these goes on: TensorFlow's host code, gRPC, dispatch; Python before the session is asked; no clock to tell.
REST = ("host", "python", "unknown")
# On the critical path alone: a worker whose step began after the first worker's.
LATE = "late"
KINDS = (*WORK, *REST, LATE)

_INPUTS = frozenset(
    {"IteratorGetNext", "IteratorV2", "OneShotIterator", "PyFunc", "EagerPyFunc", "QueueDequeueManyV2", "RemoteCall"}
)
_SYNTHETIC = re.compile(r"/synthetic_")
_FED = re.compile(rf"(^|/){FED_QUEUE}\d+_Dequeue")
_EXCHANGES = ("Collective", "Horovod", "Nccl", "nccl")  # operations, and kernels
_UPDATE = re.compile(r"_inference_update_")  # what `training.compiled` has XLA make of an update, as XLA names it
_BACKWARD = re.compile(r"(^|/)tower\d+/(.*/)?gradients(/|$)")
_TOWER = re.compile(r"(^|/)tower\d+/")


def task_of(device: str) -> str:
    """`ps:1` of `ps:1/CPU:0`."""
    return device.partition("/")[0]


def is_server(device: str) -> bool:
    return device.startswith("ps:")


def kind_of(operation: Operation) -> str:
    """By kind and name: towers are named `tower0/...`, their gradients `tower0/gradients/...`, and what else there is makes
    updates of them or brings them into place.
    """
    kind, name = operation.type, operation.name
    if kind == "QueueDequeueV2" and _FED.search(name):
        return "input"
    if kind in ("QueueDequeueV2", NO_BATCH):
        return "wait"
    if kind.startswith(_EXCHANGES):
        return "reduce"
    if kind == KERNEL:
        return "unknown"
    if kind.startswith("Memcpy"):
        return "copy"
    if kind in ("_Recv", "_HostRecv"):  # the second of a GPU, into its host's memory
        return "receive" if "ReadVariableOp" in name else "wait"  # else for what others do with what was sent to them
    if kind in ("_Send", "_HostSend"):
        return "send"
    if is_server(operation.device):
        return "apply"
    if kind == XLA_MODULE:
        return "apply" if _UPDATE.search(name) else "compiled"
    if kind == "_XlaRun" or (kind.endswith("PartitionedCall") and _TOWER.search(name)):
        return "compiled"  # forward and backward in one: XLA leaves no names
    if kind in _INPUTS or _SYNTHETIC.search(name):
        return "input"
    if _BACKWARD.search(name):
        return "backward"
    return "forward" if _TOWER.search(name) else "apply"


def kind_of_transfer(destination: str) -> str:
    """As workers see it: they send to parameter servers, and receive all else."""
    return "send" if is_server(destination) else "receive"
