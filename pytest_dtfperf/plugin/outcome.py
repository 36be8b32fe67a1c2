"""How a verdict travels from a test to its report: as a user property, which xdist and JUnit XML carry along."""

import pytest

VERDICT = "dtfperf_verdict"
ACCEPTED = "dtfperf_accepted"  # what the test measured is to become the baseline, so that nothing of it is left open
UNDECIDED = "undecided"  # pytest counts such tests, beside those that passed


def verdict_of(report: pytest.CollectReport | pytest.TestReport) -> str | None:
    """The last verdict a test came to."""
    found = [str(value) for name, value in getattr(report, "user_properties", ()) if name == VERDICT]
    return found[-1] if found else None


def is_accepted(report: pytest.CollectReport | pytest.TestReport) -> bool:
    return any(name == ACCEPTED for name, _ in getattr(report, "user_properties", ()))
