"""All-reduce with TensorFlow operations: the algorithms' work in a graph, and TensorFlow's own collective operations."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.all_reduce import Range
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.all_reduce_algorithms import (
    Algorithm,
    Topology,
    count_rings,
    hierarchical_copy,
    nccl,
    nest_algorithms,
    pscpu,
    psgpu,
    rechd,
    xring,
)
from pytest_dtfperf.training.variable_update.parameter_server import Wire, widen_value

HIERARCHICAL_COPY = "hierarchical_copy"  # an option of its own, not a word of the specification

ALGORITHMS: Mapping[str, Algorithm] = {
    "xring": xring,
    "pscpu": pscpu,
    "psgpu": psgpu,
    "pscpu/pscpu": nest_algorithms("pscpu", pscpu),
    "nccl": nccl,
    "nccl/xring": nest_algorithms("nccl", xring),
    "nccl/rechd": nest_algorithms("nccl", rechd),
    "nccl/pscpu": nest_algorithms("nccl", pscpu),
    HIERARCHICAL_COPY: hierarchical_copy,
}

Reduce = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]  # a variable's gradient from each tower -> the mean for each


class Reduction:
    """A callable that reduces one variable's gradients, or one piece of them, by the algorithm for its size."""

    def __init__(self, order: TaskOrder, devices: Devices, ranges: Sequence[Range]) -> None:
        """Choose the algorithms. Raises `SpecError` if these devices cannot run them."""
        self._topology = Topology(devices.towers, devices.hosts)
        self._ranges = ranges
        self._wire = Wire(order)
        self._turn = 0
        self._collectives = {
            each: Collective(devices.towers, size=len(devices.towers), shards=each.shards)
            for each in ranges
            if each.algorithm == "collective"
        }
        for each in ranges:
            self._check(each.algorithm, order)

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        if len(self._topology.towers) == 1:
            return list(gradients)
        elements = gradients[0].shape.num_elements()
        found = next(each for each in self._ranges if each.limit is None or elements <= each.limit)
        if found in self._collectives:
            return self._collectives[found](gradients)
        work = GraphWork(len(gradients), name=f"nccl{self._turn}", wire=self._wire)
        turn, self._turn = self._turn, self._turn + 1
        means = ALGORITHMS[found.algorithm](work, gradients, self._topology, turn=turn, shards=found.shards)
        return [work.fetch(mean, tower) for mean, tower in zip(means, self._topology.towers, strict=True)]

    def _check(self, algorithm: str, order: TaskOrder) -> None:
        if not algorithm.startswith("nccl"):
            return
        if order.device != "gpu":
            raise SpecError(f"all_reduce_spec: {algorithm} adds on GPUs, but here are none: take xring, pscpu or pscpu/pscpu")
        if algorithm == "nccl" and len(self._topology.all_hosts) > 1:
            raise SpecError(
                f"all_reduce_spec: nccl adds within one worker, but here are {len(self._topology.all_hosts)}: take nccl/xring, "
                "nccl/rechd or nccl/pscpu"
            )


v1 = tf.compat.v1


class GraphWork:
    """Algorithms' work as operations in the current graph. TensorFlow sends a tensor once to each device that uses it.

    To another task it may be sent in fewer bytes. Then the task that made a mean rounds its own copy, so that all copies are
    equal. Sums are not rounded before they are sent.
    """

    def __init__(self, towers: int, name: str, wire: Wire) -> None:
        self._towers = towers
        self._name = name  # of NCCL's operation, the same on all devices
        self._wire = wire
        self._narrow: dict[Any, tf.Tensor] = {}  # the sent form of a tensor, by its reference
        self._fetched: dict[tuple[Any, str], tf.Tensor] = {}

    def fetch(self, value: tf.Tensor, device: str) -> tf.Tensor:
        """Return the tensor, or on another task's device the value that arrives there."""
        if not self._wire.narrows or _get_task(value.device) == _get_task(device):
            return value
        key = value.ref()
        if key not in self._narrow:
            self._narrow[key] = self._wire.narrow(value)
        if (key, device) not in self._fetched:
            with v1.device(device):
                self._fetched[key, device] = widen_value(self._narrow[key])
        return self._fetched[key, device]

    def add(self, values: Sequence[tf.Tensor], device: str) -> tf.Tensor:
        values = [self.fetch(value, device) for value in values]
        with v1.device(device):
            return values[0] if len(values) == 1 else tf.add_n(values)

    def mean(self, total: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return self._wire.round_value(self.fetch(total, device) * (1.0 / self._towers))

    def copy(self, value: tf.Tensor, device: str) -> tf.Tensor:
        with v1.device(device):
            return tf.identity(self.fetch(value, device))

    def cut(self, value: tf.Tensor, parts: int, device: str) -> list[tf.Tensor]:
        with v1.device(device):
            return split_evenly(self.fetch(value, device), parts)

    def join(self, parts: Sequence[tf.Tensor], like: tf.Tensor, device: str) -> tf.Tensor:
        if len(parts) == 1:
            return parts[0]
        parts = [self.fetch(part, device) for part in parts]
        with v1.device(device):
            return tf.reshape(tf.concat(parts, 0), like.shape)

    def nccl(self, values: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
        sums = []
        for value, device in zip(values, devices, strict=True):
            with v1.device(device):
                sums.append(
                    tf.raw_ops.NcclAllReduce(input=value, reduction="sum", num_devices=len(devices), shared_name=self._name)
                )
        return sums


def _get_task(device: str) -> tuple[str | None, int | None]:
    found = tf.DeviceSpec.from_string(device)
    return found.job, found.task


def split_evenly(value: tf.Tensor, parts: int) -> list[tf.Tensor]:
    """Split a tensor into flat parts, none of them empty; their sizes differ by one element at most."""
    elements = value.shape.num_elements()
    parts = min(parts, elements)
    if parts <= 1:
        return [value]
    sizes = [elements * (i + 1) // parts - elements * i // parts for i in range(parts)]
    return list(tf.split(tf.reshape(value, [-1]), sizes))


Towers = list[list[tf.Tensor]]  # of each tower, one tensor per variable


def repack(reduce: Reduce, towers: Towers, devices: Sequence[str], *, parts: int) -> Towers:
    """Return the means, reduced in `parts` parts of all gradients together; 0: variable by variable."""
    if not parts:
        return _reduce_towers(reduce, towers)
    joined = [_cut(gradients, device, parts) for gradients, device in zip(towers, devices, strict=True)]
    means = _reduce_towers(reduce, joined)
    return [_restore_parts(mean, like, device) for mean, like, device in zip(means, towers, devices, strict=True)]


def _reduce_towers(reduce: Reduce, towers: Towers) -> Towers:
    means = [reduce(of_towers) for of_towers in zip(*towers, strict=True)]
    return [list(of_tower) for of_tower in zip(*means, strict=True)]


def _cut(gradients: Sequence[tf.Tensor], device: str, parts: int) -> list[tf.Tensor]:
    with v1.device(device):
        return split_evenly(tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], 0), parts)


def _restore_parts(parts: Sequence[tf.Tensor], likes: Sequence[tf.Tensor], device: str) -> list[tf.Tensor]:
    with v1.device(device):
        flat = tf.split(tf.concat(parts, 0), [like.shape.num_elements() for like in likes])
        return [tf.reshape(piece, like.shape) for piece, like in zip(flat, likes, strict=True)]


GROUP = 1  # there is one group of devices, and all its members are in it


class Collective:
    """A callable that reduces each variable by TensorFlow's collective operations.

    All processes must call it in the same order: the number of the call identifies the variable.
    """

    def __init__(self, devices: Sequence[str], *, size: int, shards: int = 1, divides: bool = True) -> None:
        """Take the devices of this process, of `size` in all processes. With `divides` it returns the mean, else the sum."""
        self._devices = devices
        self._size = size
        self._shards = shards
        self._divides = divides
        self._calls = 0

    def __call__(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the mean or sum on each device. It begins as soon as its gradients are known, beside all others."""
        if self._size == 1:
            return list(gradients)
        self._calls += 1
        size_bytes = gradients[0].shape.num_elements() * gradients[0].dtype.size
        rings = count_rings(size_bytes, self._size, self._shards)
        means = []
        for gradient, device in zip(gradients, self._devices, strict=True):
            with v1.device(device):
                means.append(
                    tf.raw_ops.CollectiveReduce(
                        input=gradient,
                        group_size=self._size,
                        group_key=GROUP,
                        instance_key=self._calls,
                        merge_op="Add",
                        final_op="Div" if self._divides else "Id",
                        subdiv_offsets=[0] * rings,
                    )
                )
        return means
