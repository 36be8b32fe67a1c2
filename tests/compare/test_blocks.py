"""Blocks of runs in turn, and the verdicts that are read from them. The error rates are simulated: benchmarks/ab.py."""

import math
from collections import Counter
from dataclasses import replace
from itertools import islice
from random import Random
from statistics import fmean

import pytest

from benchmarks.ab import CV, NOISES, draw_heavy, draw_normal, simulate, simulate_apart, simulate_blocks, simulate_session
from pytest_dtfperf.compare.blocks import (
    LEAST_BLOCKS,
    ABEstimate,
    ABPolicy,
    ABVerdict,
    Block,
    BlockSample,
    NoisePrior,
    compute_detectable,
    decide,
    draw_orders,
    estimate_prior,
    estimate_ratio,
    judge_estimate,
    measure_noise,
    share_error,
)
from tests.baselines.examples import run_of

POLICY = ABPolicy()
SEED = 7


def block_of(reference: float, variant: float, order: str = "ABBA", disturbed: str = "") -> Block:
    rates = {"A": reference, "B": variant}
    return Block(order, [run_of(rates[side], disturbances=[disturbed] if disturbed else []) for side in order])


def chance(rate: float, cases: int) -> float:
    """Return how much more than this rate is found by chance, once in ten thousand times."""
    return 3.7 * math.sqrt(rate / cases)


def test_a_linear_drift_cancels_within_a_block() -> None:
    """The log-ratio of a block is that of the stacks, even if each run is slower than the one before."""
    drift = [0.0, -0.02, -0.04, -0.06]
    runs = [run_of(100 * math.exp(each + (0.01 if side == "B" else 0))) for each, side in zip(drift, "ABBA", strict=True)]
    assert Block("ABBA", runs).sample.log_ratio == pytest.approx(0.01)


def test_what_the_first_run_of_a_block_loses_cancels_over_both_orders() -> None:
    """A first run that is slower by 2 % in each block shifts neither the ratio nor its interval."""
    plain = [BlockSample(0.01 + 0.001 * (-1) ** (each // 2), each % 2 == 0) for each in range(8)]
    shifted = [BlockSample(each.log_ratio + (0.01 if each.reference_first else -0.01), each.reference_first) for each in plain]
    one, other = (estimate_ratio(samples, POLICY, 0.05) for samples in (plain, shifted))
    assert other.ratio == pytest.approx(one.ratio)
    assert other.low == pytest.approx(one.low)
    assert other.order_effect == pytest.approx(one.order_effect + 0.01)


def test_orders_are_drawn_in_pairs() -> None:
    """Each pair of blocks has both orders, and the seed decides which is first."""
    drawn = list(islice(draw_orders(Random(SEED)), 40))
    assert all({*drawn[at : at + 2]} == {"ABBA", "BAAB"} for at in range(0, 40, 2))
    assert len({*drawn[::2]}) == 2
    assert drawn == list(islice(draw_orders(Random(SEED)), 40))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.001, 1.03, ABVerdict.FASTER),
        (0.97, 0.999, ABVerdict.SLOWER),
        (0.995, 1.005, ABVerdict.EQUIVALENT),
        (0.992, 0.998, ABVerdict.EQUIVALENT),
        (0.98, 1.005, ABVerdict.INCONCLUSIVE),
        (0.5, None, ABVerdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_follows_from_the_interval(low: float, high: float | None, verdict: ABVerdict) -> None:
    """Excluding equal rates is a difference, unless all of the interval is within the equivalence."""
    estimate = ABEstimate(ratio=1.0, low=low, high=high, spread=0.01, blocks=8, order_effect=0.0)
    assert judge_estimate(estimate, POLICY) is verdict


def test_a_clear_difference_is_decided_early() -> None:
    """Half the rate is SLOWER after few blocks, and the comparison is closed."""
    blocks = [block_of(100 + each, 50 + each / 3, order) for each, order in enumerate(["ABBA", "BAAB"] * 4)]
    first = next(count for count in range(1, 9) if not decide(blocks[:count], POLICY, 0.05).is_open)
    found = decide(blocks[:first], POLICY, 0.05)
    assert LEAST_BLOCKS <= first < 8
    assert found.verdict is ABVerdict.SLOWER
    assert found.estimate
    assert found.estimate.ratio == pytest.approx(0.5, abs=0.02)


def test_an_interval_without_bounds_is_unknown() -> None:
    """The first blocks of a noisy comparison bound no ratio, however wide an interval would be."""
    blocks = [block_of(100, 100 * 9.0 ** ((-1) ** (each // 2)), order) for each, order in enumerate(["ABBA", "BAAB"] * 2)]
    found = decide(blocks, POLICY, 0.05 / 24)
    assert found.is_open
    assert found.estimate
    assert (found.estimate.low, found.estimate.high) == (0.0, None)


def test_the_blocks_are_spent_at_the_limit() -> None:
    """At `max_blocks` without a decision, the comparison is INCONCLUSIVE and closed."""
    policy = ABPolicy(max_blocks=6)
    blocks = [block_of(100, 100 * (1 + 0.1 * (-1) ** each)) for each in range(6)]
    assert decide(blocks[:5], policy, 0.05).is_open
    assert decide(blocks[:1], policy, 0.05).reason == "1 block does not decide"
    found = decide(blocks, policy, 0.05)
    assert (found.verdict, found.is_open, found.reason) == (ABVerdict.INCONCLUSIVE, False, "6 blocks do not decide")


def test_disturbed_blocks_do_not_count() -> None:
    """A disturbed block changes no estimate, and if the first three are disturbed, the comparison is TAINTED."""
    clean = [block_of(100, 101), block_of(100, 101.5, "BAAB"), block_of(100, 100.5), block_of(100, 101, "BAAB")]
    busy = block_of(100, 30, disturbed="the host was busy")
    assert decide([*clean, busy], POLICY, 0.05).estimate == decide(clean, POLICY, 0.05).estimate
    assert decide([busy] * 2, POLICY, 0.05).is_open
    found = decide([busy] * 3, POLICY, 0.05)
    assert (found.verdict, found.is_open) == (ABVerdict.TAINTED, False)
    assert found.verdict.is_bad, "exit code 1: the variants could not be compared"
    assert found.reason == "all 3 blocks were disturbed: the host was busy"


def test_the_error_is_shared_as_holm_does() -> None:
    """Each comparison that has found a difference leaves more of the error to the others."""
    assert share_error(POLICY, comparisons=24, differences=0) == pytest.approx(0.05 / 24)
    assert share_error(POLICY, comparisons=24, differences=14) == pytest.approx(0.05 / 10)


def test_the_detectable_difference_falls_with_the_number_of_blocks() -> None:
    """More blocks find a smaller difference, and 20 find 1.5 % where blocks scatter by 1 %."""
    estimate = estimate_ratio([BlockSample(CV * (-1) ** (each // 2), each % 2 == 0) for each in range(8)], POLICY, 0.05)
    found = [compute_detectable(estimate, ABPolicy(max_blocks=most), 0.05) for most in (8, 20, 80)]
    assert all(found)
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert found[1] is not None
    assert found[1] < 0.015


@pytest.mark.parametrize("noise", NOISES)
def test_equal_stacks_are_rarely_called_different(noise: str) -> None:
    """On a drifting allocation with an effect of order, at most 5 % of equal comparisons get FASTER or SLOWER."""
    cases = 600
    found = simulate(Random(SEED), 0.0, NOISES[noise], cases=cases)
    wrong = sum(each.verdict.is_difference for each in found)
    assert wrong / cases <= POLICY.error + chance(POLICY.error, cases)


def test_a_session_of_24_equal_comparisons_is_rarely_wrong() -> None:
    """At most 5 % of sessions have any difference among 24 equal comparisons."""
    sessions = 60
    random = Random(SEED)
    found = [simulate(random, 0.0, draw_heavy, cases=24, comparisons=24) for _ in range(sessions)]
    wrong = sum(any(each.verdict.is_difference for each in session) for session in found)
    assert wrong / sessions <= POLICY.error + chance(POLICY.error, sessions)


@pytest.mark.parametrize("noise", ["normal", "heavy tails (t3)"])
def test_a_difference_of_one_per_cent_is_found(noise: str) -> None:
    """With runs that scatter by 1 %, 1 % is found in 90 % of comparisons within 20 blocks, and intervals cover it."""
    cases = 600
    found = simulate(Random(SEED), math.log(0.99), NOISES[noise], cases=cases)
    verdicts = Counter(each.verdict for each in found)
    assert verdicts[ABVerdict.SLOWER] / cases >= 0.9 - chance(0.1, cases)
    assert verdicts[ABVerdict.FASTER] == 0
    assert sum(each.is_covered for each in found) / cases >= 0.95 - chance(0.05, cases)


def test_runs_that_are_not_interleaved_call_equal_stacks_different() -> None:
    """Without blocks, an allocation of its own for each stack makes most equal comparisons differ."""
    found = simulate(Random(SEED), 0.0, draw_normal, cases=100, draw=simulate_apart)
    assert sum(each.verdict.is_difference for each in found) > 50


def made_of(spread: float, blocks: int, random: Random) -> list[BlockSample]:
    return [BlockSample(random.gauss(0, spread), at % 2 == 0) for at in range(blocks)]


def measure_width(samples: list[BlockSample], prior: NoisePrior | None) -> float:
    found = estimate_ratio(samples, POLICY, 0.002, prior)
    assert found.high
    return math.log(found.high / found.low)


def measure_noise_width(samples: list[BlockSample], prior: NoisePrior | None) -> float:
    """Return the width of an interval in units of the noise of the runs."""
    return measure_width(samples, prior) / math.sqrt(measure_noise(samples).run_variance)


def test_similar_noise_of_a_session_narrows_intervals() -> None:
    """Where variances agree, each has more degrees of freedom, and intervals are narrower and more alike."""
    random = Random(SEED)
    session = [made_of(0.01, 16, random) for _ in range(24)]
    prior = estimate_prior(session)
    assert prior
    assert prior.variance == pytest.approx(0.0001, rel=0.5)
    alone, together = ([measure_width(samples, each) for samples in session] for each in (None, prior))
    assert fmean(together) < 0.9 * fmean(alone)
    assert max(together) / min(together) < max(alone) / min(alone)


def test_different_noise_of_a_session_is_worth_less() -> None:
    """Variances that differ by orders of magnitude have little in common."""
    random = Random(SEED)
    alike = estimate_prior([made_of(0.01, 16, random) for _ in range(24)])
    unlike = estimate_prior([made_of(0.0001 * 10 ** (at / 8), 16, random) for at in range(24)])
    assert alike
    assert unlike is None or unlike.degrees_of_freedom < alike.degrees_of_freedom / 5


def test_noise_that_differs_as_that_of_runs_does_is_known_from_them() -> None:
    """Where noise differs by a factor of 80, and that of runs within blocks likewise, each is known better by its runs."""
    random = Random(SEED)
    session = [simulate_blocks(random, 0.0, draw_normal, 16, CV * 10 ** (at / 12)) for at in range(24)]
    prior = estimate_prior(session)
    assert prior
    assert prior.is_relative
    assert prior.variance == pytest.approx(1, rel=0.3), "the noise is that of runs alone"
    alone, together = ([measure_noise_width(samples, each) for samples in session] for each in (None, prior))
    assert fmean(together) < 0.9 * fmean(alone)


def test_a_stack_that_scatters_from_block_to_block_is_not_known_from_its_runs() -> None:
    """A ratio that differs between blocks by more than runs show makes the interval as wide as the blocks require."""
    random = Random(SEED)

    def scatter(samples: list[BlockSample]) -> list[BlockSample]:
        return [replace(each, log_ratio=each.log_ratio + random.gauss(0, 4 * CV)) for each in samples]

    session = [scatter(simulate_blocks(random, 0.0, draw_normal, 16)) for _ in range(24)]
    prior = estimate_prior(session)
    assert prior
    _, degrees_of_freedom = prior.moderate(measure_noise(session[0]))
    variances = [prior.moderate(measure_noise(samples))[0] for samples in session]
    assert fmean(variances) == pytest.approx(17 * CV**2, rel=0.3)
    assert degrees_of_freedom > measure_noise(session[0]).degrees_of_freedom


def test_few_comparisons_or_blocks_show_no_common_noise() -> None:
    """A session of three comparisons, or the first blocks of many, have no prior; equal samples raise nothing."""
    random = Random(SEED)
    assert estimate_prior([made_of(0.01, 16, random) for _ in range(3)]) is None
    assert estimate_prior([made_of(0.01, 6, random) for _ in range(24)]) is None
    assert estimate_prior([[BlockSample(0.0, at % 2 == 0) for at in range(16)] for _ in range(24)])


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("difference", [0.0, 0.6])
def test_sessions_of_equal_stacks_seldom_have_a_difference(difference: float) -> None:
    """With 24 comparisons of equal stacks, at most 5 % of sessions have any difference, however alike their noise is."""
    sessions = 100
    found = [simulate_session(Random(each), [0.0] * 24, draw_normal, difference=difference) for each in range(sessions)]
    wrong = sum(any(verdict.is_difference for verdict in verdicts) for verdicts in found)
    assert wrong / sessions <= 0.05 + chance(0.05, sessions)
