"""Sessions go into a history in a file: once, whole, beside other writers, and with clear errors where they cannot."""

import hashlib
import json
import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import inspect

from pytest_dtfperf.cli import main
from pytest_dtfperf.errors import HistoryError
from pytest_dtfperf.history import database, store
from pytest_dtfperf.history.database import Database, hosts, measurements, runs
from pytest_dtfperf.history.enter import describe_changes, enter, enter_all
from pytest_dtfperf.history.rows import compute_content_digest
from pytest_dtfperf.history.where import Address, choose_address, parse_address
from pytest_dtfperf.nightly.summary import format_session_summary
from pytest_dtfperf.records.session import SessionFolder
from tests.history.sessions import folder_of
from tests.plugin import zygote

STORED = Path(__file__).parents[1] / "session" / "stored" / "20260131T021503Z-9f3c1a"


@pytest.fixture
def address(tmp_path: Path) -> Address:
    found = parse_address(None, tmp_path)
    assert found
    return found


def names(address: Address) -> list[str]:
    with Database.open(address).reading() as connection:
        return [row["id"] for row in store.read_sessions(connection)]


def test_a_session_is_found_again(tmp_path: Path, address: Address) -> None:
    """What a session folder holds comes out of the history: session, measurements, runs and hosts."""
    folder = folder_of(tmp_path, rates={1: [100.0, 110.0], 2: [190.0]}, commit="c0ffee")
    assert enter(folder, address) is None
    with Database.open(address).reading() as connection:
        (session,) = store.read_sessions(connection)
        rows = {table.name: store.read_rows(connection, table, folder.id) for table in (measurements, runs, hosts)}
    assert (session["id"], session["commit"], session["exit_code"], session["verdicts"]) == (
        folder.id,
        "c0ffee",
        0,
        {"PASSED": 1},
    )
    one, two = sorted(rows["measurements"], key=lambda row: row["gpus"])
    assert (one["images_per_sec"], one["runs"], one["system"], one["in_series"]) == (105.0, 2, "cpu-any-2c", True)
    assert one["mean_log"] == pytest.approx(4.65283, abs=1e-5)
    assert one["spread"] == pytest.approx(0.0674, abs=1e-4)
    assert two["spread"] is None
    assert len(rows["runs"]) == 3
    assert {row["name"] for row in rows["hosts"]} == {"localhost"}


def test_digest_of_a_session_is_that_of_one_list(tmp_path: Path) -> None:
    """The digest of a session's content is that of one JSON list with all its measurements, as older histories have it."""
    records = folder_of(tmp_path, rates={1: [100.0, 110.0], 2: [190.0]}).measurements()
    whole = json.dumps([each.to_json() for each in records], sort_keys=True, ensure_ascii=False)
    assert len(records) == 2
    assert compute_content_digest(records) == hashlib.sha256(whole.encode()).hexdigest()
    assert compute_content_digest([]) == hashlib.sha256(b"[]").hexdigest()


def test_simulated_sessions_have_a_history_of_their_own(tmp_path: Path, address: Address) -> None:
    """An import of mixed folders enters sessions on simulated hosts in a file beside that of real ones, and neither in both."""
    real, simulated = folder_of(tmp_path), folder_of(tmp_path, 1, hardware={"cpu": "SIMULATED", "simulated": "sim"})
    assert enter_all([real, simulated], address).new == [real.id, simulated.id]
    beside = choose_address(address, is_simulated=True)
    assert beside.path == tmp_path / "history.simulated.sqlite"
    assert (names(address), names(beside)) == ([real.id], [simulated.id])
    assert enter_all([simulated], address).known == [simulated.id]
    assert enter_all([simulated], beside).known == [simulated.id]
    assert describe_changes(simulated, address) == []


def test_a_history_of_simulated_hosts_takes_no_other_session(tmp_path: Path, address: Address) -> None:
    """A session on real hosts is refused by the history of simulated ones, with the reason, and others are entered."""
    real, simulated = folder_of(tmp_path), folder_of(tmp_path, 1, hardware={"cpu": "SIMULATED", "simulated": "sim"})
    beside = choose_address(address, is_simulated=True)
    done = enter_all([real, simulated], beside)
    assert done.new == [simulated.id]
    assert "is a history of simulated hosts, and these are real: name another file" in done.refused[str(real.path)]
    assert not (tmp_path / "history.sqlite").exists()


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    """In a folder with a name that is no UTF-8, and has blanks and signs of URLs, a history is made, entered and read."""
    root = tmp_path / os.fsdecode(b"caf\xe9 100%25 ?a#b")
    folder, address = folder_of(root), parse_address(None, root)
    assert address
    assert enter(folder, address) is None
    assert names(address) == [folder.id]
    assert (root / "history.sqlite").is_file()


def test_the_same_again_changes_nothing(tmp_path: Path, address: Address) -> None:
    """A session is entered by its id: once, however often it is imported; and anew when its folder has grown."""
    folder = folder_of(tmp_path)
    assert enter_all([folder], address).new == [folder.id]
    assert enter_all([folder, folder], address).known == [folder.id, folder.id]
    folder.add("t.py::test_b", folder.measurements()[0].measurement)
    assert enter_all([folder], address).new == [folder.id]
    with Database.open(address).reading() as connection:
        assert len(store.read_rows(connection, measurements, folder.id)) == 2
    assert names(address) == [folder.id]


def test_sessions_of_the_first_release_are_imported(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that the first release wrote goes in as one of today's, by the command that a warning names."""
    for words in (f"1 session entered in {address}.", f"0 sessions entered in {address}, 1 known already."):
        assert main(["history", "import", str(STORED), f"--history={address}"]) == 0
        assert capsys.readouterr().out == f"dtfperf: {words}\n"
    assert names(address) == [STORED.name]


def test_damaged_folder_is_left_out_of_an_import(tmp_path: Path, address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged folder is named with its reason, and the others are entered."""
    broken, whole = folder_of(tmp_path, 0), folder_of(tmp_path, 1)
    (broken.path / "measurements.jsonl").write_text("{}\n")
    assert main(["history", "import", str(tmp_path), f"--history={address}"]) == 1
    assert f"{broken.path} was not entered: " in capsys.readouterr().err
    assert names(address) == [whole.id]


def test_eight_at_once(tmp_path: Path, address: Address) -> None:
    """Eight processes make the history and enter sessions at the same moment: each is there once, and none is refused."""
    for night in range(16):
        folder_of(tmp_path / str(night % 8), night)
    folders = (tmp_path / str(number) for number in range(8))
    ended = zygote.python(
        "-c", "import sys; from tests.history.writers import main; main(*sys.argv[1:])", address.url, *folders
    )
    assert ended.returncode == 0, ended.stderr
    entered = ended.stdout.splitlines()
    assert len({words.split()[2] for words in entered}) == 16
    assert {words.split()[2] for words in entered} == set(names(address))


def read_refusal(folder: SessionFolder, address: Address) -> str:
    """Return the lines about a session that cannot be entered; its folder is whole."""
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    words = enter(folder, address)
    assert words is not None
    assert words.startswith("not entered in the history: ")
    assert words.endswith(f"No data is lost. After correcting this: dtfperf history import {folder.path}")
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    return words


def test_a_history_of_a_newer_version_is_left_alone(tmp_path: Path, address: Address) -> None:
    """A file of a newer version is not touched, and the error names what to install."""
    folder = folder_of(tmp_path)
    enter(folder, address)
    with sqlite3.connect(str(address)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "written by a newer version of pytest-dtfperf" in read_refusal(folder_of(tmp_path, 1), address)


def test_other_files_are_refused_as_a_history(tmp_path: Path, address: Address) -> None:
    """A text file and the tables of another program are refused."""
    folder = folder_of(tmp_path)
    Path(str(address)).write_text("this is a text, and long enough for a header of SQLite, which has a hundred bytes " * 4)
    assert "it is not an SQLite file" in read_refusal(folder, address)
    Path(str(address)).unlink()
    with sqlite3.connect(str(address)) as connection:
        connection.execute("CREATE TABLE sessions (id TEXT)")
    assert "is it another program's?" in read_refusal(folder, address)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
@pytest.mark.parametrize("mount, words", {"size=40k": "its disk is full", "ro": "it cannot be opened or created"}.items())
def test_disks_that_take_nothing(tmp_path: Path, mount: str, words: str) -> None:
    """On a full disk, or in a read-only folder, one line reports it, and the session folder is whole."""
    folder, disk = folder_of(tmp_path), tmp_path / "disk"
    disk.mkdir()
    assert words in _run_with_mount(
        f"mount -t tmpfs -o {mount} none {disk}", REFUSED, str(folder.path), str(disk / "history.sqlite")
    )


WITH_MOUNT = """
import ctypes, os, subprocess
assert ctypes.CDLL(None).unshare(0x00020000) == 0  # CLONE_NEWNS
subprocess.run(f"mount --make-rprivate / && {os.environ['MOUNT']}", shell=True, check=True)
"""
REFUSED = """
import sys
from tests.history.test_enter import *
print(read_refusal(SessionFolder.open(Path(sys.argv[1])), parse_address(sys.argv[2], Path())))
"""
READ = """
import sys
from tests.history.test_enter import *
found = parse_address(sys.argv[2], Path())
print(names(found), enter(folder_of(Path(sys.argv[3]), 1), found))
"""


def _run_with_mount(mount: str, code: str, *arguments: str) -> str:
    """What Python prints, with a disk that it alone sees."""
    ended = zygote.python("-c", WITH_MOUNT + code, *arguments, MOUNT=mount)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def _on_a_disk_to_be_read(tmp_path: Path) -> tuple[SessionFolder, Address, str]:
    """A session that is entered in a history, and the command that makes this one's disk read-only."""
    disk, folder = tmp_path / "disk", folder_of(tmp_path / "results")
    address = parse_address(disk / "history.sqlite", disk)
    assert address
    assert enter(folder, address) is None
    return folder, address, f"mount --bind {disk} {disk} && mount -o remount,ro,bind {disk}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_read_only_history_can_be_read(tmp_path: Path) -> None:
    """A user without write access to the folder of a history can read it, and a failed entry is reported."""
    folder, address, mount = _on_a_disk_to_be_read(tmp_path)
    out = _run_with_mount(mount, READ, str(folder.path), str(address), str(tmp_path / "results"))
    assert out.startswith(f"['{folder.id}'] not entered in the history: the history {address} cannot be used: it is read-only")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a disk")
def test_a_read_only_history_is_read_with_its_log(tmp_path: Path) -> None:
    """A user without write access to the folder also sees sessions in SQLite's log: another is writing, or was killed."""
    folder, address, mount = _on_a_disk_to_be_read(tmp_path)
    with Database.open(address).reading() as connection:
        assert len(store.read_sessions(connection)) == 1
        latest = folder_of(tmp_path / "results", 2)
        assert enter(latest, address) is None
        assert Path(f"{address}-wal").stat().st_size > 0
        out = _run_with_mount(mount, READ, str(folder.path), str(address), str(tmp_path / "results"))
    assert out.startswith(f"['{folder.id}', '{latest.id}'] not entered in the history: ")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_users_history_is_refused(tmp_path: Path) -> None:
    """A history in a folder that is closed to this user is refused in one line."""
    (tmp_path / "closed").mkdir(mode=0)
    path = tmp_path / "closed" / "history.sqlite"
    closed = parse_address(path, tmp_path)
    assert closed
    for make in (False, True):
        try:
            os.seteuid(65534)
            with pytest.raises(HistoryError, match=f"^the history {path} cannot be used: Permission denied$"):
                Database.open(closed, make=make)
        finally:
            os.seteuid(0)


def test_a_history_that_cannot_be_looked_for_costs_a_line(tmp_path: Path) -> None:
    """Of a folder that is closed, or a name that no disk takes, a night's summary has a line, and all that was measured."""
    folder = folder_of(tmp_path, rates={1: [100.0]})
    address = parse_address(tmp_path / ("long" * 99), tmp_path)
    assert address
    assert describe_changes(folder, address) == [f"not known: [Errno 36] File name too long: '{address.path}'"]
    assert "## Changes over time\n\n- not known: [Errno 36]" in format_session_summary(
        folder, None, [], "All tests passed.", address
    )


def test_there_is_none_yet(address: Address, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the first session, commands explain how a history is made, and make nothing."""
    with pytest.raises(HistoryError, match=r"there is no history .*dtfperf history import DIR"):
        Database.open(address)
    assert main(["history", "list", f"--history={address}"]) == 2
    assert not Path(str(address)).exists()


def test_migrations_make_the_tables_of_a_new_history(tmp_path: Path) -> None:
    """The migrations make the tables, columns and indexes of a new history."""
    made, migrated = (parse_address(tmp_path / name, tmp_path) for name in ("made", "migrated"))
    assert made
    assert migrated
    Database.open(made, make=True)
    _empty(migrated).write(lambda connection: database.migrate(connection, database.NEWEST))
    assert _schema(Database.open(migrated)) == _schema(Database.open(made))


def _empty(address: Address) -> Database:
    from pytest_dtfperf.history.database import _make_engine

    return Database(address, _make_engine(address))


def _schema(database: Database) -> dict[str, object]:
    with database.reading() as connection:
        found = inspect(connection)
        return {
            name: (
                [(column["name"], str(column["type"]), column["nullable"]) for column in found.get_columns(name)],
                sorted((index["name"] or "", index["column_names"]) for index in found.get_indexes(name)),
                found.get_pk_constraint(name)["constrained_columns"],
                sorted(str(key["constrained_columns"]) for key in found.get_foreign_keys(name)),
            )
            for name in found.get_table_names()
        }


def test_a_fingerprint_of_another_program_is_refused_in_a_line(tmp_path: Path, address: Address) -> None:
    """A fingerprint in the history that this version cannot read is named with its key, without a traceback."""
    assert enter(folder_of(tmp_path), address) is None
    assert address.path
    with sqlite3.connect(address.path) as connection:
        connection.execute("""update fingerprints set content = '{"hardware": {"cores": "many"}}'""")
    connection.close()
    with Database.open(address).reading() as reading, pytest.raises(HistoryError, match=r"hardware\.cores: must be a whole"):
        store.read_fingerprints(reading)
