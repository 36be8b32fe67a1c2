"""Times of few traced steps are reconciled with those of all steps."""

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
def test_who_takes_the_difference(seconds: list[float], errors: list[float], change: float, expected: list[float]) -> None:
    """What is known well keeps its seconds, what scatters takes what is missing or too much."""
    assert settle_seconds(seconds, errors, change, 0.0) == pytest.approx(expected, abs=0.003)


@given(numbers, st.floats(-2, 2), st.floats(0, 0.1))
def test_never_past_the_change(parts: list[tuple[float, float]], change: float, error: float) -> None:
    """Of what only adds, the sum comes nearer to the change and does not pass it by more than this may be off."""
    seconds, errors = [abs(each) for each, _ in parts], [each for _, each in parts]
    found = settle_seconds(seconds, errors, change, error)
    before, after = change - sum(seconds), change - sum(found)
    assert abs(after) <= abs(before) + 1e-9
    assert before * after >= -1e-9
    assert all(new >= -1e-12 for new in found)


@given(numbers, st.floats(-2, 2), st.floats(0, 0.1), st.floats(0, 1))
def test_nothing_is_longer_than_all(parts: list[tuple[float, float]], change: float, error: float, shorter: float) -> None:
    """What is said to have become longer is in all no more than the step has, and what became shorter meanwhile."""
    found = settle_seconds([each for each, _ in parts], [each for _, each in parts], change, error, shorter)
    assert sum(each for each in found if each > 0) <= max(0.0, change + error + shorter) + 1e-9
