"""Which links a training uses most, and which of them are measured at once. Pure: placed tasks go in, rounds come out.

A parameter server hears from all workers at once, and answers all: its host's fan-in and fan-out are measured so, one after the
other, from and to the hosts of workers. A worker does so with all parameter servers, if there are several: its host, too, is in
the middle once. Where there are more than a few such hosts, several have their turn at once, each with others. Workers that
talk among themselves do so in a ring, mostly. Tasks of one host need no link.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_dtfperf.launch.placement import PlacedTask
from pytest_dtfperf.launch.rounds import Pair, ring, split

ALL = "*"
MOST_TURNS = 4  # of parameter servers' hosts, in each direction: 8 rounds of a second are what a probe may take
MOST_WORKERS_TURNS = 2  # of hosts with workers alone, likewise: 4 rounds more


@dataclass(frozen=True)
class Fan:
    """Streams of one moment that are one measurement: (from, to), by the numbers of hosts."""

    source: int | None  # None: all the others
    target: int | None
    streams: tuple[Pair, ...]

    def link(self, names: Sequence[str]) -> str:
        """As `explain.probes` names it."""
        source, target = (ALL if host is None else names[host] for host in (self.source, self.target))
        return f"{source}>{target}"

    def other(self, stream: Pair) -> int | None:
        """The host of a stream's other end; None for a link of two."""
        source, target = stream
        return source if self.source is None else target if self.target is None else None


Round = Sequence[Fan]


def rounds(tasks: Sequence[PlacedTask], *, pairs: bool = False) -> list[Round]:
    """Of a training's tasks; with `pairs`, each link between a worker and a parameter server alone, too."""
    servers, workers = (list(dict.fromkeys(task.host for task in tasks if task.job == job)) for job in ("ps", "worker"))
    if not servers:
        return [_alone(each) for each in ring(workers)]
    alone = [worker for worker in workers if worker not in servers] if len(servers) > 1 else []
    turns = [*_turns(servers, workers, MOST_TURNS), *_turns(alone, servers, MOST_WORKERS_TURNS)]
    found = [fans for turn in turns for fans in _both_ways(turn)]
    links = {pair: None for ps in servers for worker in workers if worker != ps for pair in ((ps, worker), (worker, ps))}
    return [*found, *(_alone(each) for each in split(list(links)))] if pairs else found


def _alone(pairs: Sequence[Pair]) -> Round:
    return [Fan(source, target, ((source, target),)) for source, target in pairs]


def _turns(in_the_middle: Sequence[int], around: Sequence[int], most: int) -> list[list[tuple[int, list[int]]]]:
    """Who is measured at the same time: each host in the middle with those around it that are its own meanwhile."""
    at_once = -(-len(in_the_middle) // most)
    found = []
    left = list(in_the_middle)
    while left:
        count = at_once
        while count > 1 and len(set(around) - set(left[:count])) < count:  # each needs somebody to talk to
            count -= 1
        centres, left = left[:count], left[count:]
        others = [host for host in around if host not in centres]
        found.append([(centre, others[i::count]) for i, centre in enumerate(centres) if others[i::count]])
    return [turn for turn in found if turn]


def _both_ways(turn: Sequence[tuple[int, list[int]]]) -> list[Round]:
    fan_in = [Fan(None, centre, tuple((other, centre) for other in others)) for centre, others in turn]
    fan_out = [Fan(centre, None, tuple((centre, other) for other in others)) for centre, others in turn]
    return [fan_in, fan_out]
