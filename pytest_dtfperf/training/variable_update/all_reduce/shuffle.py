"""All send to the same place, which adds, and from which all fetch: variables, or shards of them, take turns in places."""

from collections.abc import Sequence

from pytest_dtfperf.training.variable_update.all_reduce.work import T, Topology, Work


def pscpu(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Added on the CPUs beside the towers."""
    return _shuffle(work, values, topology.towers, topology.all_hosts, turn, shards)


def psgpu(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Added on the towers' own devices, which on hosts without GPUs are CPUs, too."""
    return _shuffle(work, values, topology.towers, topology.towers, turn, shards)


def _shuffle(
    work: Work[T], values: Sequence[T], towers: Sequence[str], adders: Sequence[str], turn: int, shards: int
) -> list[T]:
    """More shards than there are places go round again."""
    cut = [work.cut(value, shards, device) for value, device in zip(values, towers, strict=True)]
    means = []
    for number, parts in enumerate(zip(*cut, strict=True)):
        adder = adders[(turn * shards + number) % len(adders)]
        means.append(work.mean(work.add(parts, adder), adder))
    return [work.join(means, value, tower) for value, tower in zip(values, towers, strict=True)]
