"""Cases that were measured are explained again: a short part of the campaign, as it was recorded."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.cases import Case
from benchmarks.causes import Trials, main, recorded
from benchmarks.injected import Changes, Good, Rig
from benchmarks.kept import Kept, is_held_out, kept, numbers, path_of
from pytest_dtfperf.measurement import Run
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
    assert lines[1].startswith("| injected | cases |")
    assert any(line.startswith("named rightly: ") for line in lines)


def test_a_campaign_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    """What is kept is not run again."""
    one = Kept.read(path_of(FOLDER, numbers(FOLDER)[0]))
    one.write(path_of(tmp_path, 7))
    assert list(recorded(tmp_path, [one.case])) == []


class Sleeps:
    """Machines on which a step takes 0.1 s, and as long as `factor` says of each second that a worker sleeps."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.slept: list[float] = []

    def run(self, spec: Spec, changes: Changes, **_: Any) -> Run:
        self.slept += changes.sleeps.values()
        return replace(self.good(spec).run, images_per_sec=32 / (0.1 + self.factor * sum(changes.sleeps.values())))

    def good(self, spec: Spec) -> Good:
        run = Kept.read(path_of(FOLDER, numbers(FOLDER)[0])).then.measurement.runs[-1]
        return Good([replace(run, images_per_sec=320.0)], spec)


@pytest.mark.parametrize(("factor", "tries", "strength"), [(1.0, 1, 0.5), (0.1, 2, 2.5), (4.0, 2, 0.125)])
def test_short_trials_find_the_strength(factor: float, tries: int, strength: float) -> None:
    """What makes too little or too much of a step is made stronger or weaker, and the next case of its kind begins there."""
    case = Case("parameter_server", 1, 2, "sleeping worker", 0.5)
    rig, trials = Sleeps(factor), Trials({})
    good = rig.good(case.spec)
    assert trials.strength(cast("Rig", rig), good, case) == pytest.approx(strength, rel=0.01)
    assert len(rig.slept) == tries
    assert trials.strength(cast("Rig", rig), good, case) == pytest.approx(strength, rel=0.01)
    assert len(rig.slept) == tries + 1
