"""How a verdict travels from a test to its report: as a user property, which xdist and JUnit XML carry along."""

import pytest

VERDICT = "dtfperf_verdict"


def verdict_of(report: pytest.CollectReport | pytest.TestReport) -> str | None:
    """The last verdict a test came to."""
    found = [str(value) for name, value in getattr(report, "user_properties", ()) if name == VERDICT]
    return found[-1] if found else None
