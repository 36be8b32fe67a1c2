"""Tests of blocks of interleaved runs, and of their verdicts. benchmarks/ab.py simulates the error rates."""

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
from tests import campaign
from tests.baselines.examples import run_of

POLICY = ABPolicy()
SEED = 7
CASES, SESSIONS = (600, 60) if campaign.WHOLE else (100, 10)


def make_block(reference: float, variant: float, order: str = "ABBA", disturbed: str = "") -> Block:
    rates = {"A": reference, "B": variant}
    return Block(order, [run_of(rates[side], disturbances=[disturbed] if disturbed else []) for side in order])


def compute_tolerance(rate: float, cases: int) -> float:
    """Return the excess over this rate that chance causes once in ten thousand times."""
    return 3.7 * math.sqrt(rate / cases)


def test_linear_drift_cancels_within_a_block() -> None:
    """The log-ratio of a block is that of its variants, although each run is slower than the one before."""
    drift = [0.0, -0.02, -0.04, -0.06]
    runs = [run_of(100 * math.exp(each + (0.01 if side == "B" else 0))) for each, side in zip(drift, "ABBA", strict=True)]
    assert Block("ABBA", runs).sample.log_ratio == pytest.approx(0.01)


def test_slow_first_run_cancels_over_both_orders() -> None:
    """A slower first run in each block changes neither the ratio nor its lower bound, but the effect of the order."""
    plain = [BlockSample(0.01 + 0.001 * (-1) ** (each // 2), each % 2 == 0) for each in range(8)]
    shifted = [BlockSample(each.log_ratio + (0.01 if each.reference_first else -0.01), each.reference_first) for each in plain]
    one, other = (estimate_ratio(samples, POLICY, 0.05) for samples in (plain, shifted))
    assert other.ratio == pytest.approx(one.ratio)
    assert other.low == pytest.approx(one.low)
    assert other.order_effect == pytest.approx(one.order_effect + 0.01)


def test_orders_are_drawn_in_pairs() -> None:
    """Each pair of blocks has both orders, the first of which varies, and a seed draws the same orders again."""
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
def test_verdict_follows_from_the_interval(low: float, high: float | None, verdict: ABVerdict) -> None:
    """An interval without equal rates is a difference, unless all of it is within the equivalence."""
    estimate = ABEstimate(ratio=1.0, low=low, high=high, spread=0.01, blocks=8, order_effect=0.0)
    assert judge_estimate(estimate, POLICY) is verdict


def test_clear_difference_is_decided_early() -> None:
    """Half of the rate is SLOWER before eight blocks, with its ratio."""
    blocks = [make_block(100 + each, 50 + each / 3, order) for each, order in enumerate(["ABBA", "BAAB"] * 4)]
    first = next(count for count in range(1, 9) if not decide(blocks[:count], POLICY, 0.05).is_open)
    found = decide(blocks[:first], POLICY, 0.05)
    assert LEAST_BLOCKS <= first < 8
    assert found.verdict is ABVerdict.SLOWER
    assert found.estimate
    assert found.estimate.ratio == pytest.approx(0.5, abs=0.02)


def test_interval_of_noisy_blocks_has_no_bounds() -> None:
    """The first blocks of a noisy comparison give no bounds of the ratio, and the comparison is open."""
    blocks = [make_block(100, 100 * 9.0 ** ((-1) ** (each // 2)), order) for each, order in enumerate(["ABBA", "BAAB"] * 2)]
    found = decide(blocks, POLICY, 0.05 / 24)
    assert found.is_open
    assert found.estimate
    assert (found.estimate.low, found.estimate.high) == (0.0, None)


def test_undecided_comparison_ends_at_the_limit() -> None:
    """A comparison without a decision after `max_blocks` is INCONCLUSIVE and closed, and open before."""
    policy = ABPolicy(max_blocks=6)
    blocks = [make_block(100, 100 * (1 + 0.1 * (-1) ** each)) for each in range(6)]
    assert decide(blocks[:5], policy, 0.05).is_open
    assert decide(blocks[:1], policy, 0.05).reason == "1 block does not decide"
    found = decide(blocks, policy, 0.05)
    assert (found.verdict, found.is_open, found.reason) == (ABVerdict.INCONCLUSIVE, False, "6 blocks do not decide")


def test_blocks_of_one_order_do_not_decide() -> None:
    """Undisturbed blocks of one order give no bounds of the ratio, because the effect of the order may be the difference."""
    blocks = [make_block(100 + each / 100, 105) for each in range(8)]
    found = decide(blocks, POLICY, 0.05)
    assert (found.verdict, found.is_open) == (ABVerdict.INCONCLUSIVE, True)
    assert found.estimate
    assert found.estimate.high is None


def test_interval_is_wider_with_few_blocks_of_an_order() -> None:
    """With one of eight blocks in the other order, the mean of both orders has the standard error of 3.5 blocks, not of 8."""
    values = [0.001, -0.001, 0.002, -0.002, 0.001, -0.001, 0.002, -0.002]
    balanced = [BlockSample(each, at % 2 == 0) for at, each in enumerate(values)]
    unbalanced = [BlockSample(each, at > 0) for at, each in enumerate(values)]
    widths = []
    for samples in (balanced, unbalanced):
        spread = estimate_ratio(samples, POLICY, 0.05).spread
        widths.append(measure_width(samples, None) / spread)
    assert widths[1] / widths[0] == pytest.approx(math.sqrt(8 / 3.5))


def test_disturbed_blocks_do_not_count() -> None:
    """A disturbed block does not change the estimate, and three disturbed first blocks make the comparison TAINTED."""
    clean = [make_block(100, 101), make_block(100, 101.5, "BAAB"), make_block(100, 100.5), make_block(100, 101, "BAAB")]
    busy = make_block(100, 30, disturbed="the host was busy")
    assert decide([*clean, busy], POLICY, 0.05).estimate == decide(clean, POLICY, 0.05).estimate
    assert decide([busy] * 2, POLICY, 0.05).is_open
    found = decide([busy] * 3, POLICY, 0.05)
    assert (found.verdict, found.is_open) == (ABVerdict.TAINTED, False)
    assert found.verdict.is_bad, "exit code 1: the variants could not be compared"
    assert found.reason == "all 3 blocks were disturbed: the host was busy"


def test_error_is_shared_by_holm() -> None:
    """Each difference that was found leaves a larger share of the error to the other comparisons."""
    assert share_error(POLICY, comparisons=24, differences=0) == pytest.approx(0.05 / 24)
    assert share_error(POLICY, comparisons=24, differences=14) == pytest.approx(0.05 / 10)


def test_detectable_difference_falls_with_blocks() -> None:
    """More blocks detect a smaller difference, and 20 detect 1.5 % if blocks scatter by 1 %."""
    estimate = estimate_ratio([BlockSample(CV * (-1) ** (each // 2), each % 2 == 0) for each in range(8)], POLICY, 0.05)
    found = [compute_detectable(estimate, ABPolicy(max_blocks=most), 0.05) for most in (8, 20, 80)]
    assert all(found)
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert found[1] is not None
    assert found[1] < 0.015


@pytest.mark.campaign
@pytest.mark.parametrize("noise", NOISES)
def test_equal_stacks_are_rarely_called_different(noise: str) -> None:
    """At most 5 % of equal comparisons with drift and an effect of the order get FASTER or SLOWER."""
    found = simulate(Random(SEED), 0.0, NOISES[noise], cases=CASES)
    wrong = sum(each.verdict.is_difference for each in found)
    assert wrong / CASES <= POLICY.error + compute_tolerance(POLICY.error, CASES)


@pytest.mark.campaign
def test_session_of_equal_comparisons_is_rarely_wrong() -> None:
    """At most 5 % of sessions have any difference among 24 equal comparisons."""
    random = Random(SEED)
    found = [simulate(random, 0.0, draw_heavy, cases=24, comparisons=24) for _ in range(SESSIONS)]
    wrong = sum(any(each.verdict.is_difference for each in session) for session in found)
    assert wrong / SESSIONS <= POLICY.error + compute_tolerance(POLICY.error, SESSIONS)


@pytest.mark.campaign
@pytest.mark.parametrize("noise", ["normal", "heavy tails (t3)"])
def test_difference_of_one_per_cent_is_found(noise: str) -> None:
    """If runs scatter by 1 %, a loss of 1 % is found in 90 % of comparisons, and 95 % of intervals cover it."""
    found = simulate(Random(SEED), math.log(0.99), NOISES[noise], cases=CASES)
    verdicts = Counter(each.verdict for each in found)
    assert verdicts[ABVerdict.SLOWER] / CASES >= 0.9 - compute_tolerance(0.1, CASES)
    assert verdicts[ABVerdict.FASTER] == 0
    assert sum(each.is_covered for each in found) / CASES >= 0.95 - compute_tolerance(0.05, CASES)


def test_runs_in_separate_allocations_make_equal_stacks_differ() -> None:
    """Runs of each variant in its own allocation make most equal comparisons differ."""
    found = simulate(Random(SEED), 0.0, draw_normal, cases=100, draw=simulate_apart)
    assert sum(each.verdict.is_difference for each in found) > 50


def make_samples(spread: float, blocks: int, random: Random) -> list[BlockSample]:
    return [BlockSample(random.gauss(0, spread), at % 2 == 0) for at in range(blocks)]


def measure_width(samples: list[BlockSample], prior: NoisePrior | None) -> float:
    found = estimate_ratio(samples, POLICY, 0.002, prior)
    assert found.high
    return math.log(found.high / found.low)


def measure_noise_width(samples: list[BlockSample], prior: NoisePrior | None) -> float:
    """Return the width of an interval in units of the noise of the runs."""
    return measure_width(samples, prior) / math.sqrt(measure_noise(samples).run_variance)


def test_similar_noise_of_a_session_narrows_intervals() -> None:
    """A prior from comparisons with equal noise makes intervals narrower and more alike."""
    random = Random(SEED)
    session = [make_samples(0.01, 16, random) for _ in range(24)]
    prior = estimate_prior(session)
    assert prior
    assert prior.variance == pytest.approx(0.0001, rel=0.5)
    alone, together = ([measure_width(samples, each) for samples in session] for each in (None, prior))
    assert fmean(together) < 0.9 * fmean(alone)
    assert max(together) / min(together) < max(alone) / min(alone)


def test_different_noise_gives_a_weak_prior() -> None:
    """Comparisons with noise of different magnitudes give no prior, or one with few degrees of freedom."""
    random = Random(SEED)
    alike = estimate_prior([make_samples(0.01, 16, random) for _ in range(24)])
    unlike = estimate_prior([make_samples(0.0001 * 10 ** (at / 8), 16, random) for at in range(24)])
    assert alike
    assert unlike is None or unlike.degrees_of_freedom < alike.degrees_of_freedom / 5


def test_noise_that_follows_its_runs_has_a_relative_prior() -> None:
    """If noise differs between comparisons as that of their runs, the prior is relative to the runs, and narrows intervals."""
    random = Random(SEED)
    session = [simulate_blocks(random, 0.0, draw_normal, 16, CV * 10 ** (at / 12)) for at in range(24)]
    prior = estimate_prior(session)
    assert prior
    assert prior.is_relative
    assert prior.variance == pytest.approx(1, rel=0.3), "the noise is that of runs alone"
    alone, together = ([measure_noise_width(samples, each) for samples in session] for each in (None, prior))
    assert fmean(together) < 0.9 * fmean(alone)


def test_ratio_that_scatters_between_blocks_has_its_own_variance() -> None:
    """A ratio that differs between blocks by more than its runs has the variance of the blocks."""
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


def test_few_comparisons_or_blocks_give_no_prior() -> None:
    """Three comparisons, or few blocks of many comparisons, give no prior, and equal samples give one."""
    random = Random(SEED)
    assert estimate_prior([make_samples(0.01, 16, random) for _ in range(3)]) is None
    assert estimate_prior([make_samples(0.01, 6, random) for _ in range(24)]) is None
    assert estimate_prior([[BlockSample(0.0, at % 2 == 0) for at in range(16)] for _ in range(24)])


@pytest.mark.campaign(only=True)
@pytest.mark.parametrize("difference", [0.0, 0.6])
def test_sessions_of_equal_stacks_seldom_have_a_difference(difference: float) -> None:
    """At most 5 % of sessions with a prior have any difference among 24 equal comparisons."""
    sessions = 100
    found = [simulate_session(Random(each), [0.0] * 24, draw_normal, difference=difference) for each in range(sessions)]
    wrong = sum(any(verdict.is_difference for verdict in verdicts) for verdicts in found)
    assert wrong / sessions <= 0.05 + compute_tolerance(0.05, sessions)
