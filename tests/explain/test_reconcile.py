"""Tests that times of few traced steps are reconciled with those of all steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_dtfperf.explain.causes import settle_seconds

numbers = st.lists(st.tuples(st.floats(-1, 1), st.floats(0.001, 0.2)), min_size=1, max_size=6)

CASES = {
    "they agree": ([0.1, 0.02], [0.01, 0.01], 0.12, [0.1, 0.02]),
    "too little, by chance": ([0.1, 0.02], [0.01, 0.0], 0.13, [0.11, 0.02]),
    "too little, and no chance": ([0.1, 0.02], [0.01, 0.0], 0.2, [0.12, 0.02]),
    "too much of what scatters": ([0.3, 0.42], [0.003, 0.1], 0.31, [0.288, 0.02]),
    "too much of what does not": ([0.374, 0.02], [0.01, 0.0], 0.121, [0.114, 0.007]),
    "too much, for traced steps were another moment's": ([0.374, -0.25], [0.0, 0.0], 0.121, [0.121, -0.25]),
    "nothing scatters": ([0.1], [0.0], 0.5, [0.1]),
}


@pytest.mark.parametrize(("seconds", "errors", "change", "expected"), CASES.values(), ids=CASES)
def test_parts_that_scatter_take_the_difference(
    seconds: list[float], errors: list[float], change: float, expected: list[float]
) -> None:
    """Parts with small errors keep their seconds, and parts that scatter take the difference to the change."""
    assert settle_seconds(seconds, errors, change, 0.0) == pytest.approx(expected, abs=0.003)


@given(numbers, st.floats(-2, 2), st.floats(0, 0.1))
def test_sum_approaches_the_change_without_passing_it(parts: list[tuple[float, float]], change: float, error: float) -> None:
    """The sum of parts that only add comes nearer to the change, does not pass it, and no part becomes negative."""
    seconds, errors = [abs(each) for each, _ in parts], [each for _, each in parts]
    found = settle_seconds(seconds, errors, change, error)
    before, after = change - sum(seconds), change - sum(found)
    assert abs(after) <= abs(before) + 1e-9
    assert before * after >= -1e-9
    assert all(new >= -1e-12 for new in found)


@given(numbers, st.floats(-2, 2), st.floats(0, 0.1), st.floats(0, 1))
def test_longer_parts_do_not_exceed_the_change(
    parts: list[tuple[float, float]], change: float, error: float, shorter: float
) -> None:
    """The parts that became longer have no more than the change, its error and the given shorter seconds together."""
    found = settle_seconds([each for each, _ in parts], [each for _, each in parts], change, error, shorter)
    assert sum(each for each in found if each > 0) <= max(0.0, change + error + shorter) + 1e-9
