"""Rounds in which hosts meet in pairs, and what the rates of pairs show of hosts, links and single pairs. Pure.

In a round every host meets one other, so that each pair is alone on its links. In further rounds it meets others. A host that
sends slowly does so to all of them, and a host that receives slowly does so from all. A stream is a reading of the "link out"
of its source and of the "link in" of its target, which `qualify.peers` compares with those of other hosts. Partners change, so
a slow partner is only one slow reading. A pair is slow if its rate is far below the rates of both hosts with others, also when
it is measured again.
"""

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from pytest_dtfperf.datamodel.qualification import HostVerdict, PairResult
from pytest_dtfperf.launch.link_rounds import count_rounds, make_matching
from pytest_dtfperf.qualify.peers import QualifyPolicy

LINK_IN, LINK_OUT = "link in", "link out"
PAIR_TRAINING = "training in pairs"
CAPACITIES = LINK_OUT, LINK_IN  # of the source and of the target of a stream
LINK_POLICY = QualifyPolicy(tolerance=0.10, slow=0.25)
PAIR_READINGS = 5  # of a suspect pair, all of which must be slow: by chance one in ten is
KNOWN_READINGS = 2  # of a slow host: after the first one it may be its partner that is slow
MOST_FOR_ALL_PAIRS = 16  # hosts: with so many, all pairs are measured, in 15 rounds; of more hosts each meets some others
MOST_SUSPECT_PAIRS = 64  # read again; more are no pairs, but a network that has changed

Pair = tuple[str, str]  # from, to


def draw_matching(hosts: Sequence[str], number: int, seed: int) -> list[Pair]:
    """Return one of the rounds of a tournament: all hosts in pairs, but one of an odd number.

    The first n - 1 rounds of n hosts (n, if odd) have no pair in common. The order of hosts is drawn, and again after these.
    """
    order = list(hosts)
    drawn, turn = divmod(number, max(1, count_rounds(len(hosts))))
    random.Random(seed + drawn).shuffle(order)
    return make_matching(order, turn)


def count_matchings(hosts: int) -> int:
    """Return how many matchings one round of readings takes, so that each host meets another one.

    Of an odd number of hosts, each matching leaves one out. With three hosts, one is slow only if it is with both others.
    """
    return 3 if hosts == 3 else 1 + hosts % 2


def count_training_matchings(hosts: int) -> int:
    """Return how many matchings of trainings one round of readings takes, so that each host trains with two others or more."""
    return 2 + hosts % 2


@dataclass
class Tournament:
    """Draws one matching after the other, so that each host meets others that it has not met."""

    seed: int
    number: int = 0  # of the next matching

    def draw(self, hosts: Sequence[str], count: int) -> list[list[Pair]]:
        """Return the next matchings of these hosts, which have no pair in common."""
        rounds = max(1, count_rounds(len(hosts)))
        first = self.number if self.number % rounds + count <= rounds else rounds * (self.number // rounds + 1)
        self.number = first + count
        return [draw_matching(hosts, number, self.seed) for number in range(first, self.number)]


def select_better(rates: Mapping[Pair, float]) -> dict[str, float]:
    """Return the better rate of each host, if it trained with two others or more: the other partner may be the slow one.

    The rate of a training that failed is 0. A host with no other rate is left out.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for pair, per_s in rates.items():
        for host in pair:
            found[host].append(per_s)
    return {host: max(each) for host, each in found.items() if len(each) > 1 and max(each)}


@dataclass
class PairReadings:
    """All rates of streams so far, from one host to another."""

    rates: dict[Pair, list[float]] = field(default_factory=lambda: defaultdict(list))
    repeated: dict[Pair, list[float]] = field(default_factory=lambda: defaultdict(list))  # of suspect pairs
    _of_host: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))  # by host and capacity

    def add_round(self, rates: Mapping[Pair, float]) -> Mapping[str, Mapping[str, float]]:
        """Add a round's rates, and return the reading of each host: the best, if it met several others.

        A host has no reading with a partner that was slow with two or more others, and with all so far: such readings would
        count as noise.
        """
        found: dict[str, dict[str, float]] = defaultdict(dict)
        usual = statistics.median(rates.values()) if rates else 0.0
        for pair, per_s in rates.items():
            self.rates[pair].append(per_s)
            (source, out), (target, into) = zip(pair, CAPACITIES, strict=True)
            for host, capacity, partner, other in ((source, out, target, into), (target, into, source, out)):
                earlier = self._of_host[partner, other]
                if len(earlier) < KNOWN_READINGS or max(earlier) > (1 - LINK_POLICY.slow) * usual:
                    found[host][capacity] = max(per_s, found[host].get(capacity, 0.0))
        for pair, per_s in rates.items():
            for key in zip(pair, CAPACITIES, strict=True):
                self._of_host[key].append(per_s)
        return found

    def add_unmet(self, rates: Mapping[Pair, float]) -> None:
        """Add rates of pairs that had none."""
        for pair, per_s in rates.items():
            self.rates[pair].append(per_s)

    def list_unmet(self, hosts: Sequence[str]) -> list[Pair]:
        """Return each two of these hosts with a direction that was not measured, if they are few enough to measure all."""
        if len(hosts) > MOST_FOR_ALL_PAIRS:
            return []
        return [pair for pair in combinations(hosts, 2) if pair not in self.rates or pair[::-1] not in self.rates]

    def add_again(self, rates: Mapping[Pair, float]) -> None:
        """Add further rates of suspect pairs."""
        for pair, per_s in rates.items():
            self.repeated[pair].append(per_s)

    def find_suspects(self) -> list[Pair]:
        """Return the pairs that are slower than both hosts are with others, the slowest first, `MOST_SUSPECT_PAIRS` at most."""
        expected = self._expect()
        losses = {pair: 1 - statistics.median(rates) / expected[pair] for pair, rates in self.rates.items() if pair in expected}
        slow = sorted((pair for pair, loss in losses.items() if loss > LINK_POLICY.slow), key=lambda pair: -losses[pair])
        return slow[:MOST_SUSPECT_PAIRS]

    def judge_suspects(self) -> Iterator[PairResult]:
        """Yield the suspect pairs that were slow each time."""
        expected = self._expect()
        for pair in self.find_suspects():
            repeated = self.repeated.get(pair, [])
            if len(repeated) >= PAIR_READINGS and max(repeated) > (1 - LINK_POLICY.slow) * expected[pair]:
                continue
            verdict = HostVerdict.SLOW if len(repeated) >= PAIR_READINGS else HostVerdict.NOT_JUDGED
            per_s = statistics.median(repeated or self.rates[pair])
            yield PairResult(hosts=pair, name="link", per_s=per_s, expected_per_s=expected[pair], verdict=verdict)

    def _expect(self) -> Mapping[Pair, float]:
        """Return the rate of each pair by what its hosts do with others, for hosts that met several others.

        It is the lower one of the two hosts' medians with other partners.
        """
        partners: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        for (source, target), rates in self.rates.items():
            level = statistics.median(rates)
            partners[source, LINK_OUT][target] = level
            partners[target, LINK_IN][source] = level

        def compute_median_of_others(host: str, capacity: str, partner: str) -> float:
            others = [level for other, level in partners[host, capacity].items() if other != partner]
            return statistics.median(others) if len(others) > 1 else math.nan

        found = {
            pair: (compute_median_of_others(pair[0], LINK_OUT, pair[1]), compute_median_of_others(pair[1], LINK_IN, pair[0]))
            for pair in self.rates
        }
        return {pair: min(both) for pair, both in found.items() if not any(map(math.isnan, both))}
