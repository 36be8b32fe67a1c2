"""Reduce the gradients of many devices to their mean on each: ring, halving, shuffle and two levels. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pytest_dtfperf.errors import SpecError

T = TypeVar("T")  # a tensor on a device, or its stand-in. Its use on another device sends it there


class Work(Protocol[T]):
    """The operations on tensors that algorithms use."""

    def add(self, values: Sequence[T], device: str) -> T:
        """Return the sum of one or more values."""

    def mean(self, total: T, device: str) -> T:
        """Return the mean over all towers from their sum. An algorithm calls it once for each element, on the complete sum."""

    def copy(self, value: T, device: str) -> T:
        """Return the value on that device, from where others fetch it."""

    def cut(self, value: T, parts: int, device: str) -> list[T]:
        """Cut the value into `parts` parts of about the same size, or fewer if it has fewer elements."""

    def join(self, parts: Sequence[T], like: T, device: str) -> T:
        """Join the parts that `cut` returned, in the shape of `like`."""

    def nccl(self, values: Sequence[T], devices: Sequence[str]) -> list[T]:
        """Return the sum on each of these GPUs of one process, by Nvidia's library."""


@dataclass(frozen=True)
class Topology:
    """The devices of towers, and the CPU beside each."""

    towers: tuple[str, ...]
    hosts: tuple[str, ...]

    @property
    def all_hosts(self) -> tuple[str, ...]:
        """Return each CPU once."""
        return tuple(dict.fromkeys(self.hosts))

    @property
    def by_host(self) -> list[list[int]]:
        """Return the numbers of the towers beside each CPU."""
        return [[tower for tower, host in enumerate(self.hosts) if host == each] for each in self.all_hosts]


class Algorithm(Protocol):
    """An algorithm that reduces the gradients of one variable to their mean."""

    def __call__(self, work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
        """Return the mean for each tower, on its device or where it can fetch it, from one gradient of each tower.

        `turn` counts the variables, so that devices take turns in adding. `shards` is the number after '#' in the spec.
        """


def xring(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Add each of n parts on its way around the ring, and send the mean around again.

    So every tower sends 2 (n - 1) / n of a gradient's bytes (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009). With
    several shards there are as many rings, each for its part; every second one turns the other way.
    """
    towers = topology.towers
    rings = [work.cut(value, shards, device) for value, device in zip(values, towers, strict=True)]
    means = [_ring(work, shares, towers, backwards=number % 2 == 1) for number, shares in enumerate(zip(*rings, strict=True))]
    return [work.join(found, values[i], towers[i]) for i, found in enumerate(zip(*means, strict=True))]


def _ring(work: Work[T], values: Sequence[T], towers: Sequence[str], *, backwards: bool) -> list[T]:
    n = len(towers)
    parts = [work.cut(value, n, device) for value, device in zip(values, towers, strict=True)]
    means: list[list[T]] = [[] for _ in towers]
    for number in range(len(parts[0])):
        # The last tower that adds is a different one for each part.
        way = [(number + step) % n for step in range(1, n + 1)]
        if backwards:
            way = [(number - step) % n for step in range(1, n + 1)]
        value = parts[way[0]][number]
        for tower in way[1:]:
            value = work.add([value, parts[tower][number]], towers[tower])
        value = work.mean(value, towers[way[-1]])
        means[way[-1]].append(value)
        for tower in way[:-1]:
            value = work.copy(value, towers[tower])
            means[tower].append(value)
    return [work.join(found, values[i], towers[i]) for i, found in enumerate(means)]


def rechd(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Reduce by recursive halving and doubling.

    Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005. In each round, every tower sends one half of
    what it still has to its partner, adds the partner's other half to its own, and takes the next nearer partner. The means
    come back on the same way. Raises `SpecError` unless the number of towers is a power of two.
    """
    n = len(values)
    if n & (n - 1):
        raise SpecError(f"all_reduce_spec: rechd pairs workers, so there must be 2, 4, 8, ... of them, not {n}: take xring")
    return _halve(work, list(values), topology.towers, n // 2)


def _halve(work: Work[T], values: list[T], towers: Sequence[str], distance: int) -> list[T]:
    if distance == 0:
        return [work.mean(value, device) for value, device in zip(values, towers, strict=True)]
    halves = [work.cut(value, 2, device) for value, device in zip(values, towers, strict=True)]
    if len(halves[0]) < 2:
        return _reduce_single_element(work, values, towers, 2 * distance)
    upper = [bool(tower & distance) for tower in range(len(towers))]
    kept = [work.add([halves[i][upper[i]], halves[i ^ distance][upper[i]]], towers[i]) for i in range(len(towers))]
    means = _halve(work, kept, towers, distance // 2)
    both = [(means[i ^ distance], means[i]) if upper[i] else (means[i], means[i ^ distance]) for i in range(len(towers))]
    return [work.join(both[i], values[i], towers[i]) for i in range(len(towers))]


def _reduce_single_element(work: Work[T], values: Sequence[T], towers: Sequence[str], members: int) -> list[T]:
    """Let the first of each group of neighbours add for all.

    If each added its own value to received ones, which may have been rounded, they would not all have the same mean.
    """
    found: list[T] = []
    for first in range(0, len(towers), members):
        adder = towers[first]
        mean = work.mean(work.add(values[first : first + members], adder), adder)
        found += [mean, *(work.copy(mean, tower) for tower in towers[first + 1 : first + members])]
    return found


def pscpu(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Add on the CPUs beside the towers."""
    return _shuffle(work, values, topology.towers, topology.all_hosts, turn, shards)


def psgpu(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Add on the towers' own devices, which on hosts without GPUs are CPUs, too."""
    return _shuffle(work, values, topology.towers, topology.towers, turn, shards)


def _shuffle(
    work: Work[T], values: Sequence[T], towers: Sequence[str], adders: Sequence[str], turn: int, shards: int
) -> list[T]:
    """Add each shard on another device, which take turns over all variables."""
    cut = [work.cut(value, shards, device) for value, device in zip(values, towers, strict=True)]
    means = []
    for number, parts in enumerate(zip(*cut, strict=True)):
        adder = adders[(turn * shards + number) % len(adders)]
        means.append(work.mean(work.add(parts, adder), adder))
    return [work.join(means, value, tower) for value, tower in zip(values, towers, strict=True)]


def nest_algorithms(inner: str, outer: Algorithm) -> Algorithm:
    """Return an algorithm of two levels.

    `inner`, "pscpu" or "nccl", reduces within each worker; `outer`, with all the shards, between one device of each.
    """

    def reduce(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
        leaders, sums = [], []
        for group in topology.by_host:
            towers = [topology.towers[tower] for tower in group]
            leader = topology.hosts[group[0]] if inner == "pscpu" else towers[0]
            theirs = [values[tower] for tower in group]
            sums.append(work.add(theirs, leader) if inner == "pscpu" else work.nccl(theirs, towers)[0])
            leaders.append(leader)
        means = outer(work, sums, Topology(tuple(leaders), topology.all_hosts), turn=turn, shards=shards)
        here = {host: work.copy(means[i], leaders[i]) for i, host in enumerate(topology.all_hosts)}
        return [here[host] for host in topology.hosts]

    return reduce


def hierarchical_copy(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Add each half of the devices on one of its own, then both sums: made for hosts with GPUs in two linked groups.

    The devices of a half take turns in adding for it, and the halves in adding both.
    """
    half = (len(values) + 1) // 2
    groups = [group for group in (range(half), range(half, len(values))) if group]
    mains = [topology.towers[group[turn % len(group)]] for group in groups]
    sums = [work.add([values[tower] for tower in group], main) for group, main in zip(groups, mains, strict=True)]
    adder = mains[turn % len(mains)]
    mean = work.mean(work.add(sums, adder), adder)
    copies = [work.copy(mean, main) for main in mains]
    return [copy for copy, group in zip(copies, groups, strict=True) for _ in group]


def nccl(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Reduce by one operation of NCCL. The towers are GPUs of one process."""
    sums = work.nccl(values, topology.towers)
    return [work.mean(total, device) for total, device in zip(sums, topology.towers, strict=True)]


# What a device sends at once. TensorFlow's ring works on all chunks of a tensor at the same time and in place: smaller ones
# cost messages, larger ones leave the wire idle while they are added. 64 MB over loopback: one chunk per device 0.57 s, chunks
# of 1 MB 0.25 s; eight tensors of 8 MB: 0.31 and 0.27 s; chunks of half of that: no gain.
CHUNK_BYTES = 1 << 20


def count_rings(size_bytes: int, devices: int, shards: int = 1) -> int:
    """Return the number of rings for a tensor, each with one chunk per device. `shards` is the number after '#' in the spec."""
    return shards * max(1, round(size_bytes / (devices * CHUNK_BYTES)))
