"""Which algorithm adds which gradients."""

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.spec.all_reduce import Range
from pytest_dtfperf.training.devices import Devices
from pytest_dtfperf.training.variable_update.all_reduce.collective import Collective
from pytest_dtfperf.training.variable_update.all_reduce.graph import GraphWork
from pytest_dtfperf.training.variable_update.all_reduce.halving import rechd
from pytest_dtfperf.training.variable_update.all_reduce.levels import across_hosts, hierarchical_copy, nccl
from pytest_dtfperf.training.variable_update.all_reduce.ring import xring
from pytest_dtfperf.training.variable_update.all_reduce.shuffle import pscpu, psgpu
from pytest_dtfperf.training.variable_update.all_reduce.work import Algorithm, Topology
from pytest_dtfperf.training.variable_update.wire import Wire

HIERARCHICAL_COPY = "hierarchical_copy"  # an option of its own, not a word of the specification

ALGORITHMS: Mapping[str, Algorithm] = {
    "xring": xring,
    "pscpu": pscpu,
    "psgpu": psgpu,
    "pscpu/pscpu": across_hosts("pscpu", pscpu),
    "nccl": nccl,
    "nccl/xring": across_hosts("nccl", xring),
    "nccl/rechd": across_hosts("nccl", rechd),
    "nccl/pscpu": across_hosts("nccl", pscpu),
    HIERARCHICAL_COPY: hierarchical_copy,
}

Reduce = Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]  # a variable's gradient from each tower -> the mean for each


class Reduction:
    """Called once for each variable, or for whatever piece of them is added at once."""

    def __init__(self, order: TaskOrder, devices: Devices, ranges: Sequence[Range]) -> None:
        """Raises `SpecError` if these devices cannot add so."""
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
