"""Pairs exchange halves: as many bytes as a ring, in fewer steps."""

from collections.abc import Sequence

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.variable_update.all_reduce.work import T, Topology, Work


def rechd(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Recursive halving and doubling (Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005).

    In each round, every tower gives one half of what it still has to its partner, adds the partner's other half to its own, and
    takes the next nearer partner. The means come back on the same way. Raises `SpecError` unless 1, 2, 4, 8, ... take part.
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
        return _of_one_number(work, values, towers, 2 * distance)
    upper = [bool(tower & distance) for tower in range(len(towers))]
    kept = [work.add([halves[i][upper[i]], halves[i ^ distance][upper[i]]], towers[i]) for i in range(len(towers))]
    means = _halve(work, kept, towers, distance // 2)
    both = [(means[i ^ distance], means[i]) if upper[i] else (means[i], means[i ^ distance]) for i in range(len(towers))]
    return [work.join(both[i], values[i], towers[i]) for i in range(len(towers))]


def _of_one_number(work: Work[T], values: Sequence[T], towers: Sequence[str], members: int) -> list[T]:
    """Of each group of so many neighbours the first adds for all: were each to add what others have sent, and so may have
    rounded, to its own, they would not have the same mean.
    """
    found: list[T] = []
    for first in range(0, len(towers), members):
        adder = towers[first]
        mean = work.mean(work.add(values[first : first + members], adder), adder)
        found += [mean, *(work.copy(mean, tower) for tower in towers[first + 1 : first + members])]
    return found
