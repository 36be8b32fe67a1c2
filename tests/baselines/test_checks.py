"""Judgements that are kept with all they rest on."""

import json

import pytest

from pytest_dtfperf.baselines.checks import Check, Side, ask, ask_again
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from tests.baselines.examples import entry_of, measurement_of

ENTRY = entry_of([100, 100.5, 99.5])
MEASURED = measurement_of([94, 94.5, 120])
CHECK = Check(
    kind="baseline",
    terms=ComparisonPolicy(margin=0.1),
    side=Side(record="a", runs=2, entry=ENTRY),
    verdict=Verdict.PASSED,
    reason="then",
)


def test_check_comes_back_from_json() -> None:
    """A check is the same after it was written and read, and is judged with the same reason."""
    again = Check.from_json(json.loads(json.dumps(CHECK.to_json())))
    assert again.to_json() == CHECK.to_json()
    assert ask_again(again, {"a": MEASURED}) == ask_again(CHECK, {"a": MEASURED})


def test_check_looks_at_the_runs_that_there_were() -> None:
    """Runs that were made later, for another check, change nothing."""
    judgement, check = ask_again(CHECK, {"a": MEASURED})
    assert check.reason == ask("baseline", CHECK.terms, measurement_of([94, 94.5]), entry=ENTRY).reason
    assert (check.verdict, str(judgement.verdict)) == ("PASSED", "PASSED")
    assert "2 runs" in check.reason


def test_comparison_needs_something_to_compare_with() -> None:
    """A check of two measurements with one of them is a mistake of the caller's."""
    with pytest.raises(ValueError, match="a check of overhead compares two measurements"):
        ask("overhead", ComparisonPolicy(threshold=0.1), MEASURED)
