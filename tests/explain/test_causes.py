"""Causes of what has become longer."""

from pytest_dtfperf.explain.causes import Explanation, explain
from pytest_dtfperf.explain.evidence import Evidence


def test_what_nothing_explains_is_said() -> None:
    """Where nothing but rates is known, all of the change is not explained."""
    found = explain(Evidence(step_s=[0.1, 0.1, 0.1]), Evidence(step_s=[0.15, 0.15, 0.15]))
    assert found is not None
    assert (found.causes, round(found.unexplained_s, 6)) == ([], 0.05)
    assert Explanation.from_json(found.to_json()) == found
