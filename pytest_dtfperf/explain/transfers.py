"""Which transfers have become slower: those of one pair of tasks, of one worker, one parameter server, one host, or all.

Workers' seconds of receiving and sending are shared out among their links, by how much longer each link was busy. A name is
given to the smallest part of the network that has all slow links and no other: one with nothing but a few bytes tells nothing,
unless it was probed.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_dtfperf.explain.anatomy import MOST_LINKS, Anatomy, Link
from pytest_dtfperf.explain.kinds import is_server
from pytest_dtfperf.explain.model import Cell, Suspect
from pytest_dtfperf.explain.probes import ALL
from pytest_dtfperf.explain.tables import stepping

_SLOWER = 0.05  # of its time, that a link is busy longer at least: with less it may have met a busier moment
_LIKE_THE_SLOWEST = 0.4  # of the part by which the slowest link is busy longer: with less, it only suffers from that one
_COUNTS = 0.1  # of the largest link's bytes, or growth: what has less is too short to be slow or not
_MOST = 3  # names, before what is left is nobody's
_BOTH = 0.2  # of a link's seconds, in the lesser direction: then it is both

Ends = tuple[str, str]  # source, destination
Pair = tuple[str, str]  # the same two in the order of their names


@dataclass(frozen=True)
class Slow:
    """What of the network is slow."""

    location: str | None  # "ps:0>worker:1", "ps:0<>worker:1", a task, a host; None: all of it
    pairs: Sequence[Pair]


def suspects(
    cells: Mapping[Cell, float],
    slow: Collection[str],
    then: Anatomy | None,
    now: Anatomy | None,
    hosts: Mapping[str, str],
    probed: Collection[Ends] = (),
) -> Iterator[Suspect]:
    """`cells`: what workers' transfers have changed by; `slow`: those workers whose have become longer for sure; `probed`:
    links between hosts that are slower when probed.

    What is slow is named by these alone. What others wait for over the same links is of the same cause.
    """
    told = {cell: seconds for cell, seconds in cells.items() if _links(*cell, now) and (cell[0] in slow or seconds > 0)}
    shared = dict(_shared(told, then, now))
    of_slow = {ends: {cell: s for cell, s in found.items() if cell[0] in slow} for ends, found in shared.items()}
    untold = {cell: seconds for cell, seconds in cells.items() if cell not in told and cell[0] in slow}
    others = {_pair(ends) for ends, found in of_slow.items() if not found}
    for part in named({ends: found for ends, found in of_slow.items() if found}, then, now, hosts, probed, others):
        found: dict[Cell, float] = defaultdict(float)
        for ends in list(shared):
            if _pair(ends) in part.pairs:
                for cell, seconds in shared.pop(ends).items():
                    found[cell] += seconds
        if found and (part.location is None or is_server(part.location)):  # so it is what is not told of, too
            found, untold = {**found, **untold}, {}
        if found:
            yield Suspect("transfer", found, location=part.location)
    if untold:
        yield Suspect("transfer", untold, location=_of_untold({worker for worker, _ in untold}, hosts))


def _of_untold(workers: Collection[str], hosts: Mapping[str, str]) -> str | None:
    """Where no trace tells of links: the one worker that is slow; the one server that several talk to; else all of them."""
    servers = [task for task in hosts if is_server(task)]
    if len(workers) == 1:
        return next(iter(workers))
    return servers[0] if len(servers) == 1 and workers else None


def _shared(
    cells: Mapping[Cell, float], then: Anatomy | None, now: Anatomy | None
) -> Iterator[tuple[Ends, Mapping[Cell, float]]]:
    """Link -> its part of these seconds."""
    found: dict[Ends, dict[Cell, float]] = defaultdict(lambda: defaultdict(float))
    for (worker, kind), seconds in cells.items():
        growth = {ends: _growth(ends, worker, then, now) for ends in _links(worker, kind, now)}
        total = sum(growth.values())
        for ends, part in growth.items():
            if part > 0:
                found[ends][worker, kind] += seconds * part / total
    yield from found.items()


def _links(worker: str, kind: str, anatomy: Anatomy | None) -> Sequence[Ends]:
    """Over which these seconds can have gone: of its own those in this direction, else all of a session's."""
    everything = [(link.source, link.destination) for link in anatomy.links] if anatomy else []
    own = [ends for ends in everything if worker in ends]
    if anatomy and len(stepping(anatomy)) > 1:  # of many links, an anatomy has the busiest
        everything = own
    if kind == "host":
        return own or everything
    found = [ends for ends in own or everything if (ends[0] if kind == "send" else ends[1]) == worker]
    return found or own or everything


def _growth(ends: Ends, worker: str, then: Anatomy | None, now: Anatomy | None) -> float:
    return max(0.0, _busy(ends, worker, now) - _busy(ends, worker, then))


def _busy(ends: Ends, worker: str, anatomy: Anatomy | None) -> float:
    """Seconds of a step; where clocks do not tell, its bytes' share of the worker's time for such transfers. A link that an
    anatomy has had no room for was busy for as long as the least busy one that it has, at most.
    """
    link = _find(ends, anatomy)
    if anatomy is None or (link is None and len(anatomy.links) < MOST_LINKS):
        return 0.0
    if link is None:
        return min((each.busy_s for each in anatomy.links if each.busy_s is not None), default=0.0)
    if link.busy_s is not None:
        return link.busy_s
    kind = "send" if ends[0] == worker else "receive"
    task = anatomy.tasks.get(worker)
    alike = [each for each in anatomy.links if worker == (each.source if kind == "send" else each.destination)]
    total = sum(each.size_bytes for each in alike)
    return task.parts.get(kind, 0.0) * link.size_bytes / total if task and total else 0.0


def _find(ends: Ends, anatomy: Anatomy | None) -> Link | None:
    links = anatomy.links if anatomy else ()
    return next((link for link in links if (link.source, link.destination) == ends), None)


def named(
    shared: Mapping[Ends, Mapping[Cell, float]],
    then: Anatomy | None,
    now: Anatomy | None,
    hosts: Mapping[str, str],
    probed: Collection[Ends] = (),
    others: Collection[Pair] = (),
) -> Iterator[Slow]:
    """The parts of the network that are slow, the one with most seconds first. `others`: further links, slow if they are busy
    longer by as much.
    """
    seconds: dict[Pair, float] = defaultdict(float)
    for ends, of_link in shared.items():
        seconds[_pair(ends)] += sum(of_link.values())
    telling = _telling(now)
    most = max(seconds.values(), default=0.0)
    slower = {pair: _slower(pair, then, now) for pair in seconds if seconds[pair] > _COUNTS * most}
    least = max(_SLOWER, _LIKE_THE_SLOWEST * max((slower[pair] for pair in slower if pair in telling), default=0.0))
    slow = {pair for pair in slower if slower[pair] > least or slower[pair] == math.inf}
    slow |= {pair for pair in telling & set(others) if slow and _slower(pair, then, now) > least}
    for _ in range(_MOST):
        if slow.isdisjoint(seconds):
            return
        found = _largest(slow, telling | slow, seconds, hosts)
        pairs = [pair for pair in seconds if found is None or pair in found.pairs or _touches(pair, found.location, hosts)]
        location = found.location if found else None
        if found and len(found.pairs) == 1:
            location = _end_of_more(found.pairs[0], telling, now, hosts, probed) or _direction(pairs, shared)
        yield Slow(location, pairs)
        slow -= set(pairs)


def _end_of_more(
    pair: Pair, telling: Collection[Pair], now: Anatomy | None, hosts: Mapping[str, str], probed: Collection[Ends]
) -> str | None:
    """The one end of a slow link whose other links have too few bytes to tell anything, and were slow when probed: some of
    them, or all of them together where no other host's were.
    """
    both = [hosts.get(end, end) for end in pair]
    altogether = {end for ends in probed if ALL in ends for end in ends} - {ALL}
    found = []
    for end, host, other in zip(pair, both, both[::-1], strict=True):
        is_alone = all(end not in each for each in telling if each != pair)
        has_more = any(end in each and each != pair for each in _pairs(now))
        is_slow = any(host in ends and other not in ends and ALL not in ends for ends in probed)
        if is_alone and (is_slow or (has_more and altogether == {host})):
            found.append(end)
    return found[0] if len(found) == 1 else None


def _pairs(anatomy: Anatomy | None) -> set[Pair]:
    """Of workers and parameter servers: what these say to each other is not probed."""
    links = [(link.source, link.destination) for link in anatomy.links] if anatomy else []
    return {_pair(ends) for ends in links if is_server(ends[0]) != is_server(ends[1])}


def _largest(
    slow: Iterable[Pair], telling: Iterable[Pair], seconds: Mapping[Pair, float], hosts: Mapping[str, str]
) -> Slow | None:
    """What has only slow links among those that tell, and most of the seconds; None: all of the network."""
    slow, telling = set(slow), set(telling)
    candidates = [Slow(None, [pair]) for pair in sorted(slow)]
    tasks = sorted({end for pair in telling for end in pair})
    for end in (*tasks, *sorted({*hosts.values()} - {*tasks})):
        of_end = [pair for pair in sorted(telling) if _touches(pair, end, hosts)]
        if len(of_end) > 1 and slow.issuperset(of_end):
            candidates.append(Slow(end, of_end))
    best = max(candidates, key=lambda each: (round(sum(seconds.get(pair, 0.0) for pair in each.pairs), 9), -len(each.pairs)))
    is_all = len(slow) > 1 and slow >= telling and len(best.pairs) < len(slow)
    return None if is_all else best


def _telling(anatomy: Anatomy | None) -> set[Pair]:
    sizes: dict[Pair, float] = defaultdict(float)
    for link in anatomy.links if anatomy else ():
        sizes[_pair((link.source, link.destination))] += link.size_bytes
    return {pair for pair, size in sizes.items() if size > _COUNTS * max(sizes.values())}


def _slower(pair: Pair, then: Anatomy | None, now: Anatomy | None) -> float:
    """By what part it is busy longer, the way in which that is more."""
    return max(_longer(ends, then, now) for ends in (pair, pair[::-1]))


def _longer(ends: Ends, then: Anatomy | None, now: Anatomy | None) -> float:
    worker = next((end for end in ends if not is_server(end)), ends[0])
    before, after = (_busy(ends, worker, side) for side in (then, now))
    return after / before - 1 if before else math.inf if after else 0.0


def _direction(pairs: Sequence[Pair], shared: Mapping[Ends, Mapping[Cell, float]]) -> str:
    """Of one pair: which way it is slow."""
    (one, other) = pairs[0]
    there, back = (sum(shared.get(ends, {}).values()) for ends in ((one, other), (other, one)))
    if min(there, back) > _BOTH * (there + back):
        return f"{other}<>{one}" if is_server(one) else f"{one}<>{other}"
    return f"{one}>{other}" if there > back else f"{other}>{one}"


def _touches(pair: Pair, end: str | None, hosts: Mapping[str, str]) -> bool:
    """Whether a task is one end of it, or a host has one end and not the other."""
    return end is not None and (end in pair or [hosts.get(each) == end for each in pair].count(True) == 1)


def _pair(ends: Ends) -> Pair:
    return min(ends), max(ends)
