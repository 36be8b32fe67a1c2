"""Cases that were measured are explained again: a short part of the campaign, as it was recorded."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.cases import Case, matrix, summary
from benchmarks.causes import RUNS, Trials, _tried, main, recorded
from benchmarks.injected import Changes, Good, Rig
from benchmarks.kept import ARCHIVE, Kept, archive, is_held_out, kept, numbers, path_of
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.datamodel.probes import Probes
from pytest_dtfperf.launch.launcher import OnSent
from pytest_dtfperf.spec import Spec

FOLDER = Path(__file__).parent / "kept"


@pytest.mark.parametrize("number", numbers(FOLDER))
def test_recorded_cases_are_explained(number: int) -> None:
    """What was injected is named, where it was, with its seconds; where nothing was, nothing is."""
    told = Kept.read(path_of(FOLDER, number)).told
    assert not told.error
    assert told.counts
    assert (told.is_right, told.is_there, told.is_within or not told.named) == (True, True, True)


def test_a_case_is_kept_whole(tmp_path: Path) -> None:
    """What is written is what is read again, and each is explained as before."""
    number = numbers(FOLDER)[0]
    one = Kept.read(path_of(FOLDER, number))
    one.write(path_of(tmp_path, number))
    assert numbers(tmp_path) == [number]
    assert Kept.read(path_of(tmp_path, number)) == one


def test_a_third_is_held_out() -> None:
    """Every case is either of those by which rules are found, or of those that only count."""
    every, found, held = ([number for number, _ in kept(FOLDER, part)] for part in ("all", "found", "held-out"))
    assert sorted(found + held) == every == numbers(FOLDER)
    assert all(is_held_out(number) for number in held)
    assert [is_held_out(number) for number in range(4)] == [True, False, False, True]


def test_kept_cases_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
    """`--judge` prints a line for each, the matrix and the summary, and runs nothing."""
    assert main([str(FOLDER), "--judge", "--only", "worker's quota"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "worker's quota" in lines[0]
    assert lines[0].endswith(": right")
    assert lines[1].startswith("| Injected | Cases |")
    assert any(line.startswith("right kind: ") for line in lines)


def test_a_campaign_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    """What is kept is not run again."""
    one = Kept.read(path_of(FOLDER, numbers(FOLDER)[0]))
    one.write(path_of(tmp_path, 7))
    assert list(recorded(tmp_path, [one.case], before=tmp_path / "none")) == []


def test_an_archive_tells_the_same(tmp_path: Path) -> None:
    """Cases without what their tasks sent are explained as with it, under their numbers, and none of them is run again."""
    cases = dict(kept(FOLDER))
    path = tmp_path / "cases.jsonl.xz"
    archive(cases.items(), path)
    assert {number: one.told for number, one in kept(path)} == {number: one.told for number, one in cases.items()}
    assert not any(one.then.sent or one.now.sent for _, one in kept(path))
    assert list(recorded(tmp_path / "new", [one.case for one in cases.values()], before=path)) == []


def test_the_page_states_what_the_archive_gives() -> None:
    """The table and each number below it are those of the cases that are kept, explained as the package does today."""
    page = (Path(__file__).parents[2] / "docs" / "causes.md").read_text(encoding="utf-8")
    told = {number: one.told for number, one in kept(ARCHIVE)}
    found, held_out = ([each for number, each in told.items() if is_held_out(number) == held] for held in (False, True))
    assert matrix(list(told.values())) in page
    for part in (list(told.values()), found, held_out):
        assert "\n".join(f"* {line.strip()}" for line in summary(part)) in page


@pytest.mark.parametrize(("factor", "tries", "strength"), [(1.0, 1, 0.5), (0.1, 2, 2.5), (4.0, 2, 0.125)])
def test_trials_find_the_strength(factor: float, tries: int, strength: float) -> None:
    """What makes too little or too much of a step is made stronger or weaker, and the next case of its kind begins there."""
    case, trials = Case("parameter_server", 1, 2, "sleeping worker", 0.5), Trials()
    enough = [trials.note(case, trials.strength(case), factor * trials.strength(case)) for _ in range(tries)]
    assert enough == [False] * (tries - 1) + [True]
    assert trials.strength(case) == pytest.approx(strength, rel=0.01)
    weaker = replace(case, strength=0.25)
    assert trials.strength(weaker) == pytest.approx(strength / 2, rel=0.01)


class Sleeping:
    """Machines on which each second that a worker sleeps makes a step of 0.1 s longer by `factor`."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.slept: list[float] = []
        self.launcher = SimpleNamespace(probe=lambda spec, again: Probes(), collect_fingerprint=lambda hosts: Fingerprint())
        self.then = Kept.read(path_of(FOLDER, numbers(FOLDER)[0])).then

    def run(self, spec: Spec, changes: Changes, on_sent: OnSent) -> Run:
        self.slept += changes.sleeps.values()
        on_sent({"traces": {}, "timestamps": {}})
        return self._of(0.1 + self.factor * sum(changes.sleeps.values()))

    def good(self, spec: Spec) -> Good:
        return Good([self._of(0.1)], spec)

    def _of(self, step_s: float) -> Run:
        return replace(self.then.measurement.runs[-1], images_per_sec=32 / step_s)


@pytest.mark.parametrize(
    ("factor", "slept", "longer"),
    [(1.0, [0.05, 0.05], 0.5), (0.1, [0.05, 0.25, 0.25], 0.25), (0.001, [0.05, 0.25, 1.25, 6.25, 6.25], 0.0625)],
    ids=["enough at once", "tried again", "never enough"],
)
def test_the_first_run_of_a_case_is_its_trial(factor: float, slept: list[float], longer: float) -> None:
    """A run that shows that it was too weak is none of the case's; at last what there is counts."""
    rig, case = Sleeping(factor), Case("parameter_server", 1, 2, "sleeping worker", 0.5)
    found = _tried(cast("Rig", rig), rig.good(case.spec), rig.then, case, Trials())
    assert isinstance(found, Kept)
    assert rig.slept == pytest.approx(slept)
    assert (len(found.now.measurement.runs), len(found.now.sent)) == (RUNS, RUNS)
    assert found.now.step_s == pytest.approx(0.1 * (1 + longer))


def test_what_is_there_or_not_needs_no_trials() -> None:
    """A setting has no strength: whatever it does to a step is what it does."""
    case = Case("parameter_server", 1, 2, "oneDNN off", 0.5)
    assert Trials().note(case, 0.5, longer=0.02)
