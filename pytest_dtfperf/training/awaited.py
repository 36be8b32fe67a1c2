"""Which of a step's values are sent when: in waves. Pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Of all bytes, in the network's order: when so many have come, more are sent ...
AWAITED = (0.08, 0.2, 0.35, 0.5, 0.7)
# ... of each server as many as any server has of what comes until the next time, and so much of its part of all beyond.
# 4 servers, 2 workers of one core each: a step of InceptionV3 takes 3.37 s, where links allow 3.19, and 3.51 s with the first
# of these alone; ResNet-50 3.52, 3.58, and 3.81 without any of this, where they allow 3.42.
BEYOND = 0.12


class Wave(NamedTuple):
    """Values that are sent when others have come, by name."""

    awaited: frozenset[str]
    held_back: frozenset[str]  # until all of those have come


def waves_of(sizes: Mapping[str, int], servers: Mapping[str, int]) -> list[Wave]:
    """Of values of these sizes, in the network's order, each on its server. What is in no wave is sent at once."""
    awaited = [names for names in dict.fromkeys(_first(sizes, part) for part in AWAITED) if names]
    before = [_sent_until(sizes, servers, names) for names in awaited]  # so many of each server are sent before the wave
    held_back: list[list[str]] = [[] for _ in awaited]
    sent: Counter[int] = Counter()
    for name, size in sizes.items():
        if waves := bisect_right(before, sent[servers[name]]):
            held_back[waves - 1].append(name)
        sent[servers[name]] += size
    return [Wave(frozenset(names), frozenset(theirs)) for names, theirs in zip(awaited, held_back, strict=True) if theirs]


def _first(sizes: Mapping[str, int], part: float) -> tuple[str, ...]:
    """Names of those that are within this part of all, in their order."""
    total, before = sum(sizes.values()), 0
    found = []
    for name, size in sizes.items():
        before += size
        if before > part * total:
            break
        found.append(name)
    return tuple(found)


def _sent_until(sizes: Mapping[str, int], servers: Mapping[str, int], awaited: Iterable[str]) -> float:
    """What keeps a server's link busy until these have come from all of them."""
    theirs: Counter[int] = Counter()
    for name in awaited:
        theirs[servers[name]] += sizes[name]
    return max(theirs.values()) + BEYOND * sum(sizes.values()) / len(set(servers.values()))
