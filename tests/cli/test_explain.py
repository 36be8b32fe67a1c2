"""`dtfperf explain`: the time of stored measurements."""

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
from tests.explain.made import load_real_traces
from tests.explain.sides import make_side
from tests.explain.sides import slow_one as slower_by


def make_session(folder: Path, *explained: dict[str, Any]) -> SessionFolder:
    """Return a session with a measurement of two runs for each argument, the second with these traces."""
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
    return compute_step_breakdown(load_real_traces("parameter_server"))


def test_step_breakdown_is_shown(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The text has the path, tasks, links and clock error of a step, and the times of the path add up."""
    assert main(["explain", str(make_session(tmp_path, {"step_breakdown": breakdown}).path)]) == 0
    out = capsys.readouterr().out
    for words in ("A step takes", "dense0/weights", "worker:1>ps:0", "ps:1", "Gbit/s", "Clocks are known to"):
        assert words in out
    total = sum(float(line.split()[-3]) for line in out.splitlines() if line.endswith(" %"))
    assert total == pytest.approx(1000 * breakdown.wall_s, abs=0.2)


def test_json_has_the_stored_breakdown(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json each measurement has its step breakdown, or the reason why it has none."""
    folder = make_session(tmp_path, {"step_breakdown": breakdown}, {"unexplained": "worker:1 could not be traced: x"}, {})
    assert main(["explain", str(folder.path), "--json"]) == 0
    data = read("explain", capsys.readouterr().out)["measurements"]
    assert [each["step_breakdown"] for each in data] == [breakdown.to_json(), None, None]
    assert [each["unexplained"] for each in data] == ["", "worker:1 could not be traced: x", ""]


def test_missing_trace_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If no step was traced or could be, the message has the reason, and the exit code is 1."""
    folder = make_session(tmp_path, {}, {"unexplained": "variable_update=mirrored cannot be traced"})
    assert main(["explain", str(folder.path)]) == 1
    out = capsys.readouterr().out
    assert "no step of it was traced" in out
    assert "cannot be explained: variable_update=mirrored cannot be traced" in out


def test_id_selects_one_measurement(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An id shows that measurement only; an unknown one is refused with the known ones."""
    folder = make_session(tmp_path, {"step_breakdown": breakdown}, {})
    first, second = (record.id for record in folder.measurements())
    assert main(["explain", str(folder.path), first]) == 0
    assert second not in capsys.readouterr().out
    assert main(["explain", str(folder.path), "nobody"]) == 2
    assert f"no measurement nobody in this session: it has {first}, {second}" in capsys.readouterr().err


def test_damaged_step_breakdown_is_refused(
    breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A step breakdown with an impossible time is refused with the file and line."""
    folder = make_session(tmp_path, {"step_breakdown": breakdown})
    file = folder.path / "measurements.jsonl"
    file.write_text(file.read_text().replace(f'"wall_s": {breakdown.wall_s}', '"wall_s": -1'))
    assert main(["explain", str(folder.path)]) == 2
    assert "measurements.jsonl:1: " in capsys.readouterr().err


def slow_down(breakdown: StepBreakdown) -> StepBreakdown:
    """Return the breakdown with 0.1 s more for what worker:1 sends."""
    path = [replace(part, seconds=part.seconds + 0.1 * (part.location == "worker:1>ps:0")) for part in breakdown.path]
    return replace(breakdown, wall_s=sum(part.seconds for part in path), path=path)


def test_longest_change_comes_first(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a faster session, the part and link with the largest change come first, with the time."""
    current, baseline = (
        make_session(tmp_path / "current", {"step_breakdown": slow_down(breakdown)}),
        make_session(tmp_path / "baseline", {"step_breakdown": breakdown}),
    )
    assert main(["explain", str(current.path), "--against", str(baseline.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    longer = slow_down(breakdown).wall_s - breakdown.wall_s
    (heading,) = (number for number, line in enumerate(lines) if line.startswith("A step takes") and " instead of " in line)
    assert f"{1000 * longer:+.2f} ms against {baseline.measurements()[0].id}" in lines[heading]
    assert lines[heading + 3].split() == [
        "send",
        *lines[heading + 3].split()[1:3],
        f"{1000 * longer:+.2f}",
        "worker:1>ps:0",
        f"{1000 * longer:+.2f}",
    ]


def test_changes_add_up_in_json(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json the changes of a step add up, with the id of the other measurement."""
    current, baseline = (
        make_session(tmp_path / "current", {"step_breakdown": slow_down(breakdown)}),
        make_session(tmp_path / "baseline", {"step_breakdown": breakdown}),
    )
    assert main(["explain", str(current.path), "--against", str(baseline.path), "--json"]) == 0
    against = read("explain", capsys.readouterr().out)["measurements"][0]["against"]
    assert against["id"] == baseline.measurements()[0].id
    total = slow_down(breakdown).wall_s - sum(part.seconds for part in breakdown.path)
    assert sum(change["change_s"] for change in against["changes"]) == pytest.approx(total)


def test_other_session_without_a_trace(breakdown: StepBreakdown, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the other session has no trace, only this one is shown, and the exit code is 1."""
    current, baseline = (
        make_session(tmp_path / "current", {"step_breakdown": breakdown}),
        make_session(tmp_path / "baseline", {}),
    )
    assert main(["explain", str(current.path), "--against", str(baseline.path)]) == 1
    assert "A step takes" in capsys.readouterr().out


def make_traced_session(folder: Path) -> SessionFolder:
    """Return a session below `perf_results` with a traced measurement of a second worker that sleeps."""
    current = make_side(*slower_by(python=50)).step_breakdown
    assert current
    made = SessionFolder.create(
        folder / "perf_results", cluster="local", command=["pytest"], versions={}, budget=Budget(false_alarms=0.05, tests=1)
    )
    measured = measurement_of([336.8, 336.9, 336.7])
    made.add("t.py::test", replace(measured, runs=[*measured.runs[:2], replace(measured.runs[2], step_breakdown=current)]))
    return made


def test_causes_against_a_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against a folder or a file of baselines, the causes are shown, and with --json as they are stored."""
    baseline = make_side().step_breakdown
    assert baseline
    measured = measurement_of([457.1, 457.0, 457.2])
    accepted = replace(measured, runs=[*measured.runs[:2], replace(measured.runs[2], step_breakdown=baseline)])
    store, system = BaselineStore(tmp_path / "baselines"), SYSTEM
    store.update(system, [Entry.from_measurement(accepted, entry_of([1.0, 1.0]).provenance)])
    current = make_traced_session(tmp_path)
    for against in ("", f"{system}.json"):
        assert main(["explain", str(current.path), "--against", str(store.folder / against)]) == 0
        out = capsys.readouterr().out
        assert "ms   worker:1 does nothing for 51.0 ms before it asks for a step" in out
        assert "straggler at worker:1" in out
    assert main(["explain", str(current.path), "--against", str(store.folder), "--json"]) == 0
    found = read("explain", capsys.readouterr().out)["measurements"][0]["explanation"]
    assert [cause["kind"] for cause in found["causes"]] == ["straggler"]
    assert found["against"].startswith("the baseline of ")


def test_id_is_searched_in_the_configured_folder(
    breakdown: StepBreakdown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id is searched in the folder of dtfperf_perf_results, also from a subfolder of the project."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "perf_tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\ndtfperf_perf_results = kept\n")
    (record,) = make_session(tmp_path / "kept", {"step_breakdown": breakdown}).measurements()
    monkeypatch.chdir(tmp_path / "perf_tests")
    assert main(["explain", record.id]) == 0
    assert capsys.readouterr().out.startswith(f"{record.id}: ")
    assert main(["explain", "zzzzzz"]) == 2
    assert f"the id of a measurement of one in {tmp_path / 'kept'}/" in capsys.readouterr().err


def test_id_is_searched_in_perf_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id without a folder is searched in perf_results; an unknown one is refused with what is allowed."""
    (record,) = make_traced_session(tmp_path).measurements()
    monkeypatch.chdir(tmp_path)
    assert main(["explain", record.id]) == 0
    assert record.id in capsys.readouterr().out
    assert main(["explain", "nobody"]) == 2
    assert "nobody is neither a session's folder nor the id of a measurement" in capsys.readouterr().err
