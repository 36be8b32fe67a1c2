from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.accept import Candidate, Mode, accept, may_accept, refusal
from pytest_dtfperf.baselines.compare import judge
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.baselines.verdict import Judgement, Verdict
from tests.baselines.examples import MISPLACED, entry_of, measurement_of, provenance_of

ACCEPTED = {  # verdict -> (all, all with a reason, new)
    Verdict.PASSED: (True, True, False),
    Verdict.IMPROVED: (True, True, False),
    Verdict.REGRESSED: (False, True, False),
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
    assert tuple(may_accept(judgement, measured, mode, reason) for mode, reason in asked) == ACCEPTED[verdict]


REFUSALS: dict[str, tuple[dict[str, Any], list[float], str]] = {
    "planted": ({"planted": {"worker:1": 0.1}}, [100, 100], "planted: a drill is no baseline"),
    "misplaced": (
        {"placement": MISPLACED},
        [100, 100],
        "its hosts are not what was asked for (requested: 1 node, 4 GPUs each;",
    ),
    "a single run": ({}, [100], "a single run, 2 are the least"),
}


@pytest.mark.parametrize("made, rates, words", REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.NO_BASELINE, Verdict.REGRESSED], ids=str)
def test_never_a_baseline(made: dict[str, Any], rates: list[float], words: str, verdict: Verdict) -> None:
    """A planted slow-down, hosts that nobody asked for and a lone number never become a baseline, whatever is asked for."""
    assert words in (refusal(Judgement(verdict, "because"), measurement_of(rates, **made), "all", "I insist") or "")


def test_accepting_writes_what_may_be_written(tmp_path: Path) -> None:
    """Accepted measurements land in their system's file with old and new; refused ones come back with the reason."""
    store = BaselineStore(tmp_path)
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100]), entry_of([50, 50], gpus=1)])
    measured = [measurement_of([120, 122]), measurement_of([30, 31], gpus=1), measurement_of([200, 201], gpus=4)]
    candidates = [
        Candidate(one, judge(one, store.find_for(one), margin=0.05), provenance_of(date="2026-02-01T00:00:00Z"))
        for one in measured
    ]
    done = accept(store, candidates, mode="all")
    assert [str(change).partition(": ")[2] for change in done.changes] == [
        "100 -> 121 images/sec (+21.0%)",
        "new, 200.5 images/sec",
    ]
    [(candidate, why_not)] = done.refused
    assert candidate.measurement is measured[1]
    assert why_not.endswith("a slower baseline is accepted only with a stated reason")
    found = [store.find_for(one) for one in measured]
    assert [entry.images_per_sec for entry in found if entry] == [121, 50, 200.5]


def test_reason_of_a_slower_baseline_is_kept(tmp_path: Path) -> None:
    """Who accepts a regression finds the reason in the file."""
    store = BaselineStore(tmp_path)
    measured = measurement_of([30, 31])
    store.update("cpu-amd-epyc-9b45-2c", [entry_of([100, 100])])
    slower = Candidate(measured, judge(measured, store.find_for(measured), margin=0.05), provenance_of())
    assert accept(store, [slower], mode="all", reason="kernel 6.8 mitigations").refused == []
    assert '"reason": "kernel 6.8 mitigations"' in (tmp_path / "cpu-amd-epyc-9b45-2c.json").read_text()
