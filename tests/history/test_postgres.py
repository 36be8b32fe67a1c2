"""A team's history, on a real PostgreSQL: many writers, one that is killed, a server that is started anew between."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from sqlalchemy import func, select

import pytest_dtfperf
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database, measurements, runs, sessions
from pytest_dtfperf.history.enter import enter, enter_all, list_folders
from pytest_dtfperf.report.dataframe import COLUMNS
from tests.history.postgres import IN_URL, Postgres, postgres, tool
from tests.history.sessions import folder_of

pytestmark = pytest.mark.skipif(not tool("initdb"), reason="PostgreSQL is not installed; ci/setup says how")
pytest.importorskip("psycopg")

WRITERS, SESSIONS = 8, 6


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as found:
        yield found


def test_nothing_committed_is_lost_and_nothing_is_there_twice(server: Postgres, tmp_path: Path) -> None:
    """Eight write at once, one is killed in the middle, the server is started anew: each session is there once, and whole."""
    for number in range(WRITERS):
        for night in range(SESSIONS):
            folder_of(tmp_path / str(number), number * SESSIONS + night, {1: [100.0, 101.0], 2: [190.0, 191.0]})
    folders = [str(tmp_path / str(number)) for number in range(WRITERS)]
    command = [sys.executable, "-m", "tests.history.writers", server.address.url, *folders]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = iter(process.stdout)
        reported = [next(lines).split()]
        killed = reported[0][0]
        os.kill(int(reported[0][1]), signal.SIGKILL)
        server.control("restart", "-m", "immediate")
        reported += [line.split(maxsplit=2) for line in lines]
    assert [words for _, _, words in reported if "not entered" in words] == []
    committed = {words.strip() for _, _, words in reported}
    assert committed >= {path.name for folder in folders if Path(folder).name != killed for path in Path(folder).iterdir()}
    with Database.open(server.address).reading() as connection:
        found = [row["id"] for row in store.read_sessions(connection)]
        tables = (sessions, measurements, runs)
        counts = {table.name: connection.scalar(select(func.count()).select_from(table)) for table in tables}
    assert committed <= set(found)
    assert len(found) == len(set(found))
    assert counts == {"sessions": len(found), "measurements": 2 * len(found), "runs": 4 * len(found)}
    enter_all(list_folders(tmp_path / killed), server.address)
    with Database.open(server.address).reading() as connection:
        assert len(store.read_sessions(connection)) == WRITERS * SESSIONS


def test_the_password_is_never_shown(server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused password is reported at once, without the password: a server that has refused it is not asked again."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it was asked again"))
    words = enter(folder_of(tmp_path), server.address_with(f"WRONG{IN_URL}"))
    assert words is not None
    assert "password authentication failed" in words
    assert "WRONG" not in words
    assert f"postgresql://perf:***@127.0.0.1:{server.port}/postgres" in words


def test_load_reads_it_as_it_reads_folders(server: Postgres, tmp_path: Path) -> None:
    """`pytest_dtfperf.load` of the URL gives what it gives of the same folders, in all columns that a history keeps."""
    for night in range(1000, 1003):  # nights that no other test has entered
        folder_of(tmp_path, night, {1: [100.0, 101.0], 2: [190.0, 191.0]})
    enter_all(list_folders(tmp_path), server.address)
    of_folders, of_server = pytest_dtfperf.load(tmp_path), pytest_dtfperf.load(server.url)
    ours = of_server[of_server["session"].isin(of_folders["session"])].reset_index(drop=True)
    assert len(ours) == 12
    kept = [name for name, column in COLUMNS.items() if column.in_history]
    pd.testing.assert_frame_equal(ours[kept], of_folders[kept])
