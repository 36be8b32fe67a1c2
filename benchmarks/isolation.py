"""How often a search for slow hosts and links finds what is there, and names what is not: simulated on the code that ships.

    python -m benchmarks.isolation [CLUSTERS] [SEED]     # about a second of CPU for each 100 clusters of 64 hosts

A training is as fast as the slowest of its hosts and links. Each run scatters, and all runs of a round share a part of that.
"""

import math
import sys
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from random import Random

from pytest_dtfperf.qualify.group_rates import UNKNOWN_NOISE, Group, SearchPolicy
from pytest_dtfperf.qualify.search import HostSearch
from pytest_dtfperf.stats.noise import Noise

SIZES = (8, 16, 64, 232, 1024)
ROUND_PART = 0.5  # of the spread of runs, which the runs of a round share

Scatter = Callable[[Random], float]  # standard deviation 1


def draw_normal(random: Random) -> float:
    """Draw from a normal distribution."""
    return random.gauss(0, 1)


def draw_heavy(random: Random) -> float:
    """Draw from a normal distribution, or for one run in twenty, one that is slower by five to fifteen deviations."""
    return random.gauss(0, 1) - (random.uniform(5, 15) if random.random() < 0.05 else 0)


@dataclass(frozen=True)
class SimulatedCluster:
    """Hosts, some of them slow, pairs that are slow together, and rows with slow links to all others."""

    hosts: list[str]
    losses: dict[str, float]
    links: dict[frozenset[str], float]
    cv: float
    scatter: Scatter = draw_normal
    far_hosts: frozenset[str] = frozenset()
    far_loss: float = 0.1

    @property
    def bad(self) -> Set[frozenset[str]]:
        """The sets that a search should name."""
        return {*(frozenset([host]) for host in self.losses), *self.links, *([self.far_hosts] if self.far_hosts else [])}

    def train(self, groups: list[Group], random: Random) -> list[float]:
        """Return the rates of one round."""
        common = ROUND_PART * self.cv * random.gauss(0, 1)
        return [self.measure_loss(group) * math.exp(common + self.cv * self.scatter(random)) for group in groups]

    def measure_loss(self, group: Group) -> float:
        """Return the rate of a group without noise."""
        losses = [self.losses.get(host, 0.0) for host in group]
        losses += [loss for pair, loss in self.links.items() if pair <= set(group)]
        is_across = bool(self.far_hosts & set(group)) and not set(group) <= self.far_hosts
        return 1 - max([*losses, self.far_loss if is_across else 0.0])


def draw_cluster(
    random: Random, size: int, bad: int, loss: float, cv: float, *, pairs: int = 0, scatter: Scatter = draw_normal
) -> SimulatedCluster:
    """Draw which hosts and pairs are slow; each loss is between the given one and 30 %."""
    hosts = [f"n{number}" for number in range(size)]
    losses = {host: random.uniform(loss, max(loss, 0.3)) for host in random.sample(hosts, bad)}
    links = {frozenset(random.sample(hosts, 2)): random.uniform(loss, 0.3) for _ in range(pairs)}
    return SimulatedCluster(hosts, losses, links, cv, scatter)


def search(
    cluster: SimulatedCluster, random: Random, policy: SearchPolicy, noise: Noise = UNKNOWN_NOISE
) -> tuple[Set[frozenset[str]], HostSearch]:
    """Return what a search names, and the search."""
    found = HostSearch(cluster.hosts, policy, noise=noise)
    while groups := found.propose():
        found.record(cluster.train(groups, random))
    return {frozenset(each.hosts) for each in found.findings}, found


def simulate(
    clusters: int,
    seed: int,
    *,
    size: int,
    bad: int = 0,
    loss: float = 0.05,
    cv: float = 0.01,
    pairs: int = 0,
    scatter: Scatter = draw_normal,
    calibrated: bool = False,
    policy: SearchPolicy | None = None,
) -> tuple[float, float, float, float]:
    """Return the fractions of bad sets found and of searches with a false name, and the mean runs and rounds."""
    random = Random(seed)
    hits = total = false = runs = rounds = 0
    for _ in range(clusters):
        cluster = draw_cluster(random, size, bad, loss, cv, pairs=pairs, scatter=scatter)
        noise = Noise(run=cv, degrees_of_freedom=20) if calibrated else UNKNOWN_NOISE
        named, found = search(cluster, random, policy or SearchPolicy(), noise)
        hits += len(named & cluster.bad)
        total += len(cluster.bad)
        false += any(not is_right(each, cluster.bad) for each in named)
        conclusion = found.conclude()
        runs += conclusion.runs
        rounds += conclusion.rounds
    return hits / total if total else 1.0, false / clusters, runs / clusters, rounds / clusters


def is_right(named: frozenset[str], bad: Set[frozenset[str]]) -> bool:
    """Return whether a named set is bad, or has only bad hosts."""
    return named in bad or all(frozenset([host]) in bad for host in named)


def list_rows(clusters: int, seed: int) -> Iterator[str]:
    """Yield the tables of docs/isolate.md."""
    yield "| Hosts | Slow hosts | CV | Loss | Noise | Found | Any false name | Runs | Rounds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for size in SIZES:
        number = max(10, clusters * 64 // max(64, size))
        for bad, cv, loss, scatter, calibrated in [
            *((bad, 0.01, 0.05, draw_normal, calibrated) for calibrated in (True, False) for bad in (0, 1, 2, 5)),
            (0, 0.03, 0.05, draw_normal, False),
            (1, 0.03, 0.05, draw_normal, False),
            (1, 0.005, 0.02, draw_normal, False),
            (0, 0.01, 0.05, draw_heavy, False),
            (1, 0.01, 0.05, draw_heavy, False),
        ]:
            policy = SearchPolicy(smallest=loss)
            found, false, runs, rounds = simulate(
                number, seed, size=size, bad=bad, loss=loss, cv=cv, scatter=scatter, calibrated=calibrated, policy=policy
            )
            shape = "heavy" if scatter is draw_heavy else "calibrated" if calibrated else "unknown"
            hits = f"{found:.1%}" if bad else "-"
            losses = f"{cv:.1%} | {loss:.0%} to 30 %"
            yield f"| {size} | {bad} | {losses} | {shape} | {hits} | {false:.1%} | {runs:.0f} | {rounds:.0f} |"
    yield ""
    yield "| Hosts | Slow pairs | Layouts | Found | Any false name | Runs |"
    yield "|---|---|---|---|---|---|"
    for size, layouts in ((4, 4), (8, 8), (9, 4), (16, 5), (64, 2), (64, 9)):
        policy = SearchPolicy(layouts=layouts)
        found, false, runs, _ = simulate(clusters, seed, size=size, pairs=1, loss=0.08, policy=policy)
        yield f"| {size} | 1 | {layouts} | {found:.1%} | {false:.1%} | {runs:.0f} |"


def main() -> None:
    """Print the tables."""
    clusters, seed = (int(sys.argv[1]) if len(sys.argv) > 1 else 200), (int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    for row in list_rows(clusters, seed):
        print(row, flush=True)


if __name__ == "__main__":
    main()
