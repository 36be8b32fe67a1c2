"""What kinds of work a step is made of, and which of them an operation is."""

import re

from pytest_dtfperf.traces import Operation

# Of a moment in which several go on, the first of these that does counts: what computes hides what is under way meanwhile.
WORK = ("forward", "backward", "compiled", "apply", "input", "reduce", "receive", "send", "wait")
# Where none of these goes on: TensorFlow's host code, gRPC, dispatch; Python before the session is asked; no clock to tell.
REST = ("host", "python", "unknown")
# On the critical path alone: a worker whose step began after the first worker's.
LATE = "late"
KINDS = (*WORK, *REST, LATE)

_INPUTS = frozenset(
    {"IteratorGetNext", "IteratorV2", "OneShotIterator", "PyFunc", "EagerPyFunc", "QueueDequeueManyV2", "RemoteCall"}
)
_SYNTHETIC = re.compile(r"/synthetic_")
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
    if kind == "QueueDequeueV2":
        return "wait"
    if kind.startswith(("Collective", "Horovod")):
        return "reduce"
    if is_server(operation.device):
        return "apply"
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
