"""A session goes into the history: when it ends, or later from its folder. The folder is the truth, and is not touched.

Imported at a session's end, so that it must not import SQLAlchemy before there is something to enter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pytest_dtfperf.errors import DtfPerfError, HistoryError
from pytest_dtfperf.history.past import Past, last_changes, nights_of, pasts_of, pasts_of_disturbed
from pytest_dtfperf.history.rows import would_enter_series
from pytest_dtfperf.history.series import Comparable
from pytest_dtfperf.history.where import Address
from pytest_dtfperf.records.session import SessionFolder

SHOWN = timedelta(days=90)  # older events were shown often enough
MANY = 50  # sessions to a transaction of an import: others need not wait long for theirs


@dataclass
class Imported:
    """What became of folders that were to be entered."""

    new: list[str] = field(default_factory=list)  # ids of sessions
    known: list[str] = field(default_factory=list)  # were there as they are
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it could not be read


@dataclass(frozen=True)
class Remembered:
    """The lines about the history at a session's end."""

    lines: Sequence[str] = ()  # what changed, and since when; or why the session is not entered
    new: Sequence[str] = ()  # of these, the changes that this session has confirmed
    pasts: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session


def remember(folder: SessionFolder, address: Address) -> Remembered:
    """Enter a session that ends, and search for changes. Never raises, for what is written after it must be written."""
    try:
        warning = enter(folder, address)
    except Exception as error:  # a database, its driver and whatever a team has made of both: there is no end to it
        warning = _not_entered(folder, f"{type(error).__name__}: {error}")
    if warning:
        return Remembered([warning])
    try:
        return _changes(folder, address)
    except Exception as error:  # the same
        return Remembered([f"not searched for changes over time: {type(error).__name__}: {error}; dtfperf history changes"])


def _changes(folder: SessionFolder, address: Address) -> Remembered:
    """Return the changes in this session's series alone: a team's other machines are not shown here."""
    from pytest_dtfperf.history import events, store, tables
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.watching import watch

    database = Database.open(address)
    watched = database.write(watch)
    disturbed = {record.id for record in folder.measurements() if would_enter_series(record)}
    with database.reading() as connection:
        rows = store.of_session(connection, tables.measurements, folder.id)
        contents = store.all_fingerprints(connection) if disturbed else {}
    today = datetime.now(UTC)
    least = (today - SHOWN).isoformat()
    ours = [event for event in watched.events if watched.concerns(event, folder.id) and event["first_bad_at"] >= least]
    new = [event for event in watched.new if event["found"] == folder.id]
    changes = last_changes(watched.events)
    pasts = pasts_of(nights_of(watched.all_series)[folder.id], changes, [row for row in rows if row["in_series"]])
    theirs = [row for row in rows if row["id"] in disturbed]
    pasts |= pasts_of_disturbed(theirs, folder.session["started"], watched.all_series, changes, Comparable(contents))
    return Remembered(events.summary(ours, new, today), [events.line_of(event, today) for event in new], pasts)


def changes_known(folder: SessionFolder, address: Address) -> Sequence[str]:
    """What changed over time in what a session has measured, in lines; none without a history, one where that is not known.

    Never raises, for what was measured must be shown.
    """
    try:
        if address.path and not address.path.exists():
            return []
        return _changes(folder, address).lines
    except Exception as error:  # a folder that is closed to this user, and as above
        message = str(error) if isinstance(error, DtfPerfError | OSError) else f"{type(error).__name__}: {error}"
        return [f"not known: {message}"]


def enter(folder: SessionFolder, address: Address) -> str | None:
    """Enter a session that ends. Never raises: returns one line where it failed, with the command to enter it later."""
    try:
        refused = enter_all([folder], address).refused
    except (DtfPerfError, OSError, ImportError) as error:
        return _not_entered(folder, str(error))
    return _not_entered(folder, *refused.values()) if refused else None


def _not_entered(folder: SessionFolder, why: str) -> str:
    return f"not entered in the history: {why}. Nothing is lost; once that is put right: dtfperf history import {folder.path}"


def enter_all(folders: Iterable[SessionFolder], address: Address) -> Imported:
    """Enter session folders, some at once; what is there already stays as it is. Raises `HistoryError`.

    A folder that cannot be read keeps none of the others out. One that is in no history yet may be of any age.
    """
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.rows import SessionRows, rows_of

    if address.path:
        _make_folder(address.path.parent)
    database, done = Database.open(address, make=True), Imported()
    waiting: list[SessionRows] = []

    def write() -> None:
        new = database.write(lambda connection: [store.enter(connection, rows) for rows in waiting])
        for rows, is_new in zip(waiting, new, strict=True):
            (done.new if is_new else done.known).append(rows.session["id"])
        waiting.clear()

    for folder in folders:
        try:
            where = str(folder.path).encode(errors="backslashreplace").decode()  # no database takes a name that is no UTF-8
            waiting.append(rows_of(folder.session, folder.measurements(), where))
        except (DtfPerfError, OSError) as error:
            done.refused[str(folder.path)] = str(error)
        if len(waiting) >= MANY:
            write()
    if waiting:
        write()
    return done


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise HistoryError(f"the history's folder {folder} cannot be made: {exc.strerror}") from exc


def folders_of(path: Path) -> list[SessionFolder]:
    """Return a session's own folder, or all that are in a folder. Raises `SessionFileError` where there is none."""
    from pytest_dtfperf.records.session import session_folders

    return session_folders(path) or [SessionFolder.open(path)]
