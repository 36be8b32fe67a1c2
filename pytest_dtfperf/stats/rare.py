"""Runs that are slow once in a while, for no reason in what is measured: which of a sample's runs they are, or could be.

The model: at most one run in ten (`RARE`) is slow by any amount, independently of the others; all others scatter normally. A
run that is clearly slower than the rest of its sample counts as rare and is set aside, as long as no more than one run in five
is. Several slow runs may also be rare ones by chance: a loss must be seen without as many of the slowest as could be.
How often errors are made with and without such runs: benchmarks/verdicts.py, and docs/statistics.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from pytest_dtfperf.stats.noise import Noise, estimate, pooled

RARE = 0.1  # largest part of all runs that may be slow for no reason in what is measured
RUNS_FOR_EACH = 5  # runs that a sample needs for each run that is set aside
CLEARLY = 0.001  # probability of a run that is as slow as that beside the others, if it were one of them: it is set aside
PERHAPS = 0.02  # likewise: a loss must be seen without it, too


@dataclass(frozen=True, kw_only=True)
class SlowRuns:
    """What is known of the slowest runs of a sample."""

    of: int = 0  # runs that there are
    slow: int = 0  # of them that are clearly slower than the rest
    doubtful: int = 0  # slowest ones that may be rare: what must not decide alone
    slower: float = 0.0  # how much slower the slow ones are than the rest, as a fraction

    @property
    def rare(self) -> int:
        """Return how many of the slowest are set aside."""
        return self.slow if self.slow * RUNS_FOR_EACH <= self.of else 0


NONE_SLOW = SlowRuns()


def slow_runs(rates: Sequence[float], noise: Noise, level: float, others: Sequence[Sequence[float]] = ()) -> SlowRuns:
    """Find the runs of a sample that are slower than its other runs.

    Args:
        noise: what was calibrated.
        level: the largest probability with which rare runs alone may decide.
        others: further samples that scatter as this one does.
    """
    logs = sorted(map(math.log, rates), reverse=True)
    runs, slow, doubtful = len(logs), 0, 0
    for slowest in range(1, runs):
        rest = logs[: runs - slowest]
        spread, degrees_of_freedom = pooled([[math.exp(log) for log in rest], *others], noise)
        if not degrees_of_freedom:
            continue
        distance = (math.fsum(rest) / len(rest) - logs[len(rest)]) / (spread * math.sqrt(1 + 1 / len(rest)))
        if distance > _quantile(CLEARLY, degrees_of_freedom):
            slow = slowest
        if distance > _quantile(PERHAPS, degrees_of_freedom) and slowest <= most_rare(runs, level):
            doubtful = slowest
    slower = (
        1 - math.exp(math.fsum(logs[runs - slow :]) / slow - math.fsum(logs[: runs - slow]) / (runs - slow)) if slow else 0.0
    )
    found = SlowRuns(of=runs, slow=slow, slower=slower)
    return SlowRuns(of=runs, slow=slow, slower=slower, doubtful=max(doubtful, found.rare))


def without_slowest(rates: Sequence[float], slowest: int) -> list[float]:
    """Return the rates without so many of the slowest, in their order; of equal ones the last go first."""
    fastest = sorted(range(len(rates)), key=lambda run: -rates[run])[: len(rates) - slowest]
    return [rates[run] for run in sorted(fastest)]


@lru_cache(maxsize=1024)
def most_rare(runs: int, level: float) -> int:
    """Return the largest number of rare runs among so many that is seen with a probability of more than `level`."""
    from scipy.special import bdtrc

    return max(slow for slow in range(runs + 1) if slow == 0 or bdtrc(slow - 1, runs, RARE) > level)


@lru_cache(maxsize=1024)
def runs_to_confirm(false_alarm: float) -> int:
    """Return the number of runs that are, if all are slow, not all rare ones but with a probability of `false_alarm`."""
    return next(runs for runs in count(1) if most_rare(runs, false_alarm) < runs)


def estimate_noise(sessions: Sequence[Sequence[float]]) -> tuple[Noise, int]:
    """Estimate the noise of sessions without the runs that count as rare, and return how many those are.

    Raises `ValueError` if the sessions are too few.
    """
    sessions = [list(rates) for rates in sessions if rates]
    medians = [_median(rates) for rates in sessions]
    slowest_first = sorted(
        (
            (rate / median, session, run)
            for session, (rates, median) in enumerate(zip(sessions, medians, strict=True))
            for run, rate in enumerate(rates)
        ),
        key=lambda each: each[0],
    )
    rare = 0
    for slowest in range(1, len(slowest_first) // RUNS_FOR_EACH + 1):
        rest = _without(sessions, slowest_first[:slowest])
        spread, degrees_of_freedom = pooled(rest, Noise(run=1e-12))
        _, session, run = slowest_first[slowest - 1]
        if not all(rest) or not degrees_of_freedom:
            continue
        own = [math.log(rate) for rate in rest[session]]
        distance = math.fsum(own) / len(own) - math.log(sessions[session][run])
        if distance > _quantile(CLEARLY, degrees_of_freedom) * spread * math.sqrt(1 + 1 / len(own)):
            rare = slowest
    return estimate(_without(sessions, slowest_first[:rare])), rare


def _without(sessions: Sequence[Sequence[float]], left_out: Sequence[tuple[float, int, int]]) -> list[list[float]]:
    gone = {(session, run) for _, session, run in left_out}
    return [[rate for run, rate in enumerate(rates) if (session, run) not in gone] for session, rates in enumerate(sessions)]


def _median(rates: Sequence[float]) -> float:
    """Return the geometric median: of an even number the geometric mean of the middle two."""
    ordered = sorted(rates)
    return math.sqrt(ordered[(len(ordered) - 1) // 2] * ordered[len(ordered) // 2])


@lru_cache(maxsize=4096)
def _quantile(probability: float, degrees_of_freedom: float) -> float:
    from scipy.special import stdtrit

    return -float(stdtrit(degrees_of_freedom, probability))
