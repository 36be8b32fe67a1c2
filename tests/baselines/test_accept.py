from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.accept import Candidate, Mode, accept, explain_refusal
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
def test_verdict_decides_whether_a_baseline_is_accepted(verdict: Verdict) -> None:
    """Certain and wanted verdicts are accepted; a regression is accepted only with a reason."""
    judgement, measured = Judgement(verdict, "because"), measurement_of([100, 100])
    asked: list[tuple[Mode, str | None]] = [("all", None), ("all", "a new driver costs 3 %"), ("new", None)]
    assert tuple(explain_refusal(judgement, measured, mode, reason) is None for mode, reason in asked) == ACCEPTED[verdict]


REFUSALS: dict[str, tuple[dict[str, Any], list[float], str]] = {
    "injected_slowdowns": ({"injected_slowdowns": {"worker:1": 0.1}}, [100, 100], "an injected slow-down is no baseline"),
    "misplaced": (
        {"placement": MISPLACED},
        [100, 100],
        "it ran on other hosts than requested (requested: 1 node, 4 GPUs each;",
    ),
    "a single run": ({}, [100], "a single run, and a baseline needs at least 2"),
    "a single run that was not disturbed": (
        {"disturbed": [0, 2]},
        [90, 100, 80],
        "a single undisturbed run, and a baseline needs at least 2",
    ),
    "disturbed throughout": ({"disturbed": [0, 1]}, [100, 100], "all its runs were disturbed (somebody else's job)"),
}


@pytest.mark.parametrize("made, rates, words", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.NO_BASELINE, Verdict.REGRESSED], ids=str)
def test_unusable_measurement_is_never_accepted(made: dict[str, Any], rates: list[float], words: str, verdict: Verdict) -> None:
    """Injected slow-downs, wrong hosts, disturbed runs and single runs are refused with every verdict, also with a reason."""
    assert words in (explain_refusal(Judgement(verdict, "because"), measurement_of(rates, **made), "all", "I insist") or "")


def test_accept_stores_accepted_measurements_and_returns_refused_ones(tmp_path: Path) -> None:
    """Accepted measurements are stored and returned with old and new rates; refused ones are returned with the reason."""
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


def test_reason_of_a_slower_baseline_is_stored(tmp_path: Path) -> None:
    """The file has the reason for which a regression was accepted."""
    store = BaselineStore(tmp_path)
    measured = measurement_of([30, 31, 30])
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100])])
    slower = Candidate(measured, judge(measured, store.find_for(measured), ComparisonPolicy()), provenance_of())
    assert accept(store, [slower], mode="all", reason="kernel 6.8 mitigations").refused == []
    assert '"reason": "kernel 6.8 mitigations"' in (tmp_path / "cpu-amd-epyc-9b45-2c.json").read_text()


def make_candidate(
    rates: list[float], verdict: Verdict = Verdict.PASSED, change: float | None = None, **made: Any
) -> Candidate:
    return Candidate(measurement_of(rates, **made), Judgement(verdict, "because", change=change), provenance_of())


def test_reason_is_stored_only_in_slower_entries(tmp_path: Path) -> None:
    """A reason for a session is stored in the entries that became slower, and in no other."""
    store = BaselineStore(tmp_path)
    slower, faster = make_candidate([97, 97], change=-0.03), make_candidate([103, 103], change=0.03, gpus=4)
    done = accept(store, [slower, faster], mode="all", reason="a new driver")
    assert [change.new.provenance.reason for change in done.changes] == ["a new driver", None]


LOOSENED = {
    "faster": ([110, 110], False),
    "as fast": ([100, 100], False),
    "slower by less than 1 %": ([99.5, 99.5], False),
    "slower by more than 1 %": ([98, 98], True),
    "slower in the middle": ([97, 98, 120], True),
}


@pytest.mark.parametrize("rates, loosened", LOOSENED.values(), ids=LOOSENED)
def test_baseline_lower_by_more_than_one_percent_is_loosened(rates: list[float], loosened: bool, tmp_path: Path) -> None:
    """A baseline is loosened if its new median is lower by more than 1 %; a new baseline never is."""
    store = BaselineStore(tmp_path)
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100])])
    done = accept(store, [make_candidate(rates), make_candidate([1, 1], Verdict.NO_BASELINE, gpus=4)], mode="all")
    assert [change.new.images_per_sec for change in done.loosened_baselines] == (
        [sorted(rates)[len(rates) // 2]] if loosened else []
    )


def test_disturbed_runs_are_not_stored(tmp_path: Path) -> None:
    """The stored samples are the rates of undisturbed runs."""
    store = BaselineStore(tmp_path)
    done = accept(store, [make_candidate([100, 50, 101], Verdict.NO_BASELINE, disturbed=[1])], mode="all")
    assert done.changes[0].new.samples == [100, 101]


def test_accepted_measurement_keeps_the_calibrated_noise(tmp_path: Path) -> None:
    """An accepted measurement keeps the noise of its case and the change states that; another case has none."""
    store, calibrated = BaselineStore(tmp_path), calibrated_of()
    store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=calibrated)])
    measured = [make_candidate([120, 121]), make_candidate([50, 50], Verdict.NO_BASELINE, gpus=4)]
    first, second = accept(store, measured, mode="all").changes
    assert (first.kept_noise, second.kept_noise) == (calibrated, None)
    found = store.find_for(measured[0].measurement)
    assert found is not None
    assert found.noise == calibrated


def test_new_noise_replaces_the_stored_noise(tmp_path: Path) -> None:
    """An entry with noise of its own replaces the stored noise."""
    store, better = BaselineStore(tmp_path), calibrated_of(run=0.01)
    store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=calibrated_of())])
    (change,) = store.update("cpu-amd-epyc-9b45-2c", [replace(entry_of([100, 100]), noise=better)])
    assert change.new.noise == better
    assert change.kept_noise is None


def test_changed_program_is_stored_beside_the_old_one(tmp_path: Path) -> None:
    """A measurement of a changed training program is stored beside the old one, and each finds its own entry."""
    store = BaselineStore(tmp_path)
    old, new = (measurement_of([rate, rate], program=name) for rate, name in [(100, "0123456789ab"), (80, "ba9876543210")])
    accept(store, [Candidate(old, Judgement(Verdict.NO_BASELINE, ""), provenance_of())], mode="new")
    (change,) = accept(store, [Candidate(new, Judgement(Verdict.INCOMPARABLE, ""), provenance_of())], mode="new").changes
    assert change.old is None
    assert [entry.images_per_sec for one in (old, new) if (entry := store.find_for(one))] == [100, 80]
