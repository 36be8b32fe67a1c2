"""How often comparisons of two stacks find what is there, and what is not: simulated on the code that ships.

    python -m benchmarks.ab [SESSIONS] [SEED]     # about a second of CPU for each 10 sessions of 24 comparisons

Each allocation has its own speed, which drifts; the first run of each block is slower; rates scatter with heavy tails. Without
blocks, all runs of the reference come first, in an allocation of their own, as when sessions are compared by hand.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from pytest_dtfperf.compare.blocks import (
    LEAST_BLOCKS,
    ABPolicy,
    ABVerdict,
    BlockSample,
    draw_orders,
    estimate_prior,
    estimate_ratio,
    judge_estimate,
    share_error,
)

COMPARISONS = 24
ALLOCATION_CV = 0.08
DRIFT_PER_RUN = 0.03 / 60  # 3 % in an hour of 60 runs
ORDER_EFFECT = 0.01
CV = 0.01
DIFFERENCES = (0.0, 0.3, 0.6)  # of the noise of a session's comparisons: standard deviation of its logarithm

Noise = Callable[[Random], float]  # standard deviation 1


def draw_normal(random: Random) -> float:
    return random.gauss(0, 1)


def draw_heavy(random: Random) -> float:
    """Return Student's t with 3 degrees of freedom, scaled to a standard deviation of 1."""
    return random.gauss(0, 1) / math.sqrt(random.gammavariate(1.5, 2 / 3)) / math.sqrt(3)


def draw_slow(random: Random) -> float:
    """Return normal noise, with one run of 20 slower by 10 to 70 standard deviations."""
    return draw_normal(random) - (random.uniform(10, 70) if random.random() < 0.05 else 0)


NOISES: Mapping[str, Noise] = {"normal": draw_normal, "heavy tails (t3)": draw_heavy, "rare slow runs": draw_slow}


@dataclass(frozen=True)
class Outcome:
    """The end of one simulated comparison."""

    verdict: ABVerdict
    blocks: int
    is_covered: bool  # by the interval at the end
    is_always_covered: bool  # by the intervals after each block there can be


def simulate_blocks(random: Random, effect: float, noise: Noise, blocks: int, cv: float = CV) -> list[BlockSample]:
    """Return the samples of a comparison in blocks.

    Args:
        effect: the log-ratio of the rates.
        cv: the coefficient of variation of a run.
    """
    found, speed = [], ALLOCATION_CV * random.gauss(0, 1)
    for order in islice(draw_orders(random), blocks):
        logs = []
        for at, side in enumerate(order):
            logs.append(speed + effect * (side == "B") - ORDER_EFFECT * (at == 0) + cv * noise(random))
            speed += DRIFT_PER_RUN
        found.append(BlockSample.from_logs(order, logs))
    return found


def simulate_apart(random: Random, effect: float, noise: Noise, blocks: int) -> list[BlockSample]:
    """Return pairs of two runs each, of which all of the reference were made in another allocation, before the others."""
    speeds = [ALLOCATION_CV * random.gauss(0, 1) for _ in "AB"]
    rates = [
        [speeds[side] + effect * side + DRIFT_PER_RUN * each + CV * noise(random) for each in range(2 * blocks)]
        for side in (0, 1)
    ]
    means = [[(side[2 * each] + side[2 * each + 1]) / 2 for each in range(blocks)] for side in rates]
    return [BlockSample(b - a, each % 2 == 0) for each, (a, b) in enumerate(zip(*means, strict=True))]


def carry_out(samples: list[BlockSample], effect: float, policy: ABPolicy, error: float) -> Outcome:
    """Read the interval after each block, as a session does, and return the first verdict."""
    ended: tuple[ABVerdict, int, bool] | None = None
    always = True
    for count in range(LEAST_BLOCKS, policy.max_blocks + 1):
        estimate = estimate_ratio(samples[:count], policy, error)
        verdict = judge_estimate(estimate, policy)
        covered = estimate.low <= math.exp(effect) <= (estimate.high or math.inf)
        always = always and covered
        if ended is None and (verdict is not ABVerdict.INCONCLUSIVE or count == policy.max_blocks):
            ended = verdict, count, covered
    assert ended
    return Outcome(*ended, always)


def simulate(
    random: Random,
    effect: float,
    noise: Noise,
    *,
    cases: int,
    comparisons: int = 1,
    policy: ABPolicy | None = None,
    draw: Callable[[Random, float, Noise, int], list[BlockSample]] = simulate_blocks,
) -> list[Outcome]:
    """Return the outcomes of comparisons of a session with so many of them."""
    used = policy or ABPolicy()
    error = share_error(used, comparisons=comparisons, differences=0)
    return [carry_out(draw(random, effect, noise, used.max_blocks), effect, used, error) for _ in range(cases)]


def simulate_session(
    random: Random, effects: Sequence[float], noise: Noise, *, difference: float = 0.0, policy: ABPolicy | None = None
) -> list[ABVerdict]:
    """Return the verdicts of comparisons that are made in turn, and share the error and what is known of the noise.

    Args:
        effects: the log-ratio of each.
        difference: the standard deviation of the logarithm of the noise, over comparisons. The first one has `CV`.
    """
    used = policy or ABPolicy()
    drawn = [
        simulate_blocks(random, effect, noise, used.max_blocks, CV * math.exp(difference * random.gauss(0, 1) * (at > 0)))
        for at, effect in enumerate(effects)
    ]
    verdicts = [ABVerdict.INCONCLUSIVE for _ in effects]
    blocks = [0 for _ in effects]
    for count in range(1, used.max_blocks + 1):
        is_changed = True
        while is_changed:
            is_changed = False
            differences = sum(each.is_difference for each in verdicts)
            error = share_error(used, comparisons=len(effects), differences=differences)
            still = [at for at, verdict in enumerate(verdicts) if verdict is ABVerdict.INCONCLUSIVE]
            for at in still:
                blocks[at] = count
            prior = estimate_prior(samples[:made] for samples, made in zip(drawn, blocks, strict=True))
            for at in still:
                verdicts[at] = judge_estimate(estimate_ratio(drawn[at][:count], used, error, prior), used)
                is_changed |= verdicts[at].is_difference
    return verdicts


def main() -> None:
    given = [int(each) for each in sys.argv[1:]]
    sessions, seed = [*given, *(200, 1)[len(given) :]]
    random = Random(seed)
    print(
        f"{'noise':18} {'comparisons':>11} {'true':>6} {'faster':>7} {'slower':>7} {'equal':>7} {'covered':>8} {'always':>7} "
        "blocks"
    )
    for name, noise in NOISES.items():
        for effect in (0.0, math.log(0.99)):
            _print_row(name, 1, effect, simulate(random, effect, noise, cases=sessions * 10))
        for difference in DIFFERENCES:
            equal = [simulate_session(random, [0.0] * COMPARISONS, noise, difference=difference) for _ in range(sessions)]
            wrong = sum(any(each.is_difference for each in verdicts) for verdicts in equal)
            one = [math.log(0.99), *[0.0] * (COMPARISONS - 1)]
            found = [simulate_session(random, one, noise, difference=difference)[0] for _ in range(sessions)]
            slower = found.count(ABVerdict.SLOWER) / sessions
            print(
                f"{name:18} sessions of {COMPARISONS}, noise that differs by {difference}: "
                f"{wrong / sessions:.1%} of equal ones with a difference, 1 % found in {slower:.1%}"
            )
    apart = simulate(random, 0.0, draw_normal, cases=sessions * 10, draw=simulate_apart)
    _print_row("not interleaved", 1, 0.0, apart)


def _print_row(name: str, comparisons: int, effect: float, found: list[Outcome]) -> None:
    def part(condition: Callable[[Outcome], bool]) -> str:
        return f"{sum(map(condition, found)) / len(found):.1%}"

    verdicts = ABVerdict.FASTER, ABVerdict.SLOWER, ABVerdict.EQUIVALENT
    parts = [f"{sum(each.verdict is verdict for each in found) / len(found):.1%}" for verdict in verdicts]
    covered, always = part(lambda each: each.is_covered), part(lambda each: each.is_always_covered)
    blocks = sorted(each.blocks for each in found)[len(found) // 2]
    print(
        f"{name:18} {comparisons:11} {math.expm1(effect):6.1%} {parts[0]:>7} {parts[1]:>7} {parts[2]:>7} {covered:>8} "
        f"{always:>7} {blocks:6}"
    )


if __name__ == "__main__":
    main()
