"""Tests of stored cases, which are explained again from a short part of the campaign."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.cases import Case, matrix, summary
from benchmarks.causes import RUNS, Trials, _run_case, main, record_cases
from benchmarks.injected import Changes, Good, Rig
from benchmarks.stored_cases import ARCHIVE, StoredCase, archive, is_held_out, list_numbers, load_cases, path_of
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.launch.launcher import OnSent
from pytest_dtfperf.spec import Spec

FOLDER = Path(__file__).parent / "stored_cases"


@pytest.fixture(scope="module")
def cases() -> Mapping[int, StoredCase]:
    """Return the stored cases by their numbers."""
    return dict(load_cases(FOLDER))


@pytest.mark.parametrize("number", list_numbers(FOLDER))
def test_stored_case_is_explained(cases: Mapping[int, StoredCase], number: int) -> None:
    """A stored case has an answer without an error, with the right kind and location, and with the right seconds if a cause is
    named."""
    outcome = cases[number].result
    assert not outcome.error
    assert outcome.counts
    assert (outcome.is_right, outcome.is_there, outcome.is_within or not outcome.cause_kind) == (True, True, True)


def test_case_survives_its_file(cases: Mapping[int, StoredCase], tmp_path: Path) -> None:
    """A case that is written is equal to the case that is read."""
    number, one = next(iter(cases.items()))
    one.write(path_of(tmp_path, number))
    assert list_numbers(tmp_path) == [number]
    assert StoredCase.read(path_of(tmp_path, number)) == one


def test_held_out_part_has_every_third_case() -> None:
    """Each case is in one of two parts, and the held-out one has every third number."""
    every, found, held = ([number for number, _ in load_cases(FOLDER, part)] for part in ("all", "found", "held-out"))
    assert sorted(found + held) == every == list_numbers(FOLDER)
    assert all(is_held_out(number) for number in held)
    assert [is_held_out(number) for number in range(4)] == [True, False, False, True]


def test_judge_prints_stored_cases(capsys: pytest.CaptureFixture[str]) -> None:
    """`--judge` prints a line for each case, the matrix and the summary."""
    assert main([str(FOLDER), "--judge", "--only", "worker's quota"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "worker's quota" in lines[0]
    assert lines[0].endswith(": right")
    assert lines[1].startswith("| Injected | Cases |")
    assert any(line.startswith("right kind: ") for line in lines)


def test_campaign_skips_stored_cases(cases: Mapping[int, StoredCase], tmp_path: Path) -> None:
    """A case that is stored under another number is not run again."""
    one = next(iter(cases.values()))
    one.write(path_of(tmp_path, 7))
    assert list(record_cases(tmp_path, [one.case], archived=tmp_path / "none")) == []


def test_archive_gives_the_same_answers(cases: Mapping[int, StoredCase], tmp_path: Path) -> None:
    """Cases in an archive have no task reports, the same numbers and answers, and are not run again."""
    path = tmp_path / "cases.jsonl.xz"
    archive(cases.items(), path)
    archived = dict(load_cases(path))
    assert {number: one.result for number, one in archived.items()} == {number: one.result for number, one in cases.items()}
    assert not any(one.baseline.sent or one.current.sent for one in archived.values())
    assert list(record_cases(tmp_path / "new", [one.case for one in cases.values()], archived=path)) == []


def test_page_has_the_matrix_of_the_archive() -> None:
    """docs/causes.md has the matrix of the archived cases, and the summaries of all and of the held-out ones."""
    page = (Path(__file__).parents[2] / "docs" / "causes.md").read_text(encoding="utf-8")
    outcomes = {number: one.result for number, one in load_cases(ARCHIVE)}
    held_out = [each for number, each in outcomes.items() if is_held_out(number)]
    assert matrix(list(outcomes.values())) in page
    for part in (list(outcomes.values()), held_out):
        assert "\n".join(f"* {line.strip()}" for line in summary(part)) in page


@pytest.mark.parametrize(("factor", "tries", "strength"), [(1.0, 1, 0.5), (0.1, 2, 2.5), (4.0, 2, 0.125)])
def test_trials_find_a_strength_for_the_next_case(factor: float, tries: int, strength: float) -> None:
    """A strength with too small or too large an effect is changed, and the next case of its kind begins with the new one."""
    case, trials = Case("parameter_server", 1, 2, "sleeping worker", 0.5), Trials()
    enough = [trials.note(case, trials.strength(case), factor * trials.strength(case)) for _ in range(tries)]
    assert enough == [False] * (tries - 1) + [True]
    assert trials.strength(case) == pytest.approx(strength, rel=0.01)
    weaker = replace(case, strength=0.25)
    assert trials.strength(weaker) == pytest.approx(strength / 2, rel=0.01)


class SleepingRig:
    """Machines on which each second that a worker sleeps makes a step of 0.1 s longer by `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.slept: list[float] = []
        self.launcher = SimpleNamespace(probe=lambda spec, again: Probes(), collect_fingerprint=lambda hosts: Fingerprint())
        self.baseline = StoredCase.read(path_of(FOLDER, list_numbers(FOLDER)[0])).baseline

    def run(self, spec: Spec, changes: Changes, on_sent: OnSent) -> Run:
        self.slept += changes.sleeps.values()
        on_sent({"traces": {}, "timestamps": {}})
        return self._make_run(0.1 + self.factor * sum(changes.sleeps.values()))

    def good(self, spec: Spec) -> Good:
        return Good([self._make_run(0.1)], spec)

    def _make_run(self, step_s: float) -> Run:
        return replace(self.baseline.measurement.runs[-1], images_per_sec=32 / step_s)


@pytest.mark.parametrize(
    ("factor", "slept", "increase"),
    [(1.0, [0.05, 0.05], 0.5), (0.1, [0.05, 0.25, 0.25], 0.25), (0.001, [0.05, 0.25, 1.25, 6.25, 6.25], 0.0625)],
    ids=["enough at once", "tried again", "never enough"],
)
def test_case_does_not_keep_runs_of_trials(factor: float, slept: list[float], increase: float) -> None:
    """A run with too small an effect is repeated with a longer sleep, up to four times, and only the last runs are kept."""
    rig, case = SleepingRig(factor), Case("parameter_server", 1, 2, "sleeping worker", 0.5)
    found = _run_case(cast("Rig", rig), rig.good(case.spec), rig.baseline, case, Trials())
    assert isinstance(found, StoredCase)
    assert rig.slept == pytest.approx(slept)
    assert (len(found.current.measurement.runs), len(found.current.sent)) == (RUNS, RUNS)
    assert found.current.step_s == pytest.approx(0.1 * (1 + increase))


def test_setting_needs_no_trials() -> None:
    """A case of a setting, which has no strength, is enough after one trial with any effect."""
    case = Case("parameter_server", 1, 2, "oneDNN off", 0.5)
    assert Trials().note(case, 0.5, increase=0.02)
