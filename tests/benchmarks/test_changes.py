"""Tests of the benchmark of the search for changes."""

import pytest

from benchmarks.changes import count_longer_trials


@pytest.mark.parametrize("quarters, trials", [(1, (1, 1)), (3, (1, 1)), (9, (2, 1)), (40, (10, 4))])
def test_few_quarters_have_a_drift_and_a_year(quarters: int, trials: tuple[int, int]) -> None:
    """Few quarters have at least one drift and one year, so that no rate is divided by zero."""
    assert count_longer_trials(quarters) == trials
