"""The rounds in which links are measured: links of one round have no host in common, so that none disturbs another. Pure.

Of a training, the links that it uses most are measured. A parameter server receives from all workers at once, and answers all:
its host's fan-in and fan-out are measured so, one after the other, from and to the hosts of workers. A worker does so with all
parameter servers, if there are several: its host, too, is in the middle once. Where there are more than a few such hosts,
several are in the middle at once, each with other hosts around it. Workers without parameter servers are measured in a ring.
Tasks of one host need no link.

Each worker has a TCP connection of its own to each parameter server. Networks limit single connections, too, and a core sends
only so much. So the stream between two hosts has as many connections as the training has there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_dtfperf.clusters.placement import PlacedTask
from pytest_dtfperf.datamodel.probes import ALL, make_link_name

FEW = 8  # hosts: with so many, every pair is measured, in 14 rounds; with more, a ring, in 4 or 6

Pair = tuple[int, int]  # from, to
T = TypeVar("T")


def make_rounds(hosts: Sequence[int]) -> list[list[Pair]]:
    """Return every ordered pair of few hosts; of many hosts, every host with the next one, both ways."""
    return _add_reverse(make_matchings(hosts)) if len(hosts) <= FEW else make_ring(hosts)


def make_ring(hosts: Sequence[int]) -> list[list[Pair]]:
    """Return every host with the next one, both ways."""
    return _add_reverse(_split_ring(hosts) if len(hosts) > 2 else make_matchings(hosts))


def _add_reverse(one_way: Sequence[list[Pair]]) -> list[list[Pair]]:
    return [way for pairs in one_way for way in (pairs, [(there, here) for here, there in pairs])]


def make_matchings(hosts: Sequence[T]) -> list[list[tuple[T, T]]]:
    """Return rounds in which each host meets another one, until all have met. One host alone meets no other."""
    return [make_matching(hosts, number) for number in range(count_rounds(len(hosts)))] if len(hosts) > 1 else []


def make_matching(hosts: Sequence[T], number: int) -> list[tuple[T, T]]:
    """Return one round of these by the circle method: all hosts in pairs, but one of an odd number of hosts.

    The first host keeps its seat, and the others move by one seat in every round.
    """
    rounds = count_rounds(len(hosts))
    seats: list[int | None] = [0, *(1 + (at - number) % rounds for at in range(rounds))] if rounds else []
    if len(hosts) % 2:
        seats = [seat if seat != len(hosts) else None for seat in seats]
    opposite = zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
    return [(hosts[here], hosts[there]) for here, there in opposite if here is not None and there is not None]


def count_rounds(hosts: int) -> int:
    """Return after how many rounds each of so many hosts has met all others."""
    return max(0, hosts - 1 + hosts % 2)


def _split_ring(hosts: Sequence[int]) -> list[list[Pair]]:
    """Return every second link of the ring, then the others; of an odd ring the last one by itself."""
    links = [(here, hosts[(i + 1) % len(hosts)]) for i, here in enumerate(hosts)]
    even = len(links) - len(links) % 2
    return [part for part in (links[0:even:2], links[1:even:2], links[even:]) if part]


def split(pairs: Sequence[tuple[T, T]]) -> list[list[tuple[T, T]]]:
    """Return any pairs, in as many rounds as they need."""
    found: list[list[tuple[T, T]]] = []
    for pair in pairs:
        free = next((each for each in found if not {*pair} & {host for taken in each for host in taken}), None)
        if free is None:
            found.append(free := [])
        free.append(pair)
    return found


MOST_TURNS = 4  # of parameter servers' hosts, in each direction: 8 rounds of a second are the limit of a probe
MOST_WORKERS_TURNS = 2  # of hosts with workers alone, likewise: 4 rounds more
MOST_CONNECTIONS = 8  # between two hosts: a thread sends on each, and more find no core to run on


@dataclass(frozen=True)
class Fan:
    """Simultaneous streams that form one measurement: (from, to), by the numbers of hosts."""

    source: int | None  # None: from all the others
    target: int | None
    streams: tuple[Pair, ...]
    connections: tuple[int, ...] = ()  # TCP connections of each stream; empty: one each

    def count_connections(self) -> Mapping[Pair, int]:
        """Return the number of TCP connections of each stream."""
        return dict(zip(self.streams, self.connections or (1,) * len(self.streams), strict=True))

    def link(self, names: Sequence[str]) -> str:
        """Return the link's name in `Probes`."""
        return make_link_name(*(ALL if host is None else names[host] for host in (self.source, self.target)))

    def find_other_host(self, stream: Pair) -> int | None:
        """Return the host of a stream's other end; None for a link of two."""
        source, target = stream
        return source if self.source is None else target if self.target is None else None


Round = Sequence[Fan]


def plan_fans(tasks: Sequence[PlacedTask], *, pairs: bool = False) -> list[Round]:
    """Return the rounds for a training's tasks; with `pairs`, also each link of a worker and a parameter server by itself."""
    servers, workers = (list(dict.fromkeys(task.host for task in tasks if task.job == job)) for job in ("ps", "worker"))
    if not servers:
        return [_is_alone(each) for each in make_ring(workers)]
    alone = [worker for worker in workers if worker not in servers] if len(servers) > 1 else []
    turns = [*_take_turns(servers, workers, MOST_TURNS), *_take_turns(alone, servers, MOST_WORKERS_TURNS)]
    found = [fans for turn in turns for fans in _split_directions(turn)]
    rounds = [*found, *(_is_alone(each) for each in split(_list_pairs(servers, workers)))] if pairs else found
    servers_of, workers_of = (Counter(task.host for task in tasks if task.job == job) for job in ("ps", "worker"))
    return [
        [
            replace(fan, connections=tuple(_count_connections(servers_of, workers_of, pair) for pair in fan.streams))
            for fan in each
        ]
        for each in rounds
    ]


def _list_pairs(servers: Sequence[int], workers: Sequence[int]) -> list[Pair]:
    """Return the hosts of each link between a parameter server and a worker, both ways: their number is the product."""
    links = (pair for ps in servers for worker in workers if worker != ps for pair in ((ps, worker), (worker, ps)))
    return list(dict.fromkeys(links))


def _count_connections(servers: Mapping[int, int], workers: Mapping[int, int], pair: Pair) -> int:
    """Return the TCP connections between the workers of one host and the parameter servers of the other, both ways."""
    here, there = pair
    found = servers.get(here, 0) * workers.get(there, 0) + servers.get(there, 0) * workers.get(here, 0)
    return max(1, min(found, MOST_CONNECTIONS))


def _is_alone(pairs: Sequence[Pair]) -> Round:
    return [Fan(source, target, ((source, target),)) for source, target in pairs]


def _take_turns(centre_hosts: Sequence[int], partners: Sequence[int], most: int) -> list[list[tuple[int, list[int]]]]:
    """Return what is measured at the same time: central hosts, each with hosts around it that no other one has."""
    at_once = -(-len(centre_hosts) // most)
    found = []
    left = list(centre_hosts)
    while left:
        count = at_once
        while count > 1 and len(set(partners) - set(left[:count])) < count:  # each needs a host around it
            count -= 1
        centres, left = left[:count], left[count:]
        taken = set(centres)
        others = [host for host in partners if host not in taken]
        found.append([(centre, others[i::count]) for i, centre in enumerate(centres) if others[i::count]])
    return [turn for turn in found if turn]


def _split_directions(turn: Sequence[tuple[int, list[int]]]) -> list[Round]:
    fan_in = [Fan(None, centre, tuple((other, centre) for other in others)) for centre, others in turn]
    fan_out = [Fan(centre, None, tuple((centre, other) for other in others)) for centre, others in turn]
    return [fan_in, fan_out]
