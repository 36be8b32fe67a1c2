"""How often a bisection finds the slow candidate, and after how many blocks: simulated on the code that ships.

    python -m benchmarks.bisection [CASES] [SEED] [ROW]     # only rows with this text, such as "heavy"

The runs of each block have the drift and order effects of benchmarks/ab.py. `covered` counts the searches with the right
candidates in which the intervals of all changes contain their effects. Each row has random numbers of its own.
"""

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.ab import CV, DRIFT_PER_RUN, ORDER_EFFECT, Noise, draw_heavy, draw_normal, draw_slow
from pytest_dtfperf.compare.bisection import (
    BisectionEnd,
    BisectionPolicy,
    Observation,
    compute_posterior,
    decide_bisection,
)
from pytest_dtfperf.compare.blocks import draw_orders

CANDIDATES = 64
EFFECT = math.log(0.97)
BLOCK_S = 60.0
BUILD_S = 120.0
BUSY = 10.0  # times as much noise, on a machine with other load


@dataclass(frozen=True)
class Result:
    """The end of one simulated bisection."""

    end: BisectionEnd
    culprits: Sequence[range]
    blocks: int
    builds: int
    is_covered: bool  # whether the intervals of all changes contain their effects


def bisect(
    random: Random,
    effects: Mapping[int, float],
    *,
    candidates: int = CANDIDATES,
    noise: Noise = draw_normal,
    broken: float = 0.0,
    policy: BisectionPolicy | None = None,
) -> Result:
    """Search the changes of a series of candidates.

    Args:
        effects: candidate -> what it adds to the log-rate.
        broken: the probability of each candidate that it cannot be built.
    """
    used = policy or BisectionPolicy()
    unusable = {each for each in range(1, candidates - 1) if random.random() < broken}
    known: set[int] = set()
    warm, seen = {0}, list[Observation]()
    orders = [draw_orders(random) for _ in range(candidates)]
    while True:
        posterior = compute_posterior(candidates, seen, known)
        decision = decide_bisection(posterior, used, len(seen)) if seen else None
        if decision and not decision.is_open:
            break
        costs = {each: BLOCK_S + (0 if each in warm else BUILD_S) for each in range(candidates)}
        chosen = posterior.choose_next(costs)
        if chosen in unusable:
            known.add(chosen)
            continue
        warm.add(chosen)
        effect = math.fsum(size for at, size in effects.items() if at <= chosen)
        order = next(orders[chosen])
        seen.append(Observation(chosen, draw_block(random, effect, noise, order), order == "ABBA"))
    changes = posterior.describe_changes(used.confidence) if decision.end is not BisectionEnd.NO_DIFFERENCE else []
    covered = all(
        each.low <= math.exp(math.fsum(effects.get(at, 0) for at in range(each.first, each.last + 1))) <= each.high
        for each in changes
    )
    return Result(decision.end, [range(each.first, each.last + 1) for each in changes], len(seen), len(warm), covered)


def draw_block(random: Random, effect: float, noise: Noise, order: str) -> float:
    """Return the log-ratio of a block."""
    rates: dict[str, list[float]] = {"A": [], "B": []}
    for at, side in enumerate(order):
        speed = DRIFT_PER_RUN * at - ORDER_EFFECT * (at == 0)
        rates[side].append(speed + effect * (side == "B") + CV * noise(random))
    return sum(rates["B"]) / 2 - sum(rates["A"]) / 2


def draw_busy(random: Random) -> float:
    """Return the noise of a busy machine."""
    return BUSY * draw_normal(random)


def simulate(
    random: Random, cases: int, effects: Sequence[float] = (EFFECT,), *, noise: Noise = draw_normal, broken: float = 0.0
) -> list[tuple[Mapping[int, float], Result]]:
    """Return the effects, at drawn candidates, and the results of so many cases."""
    found: list[tuple[Mapping[int, float], Result]] = []
    for _ in range(cases):
        positions = sorted(random.sample(range(1, CANDIDATES), len(effects)))
        drawn = dict(zip(positions, effects, strict=True))
        found.append((drawn, bisect(random, drawn, noise=noise, broken=broken)))
    return found


def is_right(effects: Mapping[int, float], result: Result) -> bool:
    """Return whether each change is in the range that was found for it."""
    return len(result.culprits) == len(effects) and all(
        position in found for position, found in zip(sorted(effects), result.culprits, strict=True)
    )


def main() -> None:
    given, seed, text = [*sys.argv[1:], *("200", "1", "")[len(sys.argv) - 1 :]]
    cases = int(given)
    rows: list[tuple[str, Sequence[float], Noise, float]] = [
        ("one of 3 %", (EFFECT,), draw_normal, 0.0),
        ("one of 3 %, heavy tails (t3)", (EFFECT,), draw_heavy, 0.0),
        ("one of 3 %, rare slow runs", (EFFECT,), draw_slow, 0.0),
        ("one of 3 %, a fifth unbuildable", (EFFECT,), draw_normal, 0.2),
        ("one of 1.5 %", (EFFECT / 2,), draw_normal, 0.0),
        ("one of 30 %", (EFFECT * 10,), draw_normal, 0.0),
        ("two of 3 %", (EFFECT, EFFECT), draw_normal, 0.0),
        ("two, of 6 % and 3 %", (2 * EFFECT, EFFECT), draw_normal, 0.0),
        ("one of 50 %, busy", (math.log(0.5),), draw_busy, 0.0),
        ("none", (), draw_normal, 0.0),
    ]
    print(f"{'changes':34} {'right':>6} {'wrong':>6} {'several':>7} {'covered':>10} {'blocks':>6} {'90 %':>5} {'builds':>6}")
    for name, effects, noise, broken in [row for row in rows if text in row[0]]:
        found = simulate(Random(f"{seed} {name}"), cases, effects, noise=noise, broken=broken)
        done = [result for _, result in found]
        right = sum(is_right(*each) for each in found if each[1].end is not BisectionEnd.UNDECIDED) / cases
        wrong = sum(each[1].end is BisectionEnd.FOUND and not is_right(*each) for each in found) / cases
        several = sum(each.end is BisectionEnd.SEVERAL for each in done) / cases
        covered = [result.is_covered for drawn, result in found if is_right(drawn, result)]
        blocks = sorted(each.blocks for each in done)
        print(
            f"{name:34} {right:6.1%} {wrong:6.1%} {several:7.1%} {f'{sum(covered)} of {len(covered)}':>10} "
            f"{blocks[cases // 2]:6} {blocks[cases * 9 // 10]:5} {statistics.median(each.builds for each in done):6}"
        )


if __name__ == "__main__":
    main()
