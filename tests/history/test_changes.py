"""Changes over time, from session folders to what people read: one event for many series, with what else was another."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.enter import HistoryEntry, enter_all, remember
from pytest_dtfperf.history.series import make_series
from pytest_dtfperf.history.watching import search_changes
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.records.session import SessionFolder
from tests.cli.table import read
from tests.history.sessions import HARDWARE, folder_of
from tests.records.samples import run

NIGHTS, CHANGED = 24, 18


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nights of four trainings, all of which lose 3 % when the kernel is another."""
    root, random = tmp_path_factory.mktemp("results"), np.random.default_rng(1)
    for night in range(NIGHTS):
        factor, kernel, commit = (0.97, "6.2", "b0b") if night >= CHANGED else (1.0, "6.1", "a11ce")
        rates = {
            gpus: [100 * gpus * factor * float(np.exp(random.normal(0, 0.004))) for _ in range(2)] for gpus in (1, 2, 4, 8)
        }
        folder_of(root, night, rates, software={"kernel": kernel}, commit=commit)
    return root


def folders(results: Path) -> list[SessionFolder]:
    return [SessionFolder.open(path) for path in sorted(results.glob("*-*"))]


def address_in(folder: Path) -> Address:
    found = parse_address(None, folder)
    assert found
    return found


def events(address: Address) -> list[dict[str, object]]:
    database = Database.open(address)
    database.write(search_changes)
    with database.reading() as connection:
        return store.read_events(connection)


@pytest.fixture(scope="module")
def entered_history(results: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Address, list[HistoryEntry]]:
    """Enter sessions night by night, as at their end, and return the lines of each."""
    address = address_in(tmp_path_factory.mktemp("history"))
    enter_all(folders(results)[:CHANGED], address)
    return address, [remember(folder, address) for folder in folders(results)[CHANGED:]]


def test_summary_has_the_date_of_a_change(entered_history: tuple[Address, list[HistoryEntry]]) -> None:
    """Before a change there is no line, and one night reports it as new, with its date and the other changes."""
    _, remembered = entered_history
    assert not remembered[0].new
    (new,) = [each.new for each in remembered if each.new]
    assert len(new) == 1
    assert new[0].startswith("since 19 January")
    assert "also changed: kernel 6.1 -> 6.2; commit a11ce -> b0b" in new[0]


def test_many_series_are_one_event(
    entered_history: tuple[Address, list[HistoryEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Four trainings that lose at the same time are one event, with sizes, intervals, both sessions, and the differences."""
    assert main(["history", "changes", f"--history={entered_history[0]}", "--json"]) == 0
    data = read("history changes", capsys.readouterr().out)
    (event,) = data["changes"]
    assert data["promise"]["series"] == 4
    assert len(event["members"]) == 4
    assert all(-0.036 < member["change"] < -0.024 and member["low"] < -0.03 < member["high"] for member in event["members"])
    assert event["differences"] == ["kernel 6.1 -> 6.2", "commit a11ce -> b0b"]
    assert (event["last_good_at"][:10], event["first_bad_at"][:10]) == ("2026-01-18", "2026-01-19")
    assert main(["history", "changes", f"--history={entered_history[0]}"]) == 0
    out = capsys.readouterr().out
    assert "Limit: at most 5.0 % of all stretches of 90 nights have any false event, over 4 series together" in out
    assert "is not known yet" in out


def test_a_job_can_fail_by_what_is_new(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`changes --fail` ends with 1 in the night that confirms a change, and with 0 before it and after it."""
    address, codes = address_in(tmp_path), []
    enter_all(folders(results)[:CHANGED], address)
    for folder in folders(results)[CHANGED:]:
        enter_all([folder], address)
        codes.append(main(["history", "changes", "--fail", f"--history={address}"]))
    assert sorted(codes) == [0] * (NIGHTS - CHANGED - 1) + [1]
    assert codes[0] == codes[-1] == 0
    capsys.readouterr()


def test_a_session_is_shown_with_what_was_before_it(results: Path, entered_history: tuple[Address, list[HistoryEntry]]) -> None:
    """Each of its measurements has the rates of all nights until then, its own the last, whatever came after."""
    remembered = entered_history[1][0]
    folder = folders(results)[CHANGED]
    records = {record.id: record for record in folder.measurements()}
    assert remembered.pasts.keys() == records.keys()
    for name, past in remembered.pasts.items():
        rates = past.points
        assert len(rates) == CHANGED + 1
        assert rates[-1] == (folder.session.started, records[name].images_per_sec)
        assert [began for began, _ in rates] == sorted(began for began, _ in rates)


def test_an_import_finds_what_nights_found(
    entered_history: tuple[Address, list[HistoryEntry]], results: Path, tmp_path: Path
) -> None:
    """All sessions at once, or the old ones after the new ones, come to the same events."""
    once, backwards = address_in(tmp_path / "once"), address_in(tmp_path / "backwards")
    enter_all(folders(results), once)
    enter_all(folders(results)[12:], backwards)
    events(backwards)
    enter_all(folders(results)[:12], backwards)
    assert events(once) == events(backwards)
    assert [event["members"] for event in events(once)] == [event["members"] for event in events(entered_history[0])]


def test_other_hardware_is_another_series(tmp_path: Path) -> None:
    """What must match begins a new series; what is only noted does not; a machine that comes back goes on with its own."""
    address = address_in(tmp_path)
    hardware = [HARDWARE, HARDWARE, {**HARDWARE, "cores": 4}, HARDWARE]
    for night, each in enumerate(hardware):
        folder = folder_of(tmp_path / "results", night, software={"kernel": str(night)}, hardware=each)
        enter_all([folder], address)
    with Database.open(address).reading() as connection:
        found = make_series(store.read_measurements(connection), store.read_fingerprints(connection))
    assert sorted(len(series.points) for series in found) == [1, 3]


COMMANDS = {
    "list": (["list", "--last=2"], 0, "20260124T021500Z-000017"),
    "show": (["show", "2026-01-24"], 0, "kernel 6.2"),
    "trend": (["trend", "gpus=8"], 0, "24 of 24 nights"),
    "compare": (["compare", "a11ce", "last"], 0, "inception3 b8 gpus=8"),
    "export": (["export"], 0, "session,started,cluster"),
    "nothing": (["trend", "model=alexnet"], 1, "has no such training"),
    "no session": (["show", "1999-01-01"], 2, "no session in the history is '1999-01-01'"),
}


@pytest.mark.parametrize("command, code, words", COMMANDS.values(), ids=COMMANDS)
def test_commands(
    command: list[str],
    code: int,
    words: str,
    entered_history: tuple[Address, list[HistoryEntry]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each command shows its result, as JSON, too, and ends with the exit code of its help."""
    assert main(["history", *command, f"--history={entered_history[0]}"]) == code
    captured = capsys.readouterr()
    assert words in captured.out + captured.err
    assert main(["history", *command, f"--history={entered_history[0]}", "--json"]) == code
    out = capsys.readouterr().out
    if code == 2:
        assert out == ""
    elif "--format" not in " ".join(command):
        read(f"history {command[0]}", out)


def test_sessions_are_removed(results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """prune takes sessions out of the history, only with --yes where it cannot ask, and leaves folders alone."""
    address = address_in(tmp_path)
    enter_all(folders(results)[:5], address)
    assert main(["history", "prune", "--keep=2", f"--history={address}"]) == 2
    assert main(["history", "prune", "--keep=2", "--yes", f"--history={address}"]) == 0
    assert "3 sessions removed" in capsys.readouterr().out
    with Database.open(address).reading() as connection:
        assert len(store.read_sessions(connection)) == 2
    enter_all(folders(results), address)
    assert len(events(address)) == 1
    assert len(folders(results)) == NIGHTS


@pytest.mark.parametrize("day", ["31.12.2025", "tomorrow", "2026-1-5", "2026-02-30", "20260105", ""])
def test_prune_refuses_other_dates(day: str, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """prune refuses a date of another form in one line and removes nothing, and accepts a day."""
    address = address_in(tmp_path)
    enter_all(folders(results)[:3], address)
    assert main(["history", "prune", f"--before={day}", "--yes", f"--history={address}"]) == 2
    assert capsys.readouterr().err == f"dtfperf: --before takes a day, as 2025-01-01, not {day!r}\n"
    with Database.open(address).reading() as connection:
        assert len(store.read_sessions(connection)) == 3
    assert main(["history", "prune", "--before=2026-01-02", "--yes", f"--history={address}"]) == 0
    assert "1 session removed" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["list", "trend"])
@pytest.mark.parametrize("last", ["0", "-1", "-100", "some"])
def test_the_latest_are_one_at_least(
    command: str, last: str, entered_history: tuple[Address, list[HistoryEntry]], capsys: pytest.CaptureFixture[str]
) -> None:
    """--last of none or fewer is refused in one line: it would show others, or nothing at all."""
    with pytest.raises(SystemExit) as ended:
        main(["history", command, f"--last={last}", f"--history={entered_history[0]}"])
    assert ended.value.code == 2
    assert f"takes a whole number of at least 1, not '{last}'" in capsys.readouterr().err


def test_repeated_measurement_is_compared_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of several measurements of a training in a session, the last one is compared."""
    address, found = address_in(tmp_path), []
    for night in (0, 1):
        folder = folder_of(tmp_path / "results", night, {1: [1.0, 1.0]})
        for times in range(2, 8):
            again = replace(folder.measurements()[0].measurement, runs=[run(float(times)), run(float(times))])
            folder.add("t.py::test_again", again)
        found.append(folder)
    enter_all(found, address)
    assert main(["history", "compare", found[0].id, found[1].id, "--json", f"--history={address}"]) == 0
    (compared,) = json.loads(capsys.readouterr().out)["compared"]
    assert (compared["baseline"], compared["current"]) == (7.0, 7.0)


def test_a_table_of_the_history_computes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the CSV of export, too, a text that a spreadsheet would take for a formula is marked as text, and no number is."""
    address, folder = address_in(tmp_path), folder_of(tmp_path / "results")
    folder.add("=HYPERLINK(1).py::test_a", folder.measurements()[0].measurement)
    enter_all([folder], address)
    assert main(["history", "export", f"--history={address}"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["test"] for row in rows] == ["t.py::test_a[1]", "'=HYPERLINK(1).py::test_a"]
    assert rows[1]["images_per_sec"] == "100.0"
