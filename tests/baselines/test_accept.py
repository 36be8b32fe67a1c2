from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.accept import Candidate, Mode, accept, refusal
from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.terms import ComparisonPolicy
from pytest_dtfperf.baselines.verdict import Verdict
from tests.baselines.examples import MISPLACED, calibrated_of, entry_of, measurement_of, provenance_of

ACCEPTED = {  # verdict -> (all, all with a reason, new)
    Verdict.PASSED: (True, True, False),
    Verdict.IMPROVED: (True, True, False),
    Verdict.REGRESSED: (False, True, False),
    Verdict.ANCHOR: (True, True, False),
    Verdict.INCONCLUSIVE: (False, False, False),
    Verdict.NO_BASELINE: (True, True, True),
    Verdict.INCOMPARABLE: (True, True, True),
    Verdict.INVALID: (False, False, False),
    Verdict.TAINTED: (False, False, False),
    Verdict.INFRASTRUCTURE: (False, False, False),
}


@pytest.mark.parametrize("verdict", Verdict, ids=str)
def test_who_may_become_a_baseline(verdict: Verdict) -> None:
    """Only what is certain and wanted is accepted; a regression only with a stated reason."""
    judgement, measured = Judgement(verdict, "because"), measurement_of([100, 100])
    asked: list[tuple[Mode, str | None]] = [("all", None), ("all", "a new driver costs 3 %"), ("new", None)]
    assert tuple(refusal(judgement, measured, mode, reason) is None for mode, reason in asked) == ACCEPTED[verdict]


REFUSALS: dict[str, tuple[dict[str, Any], list[float], str]] = {
    "injected_slowdowns": ({"injected_slowdowns": {"worker:1": 0.1}}, [100, 100], "an injected slow-down is no baseline"),
    "misplaced": (
        {"placement": MISPLACED},
        [100, 100],
        "it ran on other hosts than requested (requested: 1 node, 4 GPUs each;",
    ),
    "a single run": ({}, [100], "a single run, 2 are the least"),
    "a single run that was not disturbed": ({"disturbed": [0, 2]}, [90, 100, 80], "a single undisturbed run, 2 are the least"),
    "disturbed throughout": ({"disturbed": [0, 1]}, [100, 100], "all its runs were disturbed (somebody else's job)"),
}


@pytest.mark.parametrize("made, rates, words", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.NO_BASELINE, Verdict.REGRESSED], ids=str)
def test_never_a_baseline(made: dict[str, Any], rates: list[float], words: str, verdict: Verdict) -> None:
    """An injected slow-down, wrong hosts, disturbed runs and a lone number never become a baseline, whatever is asked for."""
    assert words in (refusal(Judgement(verdict, "because"), measurement_of(rates, **made), "all", "I insist") or "")


def test_accepting_writes_what_may_be_written(tmp_path: Path) -> None:
    """Accepted measurements land in their system's file with old and new; refused ones come back with the reason."""
    store = BaselineStore(tmp_path)
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100]), entry_of([50, 50], gpus=1)])
    measured = [measurement_of([120, 122]), measurement_of([30, 31, 30], gpus=1), measurement_of([200, 201], gpus=4)]
    candidates = [
        Candidate(one, judge(one, store.find_for(one), ComparisonPolicy()), provenance_of(date="2026-02-01T00:00:00Z"))
        for one in measured
    ]
    done = accept(store, candidates, mode="all")
    assert [str(change).partition(": ")[2] for change in done.changes] == [
        "100.0 -> 121.0 images/sec (+21.0 %)",
        "new, 200.5 images/sec",
    ]
    [(candidate, why_not)] = done.refused
    assert candidate.measurement is measured[1]
    assert why_not.endswith('a slower baseline is accepted only with --allow-regression="why"')
    found = [store.find_for(one) for one in measured]
    assert [entry.images_per_sec for entry in found if entry] == [121, 50, 200.5]


def test_reason_of_a_slower_baseline_is_kept(tmp_path: Path) -> None:
    """Who accepts a regression finds the reason in the file."""
    store = BaselineStore(tmp_path)
    measured = measurement_of([30, 31, 30])
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100])])
    slower = Candidate(measured, judge(measured, store.find_for(measured), ComparisonPolicy()), provenance_of())
    assert accept(store, [slower], mode="all", reason="kernel 6.8 mitigations").refused == []
    assert '"reason": "kernel 6.8 mitigations"' in (tmp_path / "cpu-amd-epyc-9b45-2c.json").read_text()


def candidate(rates: list[float], verdict: Verdict = Verdict.PASSED, change: float | None = None, **made: Any) -> Candidate:
    return Candidate(measurement_of(rates, **made), Judgement(verdict, "because", change=change), provenance_of())


def test_a_reason_is_kept_where_it_explains_something(tmp_path: Path) -> None:
    """A reason for a session is stored in the entries that got slower, and in no other."""
    store = BaselineStore(tmp_path)
    slower, faster = candidate([97, 97], change=-0.03), candidate([103, 103], change=0.03, gpus=4)
    done = accept(store, [slower, faster], mode="all", reason="a new driver")
    assert [change.new.provenance.reason for change in done.changes] == ["a new driver", None]


LOOSENED = {
    "faster": ([110, 110], False),
    "as fast": ([100, 100], False),
    "slower by less than margins tell": ([99.5, 99.5], False),
    "slower by more than 1 %": ([98, 98], True),
    "slower in the middle": ([97, 98, 120], True),
}


@pytest.mark.parametrize("rates, loosened", LOOSENED.values(), ids=LOOSENED)
def test_a_lower_baseline_is_a_looser_gate(rates: list[float], loosened: bool, tmp_path: Path) -> None:
    """A gate is loosened where the new median is lower by more than 1 %, whatever the verdict was; a new one never is."""
    store = BaselineStore(tmp_path)
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100])])
    done = accept(store, [candidate(rates), candidate([1, 1], Verdict.NO_BASELINE, gpus=4)], mode="all")
    assert [change.new.images_per_sec for change in done.loosened] == ([sorted(rates)[len(rates) // 2]] if loosened else [])


def test_disturbed_runs_are_no_samples(tmp_path: Path) -> None:
    """The stored samples are the rates of undisturbed runs."""
    store = BaselineStore(tmp_path)
    done = accept(store, [candidate([100, 50, 101], Verdict.NO_BASELINE, disturbed=[1])], mode="all")
    assert done.changes[0].new.samples == [100, 101]


def test_calibrated_noise_outlives_a_new_baseline(tmp_path: Path) -> None:
    """The noise of a case is kept when its rate is accepted again, and the change states that; another case has none."""
    store, calibrated = BaselineStore(tmp_path), calibrated_of()
    store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=calibrated)])
    measured = [candidate([120, 121]), candidate([50, 50], Verdict.NO_BASELINE, gpus=4)]
    first, second = accept(store, measured, mode="all").changes
    assert (first.kept_noise, second.kept_noise) == (calibrated, None)
    found = store.find_for(measured[0].measurement)
    assert found is not None
    assert found.noise == calibrated


def test_another_calibration_replaces_the_first(tmp_path: Path) -> None:
    """An entry that brings its own noise keeps it."""
    store, better = BaselineStore(tmp_path), calibrated_of(run=0.01)
    store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=calibrated_of())])
    (change,) = store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=better)])
    assert change.new.noise == better
    assert change.kept_noise is None


def test_what_an_external_command_trained_is_another_baseline(tmp_path: Path) -> None:
    """A measurement of a changed training program is added beside the old one; each finds its own."""
    store = BaselineStore(tmp_path)
    old, new = (measurement_of([rate, rate], program=name) for rate, name in [(100, "0123456789ab"), (80, "ba9876543210")])
    accept(store, [Candidate(old, Judgement(Verdict.NO_BASELINE, ""), provenance_of())], mode="new")
    (change,) = accept(store, [Candidate(new, Judgement(Verdict.INCOMPARABLE, ""), provenance_of())], mode="new").changes
    assert change.old is None
    assert [entry.images_per_sec for one in (old, new) if (entry := store.find_for(one))] == [100, 80]
