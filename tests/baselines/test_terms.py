"""What a test may spend of the session's false alarms, and after how many runs it may be judged."""

from itertools import pairwise

import pytest

from pytest_dtfperf.baselines.terms import ComparisonPolicy, least_runs, share
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.stats.noise import Noise


def test_shares_of_all_checks_are_within_the_budget() -> None:
    """All checks of all tests together spend no more than the budget, also of a test with thousands."""
    for tests in (1, 3, 24):
        shares = [share(0.05, tests=tests, red=0, check=check) for check in range(5000)]
        assert all(later < earlier for earlier, later in pairwise(shares))
        assert 0.0499 < sum(shares) * tests <= 0.05


def test_checks_that_are_not_declared_get_less_and_less() -> None:
    """Where a test declares no number of checks, they get a half, a sixth and a twelfth of its part; the 20th a 420th of it."""
    shares = [share(0.024, tests=24, red=0, check=check) for check in (0, 1, 2, 19)]
    assert shares == pytest.approx([0.001 / 2, 0.001 / 6, 0.001 / 12, 0.001 / 420])


def test_declared_checks_share_evenly() -> None:
    """Each check that a test declares gets as much as any other; one more is refused."""
    for checks in (1, 2, 20, 1101):
        shares = [share(0.024, tests=24, red=0, check=each, checks=checks) for each in range(checks)]
        assert shares == pytest.approx([0.001 / checks] * checks)
    with pytest.raises(UsageError, match=r"check 3 of a test that declares checks=2: .* dtfperf\(checks=3\)"):
        share(0.05, tests=1, red=0, check=2, checks=2)


def test_red_tests_leave_their_part_to_the_others() -> None:
    """What is red leaves its part: the others share the whole budget among themselves, as in Holm's procedure."""
    assert share(0.05, tests=24, red=4, check=0) == pytest.approx(0.05 / 20 / 2)
    assert share(0.05, tests=2, red=2, check=0) == pytest.approx(0.05 / 2)  # more checks than tests: never more than all


@pytest.mark.parametrize("degrees_of_freedom, runs", [(0, 2), (9, 2), (10, 1), (40, 1)])
def test_least_runs(degrees_of_freedom: float, runs: int) -> None:
    """One run is worth judging only where the spread is known from elsewhere."""
    noise = Noise(run=0.02, degrees_of_freedom=degrees_of_freedom)
    assert least_runs(noise) == runs
    assert ComparisonPolicy().question(0.95, noise).least == runs
    assert ComparisonPolicy(least=3).question(0.95, noise).least == 3
    assert ComparisonPolicy(least=3, most=2).question(0.95, noise).least == 2


def test_terms_come_back_from_json() -> None:
    """The policy is kept with every check, and read again as they were."""
    terms = ComparisonPolicy(margin=0.02, threshold=0.9, false_alarm=0.001, least=2, most=7)
    assert ComparisonPolicy.from_json(terms.to_json()) == terms
