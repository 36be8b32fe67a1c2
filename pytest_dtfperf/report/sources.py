"""Load sessions from a session's folder, a folder of session folders, or a history."""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import SessionFileError, UsageError, show_value
from pytest_dtfperf.history.comparison import find_sessions
from pytest_dtfperf.history.rows import KEPT, Row, is_in_series
from pytest_dtfperf.history.where import Address, parse_address
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder, drop_copies, session_folders
from pytest_dtfperf.records.stored import SessionInfo


@dataclass(frozen=True)
class StoredSession:
    """One session, with its records in the order of measuring."""

    session: SessionInfo  # of a history: without its budget and its costs
    records: Sequence[Record]
    comparable: Collection[str]  # ids of the records with rates that may be compared with other nights'
    has_steps: bool = True  # False: from a history, which has no steps, bytes or processor seconds

    @property
    def id(self) -> str:
        return self.session.id


def load_sessions(source: str | Path, on_status: Callable[[str], object] = lambda status: None) -> list[StoredSession]:
    """Return the sessions of a folder, the file or URL of a history, the oldest first, each once. `on_status` reports copies.

    Raises `UsageError`, `SessionFileError` or `HistoryError` in one line.
    """
    if isinstance(source, str) and "://" in source:
        return load_history_sessions(_parse_address(source))
    path = Path(source)
    if os.path.isfile(path):
        return load_history_sessions(_parse_address(path))
    if os.path.isfile(path / "session.json"):
        return [_load_folder(SessionFolder.open(path))]
    if not os.path.isdir(path):
        allowed = "a session's folder, a folder of such, a history's file, sqlite:///FILE or postgresql://USER@HOST/NAME"
        raise UsageError(f"{show_value(str(source))} is not there: name {allowed}")
    folders = session_folders(path)
    if not folders:
        hint = "pytest perf_tests makes one in perf_results/"
        raise SessionFileError(f"{path} is no session folder, and there is none in it: {hint}")
    return [_load_folder(folder) for folder in drop_copies(folders, on_status)]


def select_sessions(sessions: Sequence[StoredSession], given: str | None) -> list[StoredSession]:
    """Return the sessions of an id, a date, a commit, a version or `last`; all for None. Raises `UsageError`."""
    if given is None:
        return list(sessions)
    ids = {row["id"] for row in find_sessions([{"commit": None, **stored.session.to_json()} for stored in sessions], given)}
    return [stored for stored in sessions if stored.id in ids]


def load_history_sessions(address: Address) -> list[StoredSession]:
    """Return all sessions of a history. Raises `HistoryError`."""
    from pytest_dtfperf.history import store  # SQLAlchemy: only needed for a history
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.store import StoredMeasurements, read_records

    with Database.open(address).reading() as connection:
        sessions, found = store.read_sessions(connection), read_records(connection)
    known = [(_make_session(row), found.get(row["id"], StoredMeasurements())) for row in sessions]
    return [StoredSession(session, each.records, each.comparable, has_steps=False) for session, each in known]


def _make_session(row: Row) -> SessionInfo:
    """Return the part of a session's information that a history keeps."""
    return SessionInfo.from_json({name: row[name] for name in KEPT} | {"commit": row["commit"] or ""})


def _load_folder(folder: SessionFolder) -> StoredSession:
    records = folder.measurements()
    return StoredSession(folder.session, records, {record.id for record in records if is_in_series(record)})


def _parse_address(given: str | Path) -> Address:
    found = parse_address(given, Path())
    assert found  # `never` is neither a URL nor a path
    return found
