"""Tests of the search for the slow candidate of a series: posteriors of blocks, and simulated searches."""

import math
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median

import pytest

from benchmarks.bisection import CANDIDATES, EFFECT, is_right, simulate
from pytest_dtfperf.compare.bisection import (
    FULL_BLOCKS,
    LEAST_EQUIVALENT,
    MOST_SEVERAL,
    BisectionEnd,
    BisectionPolicy,
    Observation,
    compute_posterior,
    decide_bisection,
)
from tests import campaign

POLICY = BisectionPolicy()
SEED = 7
CASES = 40 if campaign.WHOLE else 12


def observe(levels: Mapping[int, Sequence[float]]) -> list[Observation]:
    """Return blocks with these log-ratios, in both orders in turn."""
    return [
        Observation(candidate, value, at % 2 == 0) for candidate, values in levels.items() for at, value in enumerate(values)
    ]


def test_levels_locate_the_slow_candidate() -> None:
    """Blocks at two levels locate the change between them, with its effect."""
    seen = observe({9: [-0.031, -0.029, -0.03], 4: [-0.03, -0.032], 3: [0.001, -0.001]})
    found = compute_posterior(10, seen)
    decision = decide_bisection(found, POLICY, len(seen))
    assert decision.end is BisectionEnd.FOUND
    assert not decision.is_open
    (change,) = found.describe_changes(0.95)
    assert (change.first, change.last) == (4, 4)
    assert change.low < math.exp(-0.03) < change.high
    assert change.ratio == pytest.approx(math.exp(-0.03), abs=0.003)
    assert found.inclusion[4] > 0.95
    assert found.inclusion.sum() == pytest.approx(found.changes[1] + 2 * found.changes[2])


def test_broken_candidates_stay_in_the_result() -> None:
    """A change among candidates that cannot be built is one of them, or the first after them."""
    seen = observe({9: [-0.031, -0.029, -0.03], 6: [-0.03, -0.032], 3: [0.001, -0.001]})
    assert decide_bisection(compute_posterior(10, seen), POLICY, len(seen)).is_open
    found = compute_posterior(10, seen, broken={4, 5})
    assert decide_bisection(found, POLICY, len(seen)).end is BisectionEnd.FOUND
    (change,) = found.describe_changes(0.95)
    assert (change.first, change.last) == (4, 6)


def test_broken_candidates_end_a_search() -> None:
    """A search in which two changes could be among candidates that cannot be built ends with one change."""
    noisy = {5: [-0.9, -0.8, -1.0], 4: [-0.9, -1.0, -0.7], 1: [0.1, -0.1, 0.0]}
    seen = observe({each: values * 3 for each, values in noisy.items()})
    assert decide_bisection(compute_posterior(6, seen, broken={2, 3}), POLICY, len(seen)).end is BisectionEnd.FOUND


def test_two_changes_have_their_own_effects() -> None:
    """A level between those of the first and the last candidate gives two changes, each with its effect."""
    seen = observe({3: [-0.06, -0.061, -0.059], 2: [-0.02, -0.021, -0.019], 1: [-0.02, -0.02, -0.021]})
    found = compute_posterior(4, seen)
    assert decide_bisection(found, POLICY, len(seen)).end is BisectionEnd.SEVERAL
    first, second = found.describe_changes(0.95)
    assert (first.first, first.last, second.first, second.last) == (1, 1, 3, 3)
    assert first.ratio == pytest.approx(math.exp(-0.02), abs=0.002)
    assert second.ratio == pytest.approx(math.exp(-0.04), abs=0.003)


# Blocks of a search of 32 commits on a machine with other load, in their order: candidate, log-ratio, reference first.
BUSY = [
    (31, -0.811, False), (31, -0.838, True), (14, 0.04, True), (22, -0.835, False), (18, -0.048, True), (20, 0.084, True),
    (21, -0.65, True), (21, -0.712, False), (20, 0.076, False), (20, 0.056, True),
]  # fmt: skip


def test_minor_second_change_ends_a_search() -> None:
    """A search on a busy machine finds the change of a half, although a minor second change is not excluded."""
    seen = [Observation(*each) for each in BUSY]
    found = compute_posterior(32, seen)
    decision = decide_bisection(found, POLICY, len(seen))
    assert decision.end is BisectionEnd.FOUND
    assert "a second change of less than 25 % of its size is not excluded" in decision.reason
    assert found.changes[1] < POLICY.confidence
    (change,) = found.describe_changes(POLICY.confidence)
    assert (change.first, change.last) == (21, 21)
    assert 0.4 < change.low < change.high < 0.52


def test_found_change_is_reported_without_a_minor_one_elsewhere() -> None:
    """A change that is FOUND is reported alone if a minor one after it is certain, and it is unknown where."""
    seen = observe({63: [-0.331, -0.329, -0.33], 30: [-0.301, -0.299], 5: [-0.3, -0.301], 4: [0.001, -0.001]})
    found = compute_posterior(64, seen)
    assert found.changes[2] > POLICY.confidence
    assert decide_bisection(found, POLICY, len(seen)).end is BisectionEnd.FOUND
    (change,) = found.describe_changes(POLICY.confidence)
    assert (change.first, change.last) == (5, 5)
    assert change.low < math.exp(-0.3) < change.high


def test_found_change_may_be_less_than_the_equivalence() -> None:
    """A change of 0.5 % that is located is FOUND, although candidates with this difference are equivalent."""
    seen = observe({9: [-0.0051, -0.0049, -0.005, -0.005], 4: [-0.005, -0.0051, -0.0049], 3: [0.0001, -0.0001, 0.0]})
    found = compute_posterior(10, seen)
    assert found.is_equivalent(POLICY)
    assert decide_bisection(found, POLICY, len(seen)).end is BisectionEnd.FOUND


# Blocks of a simulated search for a change of 3 % with runs that scatter by 1 %. By chance, these scatter by half of that.
CALM = [
    (63, -0.0323, True), (63, -0.0368, False), (34, -0.0368, False), (17, -0.035, False), (8, 0.005, False),
    (12, -0.0304, False), (10, -0.0442, False), (9, 0.0002, False),
]  # fmt: skip


# The same with runs that scatter by 1 %, and changes of 6 % at 23 and of 3 % at 28.
SECOND = [
    (63, -0.0775, True), (63, -0.1008, False), (34, -0.0808, True), (17, 0.0007, True), (25, -0.0652, False),
    (21, 0.0049, False), (23, -0.0777, False), (22, -0.0005, False),
]  # fmt: skip


def test_an_interval_allows_for_more_noise_than_few_blocks_show() -> None:
    """The interval of an effect contains 3 % though the mean of a few calm blocks is 3.6 %."""
    (change,) = compute_posterior(64, [Observation(*each) for each in CALM]).describe_changes(POLICY.confidence)
    assert (change.first, change.last) == (10, 10)
    assert change.low < math.exp(-0.0365) < math.exp(-0.0305) < change.high < 1


def test_few_blocks_do_not_exclude_a_second_change() -> None:
    """A second change with a probability of 0.9 % keeps a search of 8 blocks open, and would not keep one of 15 open."""
    found = compute_posterior(64, [Observation(*each) for each in SECOND])
    assert 0.001 < found.several < MOST_SEVERAL
    assert found.sole.max() >= POLICY.confidence
    assert decide_bisection(found, POLICY, len(SECOND)).is_open
    assert decide_bisection(found, POLICY, FULL_BLOCKS).end is BisectionEnd.FOUND


def test_second_change_that_matters_keeps_a_search_open() -> None:
    """A search stays open if a second change that is not minor is possible, although the first one has the confidence."""
    seen = observe({9: [-0.07, -0.079], 4: [-0.06, -0.066, -0.062], 3: [0.001, -0.001]})
    found = compute_posterior(10, seen)
    assert found.sole.max() >= POLICY.confidence
    assert MOST_SEVERAL < found.several < 1 - POLICY.confidence
    assert decide_bisection(found, POLICY, len(seen)).is_open


def test_equal_ends_are_no_difference() -> None:
    """A search ends without a difference if the last candidate is as fast as the first, and not after two blocks."""
    values = [0.002, -0.003, 0.001, 0.0, -0.001, 0.002]
    found = [decide_bisection(compute_posterior(10, observe({9: values[:n]})), POLICY, n) for n in (2, len(values))]
    assert found[0].is_open
    assert found[1].end is BisectionEnd.NO_DIFFERENCE
    assert len(values) > LEAST_EQUIVALENT


def test_single_slow_block_does_not_decide() -> None:
    """One slow block among fast ones of a candidate leaves the change after this candidate."""
    seen = observe({9: [-0.03, -0.031, -0.03], 4: [0.001, -0.3, -0.001, 0.0]})
    assert compute_posterior(10, seen).inclusion[5:].sum() > 0.95


def test_effect_of_the_order_is_removed() -> None:
    """A change is found although blocks that begin with the reference have a log-ratio higher by 0.02."""
    levels = {9: [-0.03] * 4, 4: [-0.03] * 4, 3: [0.0] * 4}
    shifted = [
        Observation(each.candidate, each.log_ratio + (0.01 if each.reference_first else -0.01), each.reference_first)
        for each in observe(levels)
    ]
    found = compute_posterior(10, shifted)
    assert found.inclusion[4] > 0.95
    assert found.noise < 0.006


def test_last_candidate_is_measured_first() -> None:
    """The first choice of a search is the last candidate."""
    assert compute_posterior(10, []).choose_next(dict.fromkeys(range(10), 1.0)) == 9


def test_next_candidate_halves_the_interval() -> None:
    """With equal costs the next choice is near the middle."""
    found = compute_posterior(65, observe({64: [-0.03, -0.031, -0.03]}))
    assert 28 <= found.choose_next(dict.fromkeys(range(65), 1.0)) <= 36


def test_warm_candidate_is_preferred_to_a_build() -> None:
    """A candidate off the middle that costs a tenth is chosen."""
    found = compute_posterior(65, observe({64: [-0.03, -0.031, -0.03]}))
    costs = {each: 60.0 if each in (0, 24, 64) else 600.0 for each in range(65)}
    # Options of a gap are evenly spread: each but the warm one costs ten times as much.
    assert found.choose_next(costs, warm=(24,)) == 24


def test_broken_candidate_is_not_chosen() -> None:
    """A candidate that cannot be built is not chosen, but one beside it."""
    seen = observe({4: [-0.03, -0.031, -0.03]})
    chosen = compute_posterior(5, seen, broken={1, 3}).choose_next(dict.fromkeys(range(5), 1.0))
    assert chosen in (2, 4)


@pytest.mark.campaign
def test_slow_candidate_of_64_is_found() -> None:
    """One slow candidate of 64 is found in 95 % of simulated searches, with a median of 2.5 blocks for each halving."""
    found = simulate(Random(SEED), CASES)
    assert sum(is_right(*each) for each in found) / CASES >= 0.95
    assert median(result.blocks for _, result in found) <= 2.5 * math.log2(CANDIDATES)


@pytest.mark.campaign(only=True)
def test_slow_candidate_is_found_if_builds_fail() -> None:
    """The slow candidate is in the reported range in 95 % of simulated searches in which a fifth of the candidates cannot be
    built."""
    found = simulate(Random(SEED), CASES, broken=0.2)
    assert sum(is_right(*each) for each in found) / CASES >= 0.95


@pytest.mark.campaign(only=True)
def test_two_slow_candidates_are_several() -> None:
    """Two changes of 3 % each end in SEVERAL in 90 % of simulated searches."""
    found = simulate(Random(SEED), CASES, (EFFECT, EFFECT))
    assert sum(result.end is BisectionEnd.SEVERAL for _, result in found) / CASES >= 0.9
