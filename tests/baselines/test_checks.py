"""Judgements that are kept with all they rest on."""

import json

import pytest

from pytest_dtfperf.baselines.checks import ask, ask_again
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from tests.baselines.examples import entry_of, measurement_of

ENTRY = entry_of([100, 100.5, 99.5])
MEASURED = measurement_of([94, 94.5, 120])
CHECK = Judgement(Verdict.PASSED, "then", terms=ComparisonPolicy(margin=0.1), runs=2, entry=ENTRY)


def test_judgement_comes_back_from_json() -> None:
    """A judgement is the same after it was written and read, and is repeated with the same reason."""
    for judgement in (CHECK, ask("baseline", ComparisonPolicy(), MEASURED, entry=ENTRY)):
        again = Judgement.from_json(json.loads(json.dumps(judgement.to_json())))
        assert again.to_json() == judgement.to_json()
        assert ask_again(again, MEASURED, {}) == ask_again(judgement, MEASURED, {})


def test_judgement_is_repeated_with_the_same_runs() -> None:
    """Runs that were made later, for another check, change nothing."""
    again = ask_again(CHECK, MEASURED, {})
    assert again == ask("baseline", ComparisonPolicy(margin=0.1), measurement_of([94, 94.5]), entry=ENTRY)
    assert again.verdict == "PASSED"
    assert "2 runs" in again.reason


def test_comparison_needs_something_to_compare_with() -> None:
    """A check of two measurements with one of them is a mistake of the caller's."""
    with pytest.raises(ValueError, match="a check of overhead compares two measurements"):
        ask("overhead", ComparisonPolicy(threshold=0.1), MEASURED)
