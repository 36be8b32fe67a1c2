"""Each test's share of the false alarms of a session, and the number of runs before a judgement."""

from itertools import pairwise

import pytest

from pytest_dtfperf.baselines.terms import ComparisonPolicy, get_least_runs, share
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.stats.noise import Noise


def test_shares_of_all_checks_are_within_the_budget() -> None:
    """The shares of all checks of all tests are within the budget, also with thousands of checks."""
    for tests in (1, 3, 24):
        shares = [share(0.05, tests=tests, red=0, check=check) for check in range(5000)]
        assert all(later < earlier for earlier, later in pairwise(shares))
        assert 0.0499 < sum(shares) * tests <= 0.05


def test_shares_of_undeclared_checks_decrease() -> None:
    """Without a declared number, checks have 1/2, 1/6, 1/12, ... of the test's share."""
    shares = [share(0.024, tests=24, red=0, check=check) for check in (0, 1, 2, 19)]
    assert shares == pytest.approx([0.001 / 2, 0.001 / 6, 0.001 / 12, 0.001 / 420])


def test_declared_checks_have_equal_shares() -> None:
    """Each declared check has the same share, and one more check is refused."""
    for checks in (1, 2, 20, 1101):
        shares = [share(0.024, tests=24, red=0, check=each, checks=checks) for each in range(checks)]
        assert shares == pytest.approx([0.001 / checks] * checks)
    with pytest.raises(UsageError, match=r"check 3 of a test that declares checks=2: .* dtfperf\(checks=3\)"):
        share(0.05, tests=1, red=0, check=2, checks=2)


def test_failed_tests_leave_their_share_to_others() -> None:
    """Tests without a failure share the whole budget, as in Holm's procedure."""
    assert share(0.05, tests=24, red=4, check=0) == pytest.approx(0.05 / 20 / 2)
    assert share(0.05, tests=2, red=2, check=0) == pytest.approx(0.05 / 2)  # more checks than tests: never more than all


@pytest.mark.parametrize("degrees_of_freedom, runs", [(0, 2), (9, 2), (10, 1), (40, 1)])
def test_one_run_is_enough_only_with_known_noise(degrees_of_freedom: float, runs: int) -> None:
    """One run is judged only if the noise has enough degrees of freedom; `least` and `most` limit the number."""
    noise = Noise(run=0.02, degrees_of_freedom=degrees_of_freedom)
    assert get_least_runs(noise) == runs
    assert ComparisonPolicy().question(0.95, noise).least == runs
    assert ComparisonPolicy(least=3).question(0.95, noise).least == 3
    assert ComparisonPolicy(least=3, most=2).question(0.95, noise).least == 2


def test_policy_survives_json() -> None:
    """A comparison policy is the same after JSON."""
    terms = ComparisonPolicy(margin=0.02, threshold=0.9, false_alarm=0.001, least=2, most=7)
    assert ComparisonPolicy.from_json(terms.to_json()) == terms
