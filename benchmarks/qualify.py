"""Error rates of `dtfperf qualify`: fit hosts that are called slow, and slow hosts that are found.

`python -m benchmarks.qualify` prints the table of docs/qualify.md in some minutes. Hosts of one kind differ by `HOSTS_CV`, or
by `hosts_cv` of a case. Readings scatter by `cv`, normally or with heavy tails: Student's t with three degrees of freedom, and
one reading in twenty slow by up to a half.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from pytest_dtfperf.datamodel.qualification import HostVerdict
from pytest_dtfperf.qualify.peers import PeerComparison, QualifyPolicy

SEED = 20_261
HOSTS_CV = 0.004
RARE, RARE_LOSS = 0.05, 0.5
CAPACITIES = ("core.matmul", "cores.matmul", "memory", "training")
Draw = Callable[[np.random.Generator, int], "np.ndarray[tuple[int], np.dtype[np.float64]]"]


def draw_normal(random: np.random.Generator, size: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return standard normal deviates."""
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = random.standard_normal(size)
    return found


def draw_heavy(random: np.random.Generator, size: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """Return deviates of Student's t with three degrees of freedom and a standard deviation of 1."""
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = random.standard_t(3, size) / np.sqrt(3)
    return found


@dataclass(frozen=True)
class QualifyCase:
    """One kind of cluster: how many hosts, and what is wrong with some of them."""

    hosts: int
    cv: float  # of a reading
    slow: int = 0  # hosts
    loss: float = 0.05  # of the slow ones, in one capacity each
    heavy: bool = False
    hosts_cv: float = HOSTS_CV  # of fit hosts among themselves


@dataclass(frozen=True)
class QualifyOutcome:
    """What came of one simulated run."""

    false_alarms: int
    found: int
    called_fit: int  # of the slow hosts
    not_judged: int  # of the fit hosts
    rounds: int


def simulate(case: QualifyCase, random: np.random.Generator, policy: QualifyPolicy | None = None) -> QualifyOutcome:
    """Simulate one run, and return its outcome."""
    policy = policy or QualifyPolicy()
    names = [f"n{i}" for i in range(case.hosts)]
    slow = {int(each): CAPACITIES[i % len(CAPACITIES)] for i, each in enumerate(random.permutation(case.hosts)[: case.slow])}
    levels = {
        name: case.hosts_cv * random.standard_normal(case.hosts)
        + np.array([np.log1p(-case.loss) if slow.get(i) == name else 0.0 for i in range(case.hosts)])
        for name in CAPACITIES
    }
    comparison = PeerComparison(dict.fromkeys(names, "kind"), policy)
    while not comparison.is_decided:
        drawn = {name: np.exp(levels[name] + case.cv * _draw(case, random)) for name in CAPACITIES}
        comparison.add_round({host: {name: float(drawn[name][i]) for name in CAPACITIES} for i, host in enumerate(names)})
    verdicts = [{each.verdict for each in found.values()} for found in comparison.results().values()]
    return QualifyOutcome(
        false_alarms=sum(HostVerdict.SLOW in each for i, each in enumerate(verdicts) if i not in slow),
        found=sum(HostVerdict.SLOW in verdicts[i] for i in slow),
        called_fit=sum(verdicts[i] == {HostVerdict.FIT} for i in slow),
        not_judged=sum(
            HostVerdict.NOT_JUDGED in each and HostVerdict.SLOW not in each for i, each in enumerate(verdicts) if i not in slow
        ),
        rounds=comparison.rounds,
    )


def _draw(case: QualifyCase, random: np.random.Generator) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    if not case.heavy:
        return draw_normal(random, case.hosts)
    rare = np.where(random.random(case.hosts) < RARE, np.log1p(-RARE_LOSS * random.random(case.hosts)) / case.cv, 0.0)
    return draw_heavy(random, case.hosts) + rare


@dataclass(frozen=True)
class QualifyRates:
    """The error rates of a case, over all its simulated runs."""

    false_alarms: float  # fraction of runs
    found: float  # fraction of slow hosts
    called_fit: float
    not_judged: float  # fraction of fit hosts
    rounds: float  # mean


def measure_rates(case: QualifyCase, runs: int, seed: int = SEED, policy: QualifyPolicy | None = None) -> QualifyRates:
    """Return the error rates of a case."""
    random = np.random.default_rng(seed)
    outcomes = [simulate(case, random, policy) for _ in range(runs)]
    slow, fit = case.slow * runs, (case.hosts - case.slow) * runs
    return QualifyRates(
        false_alarms=sum(each.false_alarms > 0 for each in outcomes) / runs,
        found=sum(each.found for each in outcomes) / max(1, slow),
        called_fit=sum(each.called_fit for each in outcomes) / max(1, slow),
        not_judged=sum(each.not_judged for each in outcomes) / fit,
        rounds=sum(each.rounds for each in outcomes) / runs,
    )


def _list_cases() -> Sequence[tuple[QualifyCase, int]]:
    sizes = ((4, 0), (4, 1), (8, 0), (8, 1), (8, 2), (32, 0), (32, 2), (232, 5), (1024, 0), (1024, 5))
    return [
        (QualifyCase(hosts=hosts, cv=cv, slow=slow, heavy=heavy), max(1600 // hosts + 4, 40 if hosts < 1000 else 20))
        for (hosts, slow), cv, heavy in product(sizes, (0.005, 0.01, 0.03), (False, True))
    ]


def main() -> None:
    print(
        "| Hosts | Slow by 5 % | CV | Tails | Runs | Runs with a false alarm | Found | Called fit | Fit hosts not judged "
        "| Rounds |"
    )
    print("|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for case, runs in _list_cases():
        rates = measure_rates(case, runs)
        found = f"{rates.found:.1%} | {rates.called_fit:.1%}" if case.slow else "- | -"
        tails = "heavy" if case.heavy else "normal"
        row = f"| {case.hosts} | {case.slow} | {case.cv:.1%} | {tails} | {runs} | {rates.false_alarms:.1%} | {found} | "
        row += f"{rates.not_judged:.2%} | {rates.rounds:.1f} |"
        print(row.replace("%", " %"), flush=True)


if __name__ == "__main__":
    main()
