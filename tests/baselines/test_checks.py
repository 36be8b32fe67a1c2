"""Checks that are stored with all their inputs."""

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


def test_judgement_survives_json() -> None:
    """A judgement is the same after JSON, and its repetition has the same result."""
    for judgement in (CHECK, ask("baseline", ComparisonPolicy(), MEASURED, entry=ENTRY)):
        again = Judgement.from_json(json.loads(json.dumps(judgement.to_json())))
        assert again.to_json() == judgement.to_json()
        assert ask_again(again, MEASURED, {}) == ask_again(judgement, MEASURED, {})


def test_repeated_judgement_uses_the_same_runs() -> None:
    """A repeated judgement ignores runs that were added later."""
    again = ask_again(CHECK, MEASURED, {})
    assert again == ask("baseline", ComparisonPolicy(margin=0.1), measurement_of([94, 94.5]), entry=ENTRY)
    assert again.verdict == "PASSED"
    assert "2 runs" in again.reason


def test_comparison_needs_two_measurements() -> None:
    """A check of two measurements with only one of them is a ValueError."""
    with pytest.raises(ValueError, match="a check of overhead compares two measurements"):
        ask("overhead", ComparisonPolicy(threshold=0.1), MEASURED)
