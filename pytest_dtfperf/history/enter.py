"""Enter sessions into the history: at their end, or later from their folders, which are not changed.

This is imported at a session's end, so it must not import SQLAlchemy before there is something to enter.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pytest_dtfperf.errors import DtfPerfError, HistoryError
from pytest_dtfperf.history.past import Past, find_last_changes, make_disturbed_pasts, make_pasts, map_nights
from pytest_dtfperf.history.rows import would_enter_series
from pytest_dtfperf.history.series import ComparabilityCheck
from pytest_dtfperf.history.where import Address, choose_address
from pytest_dtfperf.records.host_readings import load_host_readings
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.records.session import SessionFolder

SHOWN = timedelta(days=90)  # older events are not shown at a session's end
MANY = 50  # sessions per transaction of an import, so that other writers do not wait long


@dataclass
class ImportResult:
    """The result of entering session folders."""

    new: list[str] = field(default_factory=list)  # ids of sessions
    known: list[str] = field(default_factory=list)  # ids of sessions that were already there
    refused: dict[str, str] = field(default_factory=dict)  # path -> why it could not be read or entered
    addresses: list[Address] = field(default_factory=list)  # of the histories that have them now


@dataclass(frozen=True)
class HistoryEntry:
    """The result of entering a session at its end, for its report."""

    lines: Sequence[str] = ()  # the changes with their dates, or why the session is not entered
    new: Sequence[str] = ()  # the changes that this session has confirmed
    pasts: Mapping[str, Past] = field(default_factory=dict)  # id of a measurement -> its series up to this session


def remember(folder: SessionFolder, address: Address) -> HistoryEntry:
    """Enter a session at its end, and search for changes. Never raises, as other files are written afterwards."""
    try:
        warning = enter(folder, address)
    except Exception as error:  # databases and their drivers raise many kinds of errors
        warning = _format_not_entered(folder, f"{type(error).__name__}: {error}")
    if warning:
        return HistoryEntry([warning])
    try:
        return _find_changes(folder, address)
    except Exception as error:  # the same
        return HistoryEntry([f"not searched for changes over time: {type(error).__name__}: {error}; dtfperf history changes"])


def _find_changes(folder: SessionFolder, address: Address) -> HistoryEntry:
    """Return the changes in the series of this session; those of other machines are not shown here."""
    from pytest_dtfperf.history import events, store
    from pytest_dtfperf.history.database import Database, measurements
    from pytest_dtfperf.history.watching import search_changes

    database = Database.open(choose_address_of(folder, address))
    watched = database.write(search_changes)
    disturbed = {record.id for record in folder.measurements() if would_enter_series(record)}
    with database.reading() as connection:
        rows = store.read_rows(connection, measurements, folder.id)
        contents = store.read_fingerprints(connection) if disturbed else {}
        hosts = store.read_host_names(connection, folder.id)
    today = datetime.now(UTC)
    least = (today - SHOWN).isoformat()
    ours = [
        event for event in watched.events if watched.is_affected(event, folder.id, hosts) and event["first_bad_at"] >= least
    ]
    new = [event for event in watched.new if event["found"] == folder.id]
    changes = find_last_changes(watched.events)
    pasts = make_pasts(map_nights(watched.all_series)[folder.id], changes, [row for row in rows if row["in_series"]])
    theirs = [row for row in rows if row["id"] in disturbed]
    pasts |= make_disturbed_pasts(theirs, folder.session.started, watched.all_series, changes, ComparabilityCheck(contents))
    return HistoryEntry(events.format_summary(ours, new, today), [events.format_event(event, today) for event in new], pasts)


def describe_changes(folder: SessionFolder, address: Address) -> Sequence[str]:
    """Return a line for each change in the series of this session; empty without a history.

    Never raises, as the measurements must be shown: after an error, the line is its message.
    """
    try:
        path = choose_address_of(folder, address).path
        if path and not path.exists():
            return []
        return _find_changes(folder, address).lines
    except Exception as error:  # a folder that is closed to this user, and as above
        message = str(error) if isinstance(error, DtfPerfError | OSError) else f"{type(error).__name__}: {error}"
        return [f"not known: {message}"]


def choose_address_of(folder: SessionFolder, address: Address) -> Address:
    """Return the address of a session's history: that in the settings, or that of simulated hosts. Raises `UsageError`."""
    return choose_address(address, is_simulated=_is_simulated(folder.measurements()))


def _is_simulated(records: Sequence[Record]) -> bool | None:
    """Return whether a session's hosts are simulated; None if it has measured nothing."""
    return any(record.measurement.fingerprint.is_simulated for record in records) if records else None


def enter(folder: SessionFolder, address: Address) -> str | None:
    """Enter a session at its end. Returns None, or one line with the error and the command to enter it later."""
    try:
        refused = enter_all([folder], address).refused
    except (DtfPerfError, OSError, ImportError) as error:
        return _format_not_entered(folder, str(error))
    return _format_not_entered(folder, *refused.values()) if refused else None


def _format_not_entered(folder: SessionFolder, why: str) -> str:
    return f"not entered in the history: {why}. No data is lost. After correcting this: dtfperf history import {folder.path}"


def enter_all(folders: Iterable[SessionFolder], address: Address) -> ImportResult:
    """Enter session folders, several per transaction. Sessions that are already there are not changed.

    Sessions on simulated hosts go into a history of their own.

    A folder that cannot be read does not keep out others. Sessions may be of any age.

    Raises:
        HistoryError: The database cannot be used.
    """
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.rows import SessionRows, make_session_rows

    done = ImportResult()
    databases: dict[Address, Database] = {}
    waiting: dict[Address, list[SessionRows]] = {}

    def write(address: Address) -> None:
        rows = waiting[address]
        new = databases[address].write(lambda connection: [store.enter(connection, each) for each in rows])
        for each, is_new in zip(rows, new, strict=True):
            (done.new if is_new else done.known).append(each.session["id"])
        rows.clear()

    for folder in folders:
        try:
            where = str(folder.path).encode(errors="backslashreplace").decode()  # databases refuse names that are not UTF-8
            records = folder.measurements()
            at = choose_address(address, is_simulated=_is_simulated(records))
            rows = make_session_rows(folder.session, records, where, load_host_readings(folder))
        except (DtfPerfError, OSError) as error:
            done.refused[str(folder.path)] = str(error)
            continue
        if at not in databases:
            if at.path:
                _make_folder(at.path.parent)
            databases[at], waiting[at] = Database.open(at, make=True), []
            done.addresses.append(at)
        waiting[at].append(rows)
        if len(waiting[at]) >= MANY:
            write(at)
    for at, left in waiting.items():
        if left:
            write(at)
    return done


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise HistoryError(f"the history's folder {folder} cannot be created: {exc.strerror}") from exc


def list_folders(path: Path) -> list[SessionFolder]:
    """Return the session folders in a folder, or the folder itself. Raises `SessionFileError` if there is none."""
    from pytest_dtfperf.records.session import session_folders

    return session_folders(path) or [SessionFolder.open(path)]
