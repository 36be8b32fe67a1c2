"""dtfperf explain: where the time of stored measurements went."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.baselines.entry import Entry
from pytest_dtfperf.baselines.store import BaselineStore
from pytest_dtfperf.cli import main
from pytest_dtfperf.datamodel.step_times import StepBreakdown
from pytest_dtfperf.explain.step_breakdown import compute_step_breakdown
from pytest_dtfperf.records.session import SessionFolder
from pytest_dtfperf.records.stored import Budget
from tests.baselines.examples import SYSTEM, entry_of, measurement_of
from tests.cli.table import read
from tests.explain.made import real
from tests.explain.sides import side
from tests.explain.sides import slower as slower_by


def session(folder: Path, *explained: dict[str, Any]) -> SessionFolder:
    """A session of one measurement for each, with two runs that have the given traces: the first one none."""
    made = SessionFolder.create(
        folder, cluster="local", command=["pytest"], versions={}, budget=Budget(false_alarms=0.05, tests=1)
    )
    for number, each in enumerate(explained):
        measured = measurement_of([94, 94.1])
        runs = (measured.runs[0], replace(measured.runs[1], **each))
        made.add(f"t.py::test_{number}", replace(measured, runs=runs))
    return made


@pytest.fixture
def breakdown() -> StepBreakdown:
    return compute_step_breakdown(real("parameter_server"))


def test_time_of_a_step_is_shown(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The path, each task's time, the links and how well clocks are known stand in the text."""
    assert main(["explain", str(session(tmp_path, {"step_breakdown": breakdown}).path)]) == 0
    out = capsys.readouterr().out
    for words in ("A step takes", "dense0/weights", "worker:1>ps:0", "ps:1", "Gbit/s", "Clocks are known to"):
        assert words in out
    total = sum(float(line.split()[-3]) for line in out.splitlines() if line.endswith(" %"))
    assert total == pytest.approx(1000 * breakdown.wall_s, abs=0.2)


def test_json_is_what_is_stored(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json there is each measurement with its step breakdown, or why it has none."""
    folder = session(tmp_path, {"step_breakdown": breakdown}, {"unexplained": "worker:1 could not be traced: x"}, {})
    assert main(["explain", str(folder.path), "--json"]) == 0
    told = read("explain", capsys.readouterr().out)["measurements"]
    assert [each["step_breakdown"] for each in told] == [breakdown.to_json(), None, None]
    assert [each["unexplained"] for each in told] == ["", "worker:1 could not be traced: x", ""]


def test_nothing_traced_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no step was traced, or could not be, the message gives the reason, and the exit code is 1."""
    folder = session(tmp_path, {}, {"unexplained": "variable_update=mirrored cannot be traced"})
    assert main(["explain", str(folder.path)]) == 1
    out = capsys.readouterr().out
    assert "no step of it was traced" in out
    assert "cannot be explained: variable_update=mirrored cannot be traced" in out


def test_one_measurement_by_its_id(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An id shows that measurement alone; one that is not there is refused with those that are."""
    folder = session(tmp_path, {"step_breakdown": breakdown}, {})
    first, second = (record.id for record in folder.measurements())
    assert main(["explain", str(folder.path), first]) == 0
    assert second not in capsys.readouterr().out
    assert main(["explain", str(folder.path), "nobody"]) == 2
    assert f"no measurement nobody in this session: it has {first}, {second}" in capsys.readouterr().err


def test_damaged_step_breakdown_is_refused(
    breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step breakdown with an impossible time is refused in one line with the file's name."""
    folder = session(tmp_path, {"step_breakdown": breakdown})
    file = folder.path / "measurements.jsonl"
    file.write_text(file.read_text().replace(f'"wall_s": {breakdown.wall_s}', '"wall_s": -1'))
    assert main(["explain", str(folder.path)]) == 2
    assert "measurements.jsonl:1: " in capsys.readouterr().err


def slower(breakdown: StepBreakdown) -> StepBreakdown:
    """The same, had what worker:1 sends taken a tenth of a second more."""
    path = [replace(part, seconds=part.seconds + 0.1 * (part.location == "worker:1>ps:0")) for part in breakdown.path]
    return replace(breakdown, wall_s=sum(part.seconds for part in path), path=path)


def test_what_has_become_longer(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a faster session, the kind of work and the link that the time went to come first, with the seconds."""
    now, then = (
        session(tmp_path / "now", {"step_breakdown": slower(breakdown)}),
        session(tmp_path / "then", {"step_breakdown": breakdown}),
    )
    assert main(["explain", str(now.path), "--against", str(then.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    longer = slower(breakdown).wall_s - breakdown.wall_s
    (heading,) = (number for number, line in enumerate(lines) if line.startswith("A step takes") and " instead of " in line)
    assert f"{1000 * longer:+.2f} ms against {then.measurements()[0].id}" in lines[heading]
    assert lines[heading + 3].split() == [
        "send",
        *lines[heading + 3].split()[1:3],
        f"{1000 * longer:+.2f}",
        "worker:1>ps:0",
        f"{1000 * longer:+.2f}",
    ]


def test_changes_add_up_in_json(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the changes stand beside the step breakdown, with the id of what it was held against."""
    now, then = (
        session(tmp_path / "now", {"step_breakdown": slower(breakdown)}),
        session(tmp_path / "then", {"step_breakdown": breakdown}),
    )
    assert main(["explain", str(now.path), "--against", str(then.path), "--json"]) == 0
    against = read("explain", capsys.readouterr().out)["measurements"][0]["against"]
    assert against["id"] == then.measurements()[0].id
    total = slower(breakdown).wall_s - sum(part.seconds for part in breakdown.path)
    assert sum(change["change_s"] for change in against["changes"]) == pytest.approx(total)


def test_other_session_without_a_trace(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the other session has no trace of the kind, this one is shown alone, and the exit code shows that."""
    now, then = session(tmp_path / "now", {"step_breakdown": breakdown}), session(tmp_path / "then", {})
    assert main(["explain", str(now.path), "--against", str(then.path)]) == 1
    assert "A step takes" in capsys.readouterr().out


def traced_twice(folder: Path) -> SessionFolder:
    """A measurement with a second worker that sleeps, in a session below `perf_results`."""
    now = side(*slower_by(python=50)).step_breakdown
    assert now
    made = SessionFolder.create(
        folder / "perf_results", cluster="local", command=["pytest"], versions={}, budget=Budget(false_alarms=0.05, tests=1)
    )
    measured = measurement_of([336.8, 336.9, 336.7])
    made.add("t.py::test", replace(measured, runs=[*measured.runs[:2], replace(measured.runs[2], step_breakdown=now)]))
    return made


def test_against_baselines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a baseline, its file or the folder of them, the causes stand first, and with --json as they would be stored."""
    then = side().step_breakdown
    assert then
    measured = measurement_of([457.1, 457.0, 457.2])
    accepted = replace(measured, runs=[*measured.runs[:2], replace(measured.runs[2], step_breakdown=then)])
    store, system = BaselineStore(tmp_path / "baselines"), SYSTEM
    store.update(system, [Entry.of(accepted, entry_of([1.0, 1.0]).provenance)])
    now = traced_twice(tmp_path)
    for against in ("", f"{system}.json"):
        assert main(["explain", str(now.path), "--against", str(store.folder / against)]) == 0
        out = capsys.readouterr().out
        assert "why  +50.0 of +50.0 ms per step" in out or "ms   worker:1 is busy in Python for 51.0 ms" in out
        assert "straggler at worker:1" in out
    assert main(["explain", str(now.path), "--against", str(store.folder), "--json"]) == 0
    found = read("explain", capsys.readouterr().out)["measurements"][0]["explanation"]
    assert [cause["kind"] for cause in found["causes"]] == ["straggler"]
    assert found["against"].startswith("the baseline of ")


def test_an_id_is_looked_for_where_the_project_keeps_its_sessions(
    breakdown: StepBreakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The option dtfperf_perf_results in pytest's configuration is used for an id, also in a subfolder of the project."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ndtfperf_perf_results = kept\n")
    (record,) = session(tmp_path / "kept", {"step_breakdown": breakdown}).measurements()
    monkeypatch.chdir(tmp_path / "perf_tests")
    assert main(["explain", record.id]) == 0
    assert capsys.readouterr().out.startswith(f"{record.id}: ")
    assert main(["explain", "zzzzzz"]) == 2
    assert f"the id of a measurement of one in {tmp_path / 'kept'}/" in capsys.readouterr().err


def test_a_measurement_by_its_id_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id without a folder is looked for in perf_results; one that is nowhere is refused with what may be given."""
    (record,) = traced_twice(tmp_path).measurements()
    monkeypatch.chdir(tmp_path)
    assert main(["explain", record.id]) == 0
    assert record.id in capsys.readouterr().out
    assert main(["explain", "nobody"]) == 2
    assert "nobody is neither a session's folder nor the id of a measurement" in capsys.readouterr().err
