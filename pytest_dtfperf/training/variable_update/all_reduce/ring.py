"""Towers in a ring, each of which talks to its neighbours alone: no link has more to carry than another."""

from collections.abc import Sequence

from pytest_dtfperf.training.variable_update.all_reduce.work import T, Topology, Work


def xring(work: Work[T], values: Sequence[T], topology: Topology, *, turn: int, shards: int) -> list[T]:
    """Each of n parts is added up on its way around the ring, and the mean goes around again.

    So every tower sends 2 (n - 1) / n of a gradient's bytes (Patarasuk and Yuan, J. Parallel Distrib. Comput. 69, 2009). With
    several shards there are as many rings, each for its share; every second one turns the other way.
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
        # The last tower to add is another one for each part.
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
