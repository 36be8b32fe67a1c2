"""What a test may spend of the session's false alarms, and after how many runs it may be judged."""

import pytest

from pytest_dtfperf.baselines.terms import Terms, least_runs, share
from pytest_dtfperf.stats.noise import Noise


def test_shares_of_all_checks_are_within_the_budget() -> None:
    """However many tests there are, and checks in each of them, together they spend no more than the budget."""
    for tests in (1, 3, 24):
        spent = sum(share(0.05, tests=tests, red=0, check=check) for check in range(30)) * tests
        assert spent == pytest.approx(0.05, rel=1e-6)
        assert spent <= 0.05


def test_first_check_of_a_test_has_nearly_all_of_its_part() -> None:
    """Most tests have one check: it has nearly the whole part, and each further one half of the one before."""
    shares = [share(0.024, tests=24, red=0, check=check) for check in range(4)]
    assert shares == pytest.approx([0.000875, 0.0000625, 0.00003125, 0.000015625])


def test_red_tests_leave_their_part_to_the_others() -> None:
    """What is red leaves its part: the others share the whole budget among themselves, as in Holm's procedure."""
    assert share(0.05, tests=24, red=4, check=0) == pytest.approx(0.05 / 20 * 7 / 8)
    assert share(0.05, tests=2, red=2, check=0) == pytest.approx(0.05 * 7 / 8)  # more checks than tests: never more than all


@pytest.mark.parametrize("degrees_of_freedom, runs", [(0, 2), (9, 2), (10, 1), (40, 1)])
def test_least_runs(degrees_of_freedom: float, runs: int) -> None:
    """One run is worth judging only where the spread is known from elsewhere."""
    noise = Noise(run=0.02, degrees_of_freedom=degrees_of_freedom)
    assert least_runs(noise) == runs
    assert Terms().question(0.95, noise).least == runs
    assert Terms(least=3).question(0.95, noise).least == 3
    assert Terms(least=3, most=2).question(0.95, noise).least == 2


def test_terms_come_back_from_json() -> None:
    """Terms are kept with every check, and read again as they were."""
    terms = Terms(margin=0.02, threshold=0.9, false_alarm=0.001, least=2, most=7)
    assert Terms.from_json(terms.to_json()) == terms
