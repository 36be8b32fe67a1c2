"""Tests of the entry of a session in the history."""

import json
import sqlite3
from pathlib import Path

import pytest

from pytest_dtfperf.cli import main
from pytest_dtfperf.history.where import VARIABLE
from pytest_dtfperf.plugin.options import OPTIONS
from tests.plugin.conftest import INI, PerfTests

LATE = """
import sys

def test_throughput(train, baseline):
    baseline.check(train(model="trivial"))
    assert not {"sqlalchemy", "alembic", "psycopg"} & sys.modules.keys()
"""


def sessions(file: Path) -> list[str]:
    with sqlite3.connect(file) as connection:
        return [name for (name,) in connection.execute("SELECT id FROM sessions")]


def test_session_is_entered_in_the_history_at_its_end(perf: PerfTests) -> None:
    """The history is beside the session folders, prints nothing, and its libraries are loaded only after the last test."""
    perf.cold = True
    perf.write(LATE)
    del perf.environment["DTFPERF_HISTORY"]
    ended = perf.run()
    assert ended.code == 0, ended.out
    assert "history" not in ended.out + ended.err
    (folder,) = (perf.folder / "perf_results").glob("*-*")
    assert sessions(perf.folder / "perf_results" / "history.sqlite") == [folder.name]


# As a history of weeks makes it: how changes are found is tested in tests/history.
CONFIRMED = """
from pytest_dtfperf.history import enter
from pytest_dtfperf.session import context

def remember(folder, address):
    assert enter.enter(folder, address) is None
    return enter.HistoryEntry(["NEW since 12 March: -2.1 %"], ["since 12 March: -2.1 %"])

context.remember = remember
"""


@pytest.mark.parametrize("option, code", [((), 0), (("--history-gate",), 1)], ids=["shown", "gate"])
def test_new_change_fails_a_session_with_the_gate(perf: PerfTests, option: tuple[str, ...], code: int) -> None:
    """A change over time is shown in the terminal, and with --history-gate the session fails in all its files."""
    (perf.folder / "perf" / "conftest.py").write_text(CONFIRMED)
    ended = perf.run("--gpus=1", *option, DTFPERF_HISTORY="history.sqlite")
    assert ended.code == code, ended.out
    ended.line("NEW since 12 March: -2.1 %")
    assert ("--history-gate: 1 new change over time: this session fails" in ended.out) == bool(code)
    (folder,) = (perf.folder / "perf_results").glob("*-*")
    assert f"exit code {code}" in (folder / "report.html").read_text()
    assert json.loads((folder / "session.json").read_text())["exit_code"] == code
    with sqlite3.connect(perf.folder / "history.sqlite") as connection:
        assert connection.execute("SELECT exit_code FROM sessions").fetchall() == [(code,)]


def test_failed_entry_in_the_history_does_not_fail_the_session(perf: PerfTests, capsys: pytest.CaptureFixture[str]) -> None:
    """For a history of a newer version one line has the command for a later entry, which works, and the session passes."""
    results, elsewhere = perf.folder / "perf_results", perf.folder / "other.sqlite"
    with sqlite3.connect(elsewhere) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    (perf.folder / "pytest.ini").write_text(f"{INI}dtfperf_history = other.sqlite\n")
    del perf.environment["DTFPERF_HISTORY"]
    ended = perf.run("--gpus=1")
    assert ended.code == 0, ended.out
    (folder,) = results.glob("*-*")
    assert (ended.out + ended.err).count("not entered in the history") == 1
    ended.line("written by a newer version")
    assert f"dtfperf history import {folder}" in " ".join(ended.out.split())
    assert "In earlier sessions" not in (folder / "report.html").read_text()
    elsewhere.unlink()
    assert main(["history", "import", str(folder), f"--history={elsewhere}"]) == 0
    assert sessions(elsewhere) == [folder.name]
    assert "1 session entered" in capsys.readouterr().out


def test_page_shows_earlier_sessions(perf: PerfTests) -> None:
    """The page of a second session, with xdist, has the earlier rates and the exit code."""
    pages = []
    for workers in ([], ["-n1"]):
        ended = perf.run("--gpus=1", *workers, DTFPERF_HISTORY="")
        assert ended.code == 0, ended.out
        newest = max((perf.folder / "perf_results").glob("*-*"))
        pages.append((newest / "report.html").read_text())
    assert "In earlier sessions" not in pages[0]
    assert "In earlier sessions" in pages[1]
    assert "2 sessions from " in pages[1]
    assert "exit code 0" in pages[1]


def test_history_variable_has_one_name() -> None:
    """The plugin's option reads the variable that the commands read."""
    assert next(option.variable for option in OPTIONS if option.name == "history") == VARIABLE


def test_history_option_overrides_variable_and_ini(perf: PerfTests) -> None:
    """--history overrides DTFPERF_HISTORY, which overrides the ini file."""
    (perf.folder / "pytest.ini").write_text(f"{INI}dtfperf_history = ini.sqlite\n")
    for arguments, variable, file in (
        (["--history=option.sqlite"], "variable.sqlite", "option.sqlite"),
        ([], "variable.sqlite", "variable.sqlite"),
    ):
        ended = perf.run("--gpus=1", *arguments, DTFPERF_HISTORY=variable)
        assert ended.code == 0, ended.out
        assert len(sessions(perf.folder / file)) == 1


def test_history_password_is_never_shown_or_stored(perf: PerfTests) -> None:
    """A URL's password is neither printed nor in the session folder, whether the URL is unreachable or refused."""
    ended = perf.run("--gpus=1", "--history=postgresql://me:SECRET@127.0.0.1:1/perf?password=SECRET")
    assert ended.code == 0, ended.out
    ended.line("not entered in the history", "postgresql://me:***@127.0.0.1:1/perf")
    kept = [path.read_bytes() for path in (perf.folder / "perf_results").rglob("*") if path.is_file()]
    assert "SECRET" not in ended.out + ended.err
    assert not any(b"SECRET" in content for content in kept)
    refused = perf.run("--history=mysql://me:SECRET@host/perf")
    assert refused.code == 4
    refused.line("--history", "a history is kept in a file", "mysql://me:***@host/perf")
    assert "SECRET" not in refused.out + refused.err
