"""Sessions go in and come out: the statements. Each function is part of a transaction that its caller makes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from pytest_dtfperf.history.rows import Row, SessionRows
from pytest_dtfperf.history.tables import events, fingerprints, hosts, measurements, runs, sessions, tracks

MANY = 500  # ids to a statement: SQLite takes no more than some thousands


def enter(connection: Connection, rows: SessionRows) -> bool:
    """Write a session; whether it was new, or another than what was there. The same again changes nothing."""
    name = rows.session["id"]
    content = connection.scalar(select(sessions.c.content).where(sessions.c.id == name))
    if content == rows.session["content"]:
        ended = {column: value for column, value in rows.session.items() if column not in ("id", "watched")}
        connection.execute(update(sessions).where(sessions.c.id == name).values(ended))
        return False
    if content is not None:
        remove(connection, [name])
    connection.execute(insert(sessions), [rows.session])
    known = set(connection.scalars(select(fingerprints.c.digest).where(fingerprints.c.digest.in_(rows.fingerprints))))
    new = [{"digest": digest, "content": content} for digest, content in rows.fingerprints.items() if digest not in known]
    for table, found in ((fingerprints, new), (measurements, rows.measurements), (runs, rows.runs), (hosts, rows.hosts)):
        if found:
            connection.execute(insert(table), list(found))
    return True


def remove(connection: Connection, names: Sequence[str]) -> None:
    """Forget sessions with all that belongs to them, and fingerprints that nothing has any more."""
    for some in _some(names):
        for table in (hosts, runs, measurements):
            connection.execute(delete(table).where(table.c.session.in_(some)))
        connection.execute(delete(sessions).where(sessions.c.id.in_(some)))
    forget_search(connection)
    used = select(measurements.c.fingerprint)
    connection.execute(delete(fingerprints).where(fingerprints.c.digest.not_in(used)))


def forget_search(connection: Connection) -> None:
    """Let all nights be gone through again: what is known of them counts nights that may be no more."""
    connection.execute(delete(tracks))
    connection.execute(update(sessions).values(watched=False))


def all_sessions(connection: Connection) -> list[Row]:
    """The oldest first."""
    return _rows(connection, select(sessions).order_by(sessions.c.started, sessions.c.id))


def of_session(connection: Connection, table: Table, name: str) -> list[Row]:
    """What a table has of one session, in order."""
    return _rows(connection, select(table).where(table.c.session == name).order_by(*table.primary_key.columns))


def measured(connection: Connection, *, whole: bool = False) -> list[Row]:
    """Measurements of all sessions, the oldest first, with `started` and `cluster` of their session.

    Without `whole` those alone whose numbers may be compared, and of them what a series needs.
    """
    columns = [column for column in measurements.c if whole or column.name in _OF_SERIES]
    statement = (
        select(*columns, sessions.c.started, sessions.c.cluster, sessions.c.commit, sessions.c.versions)
        .join(sessions, sessions.c.id == measurements.c.session)
        .order_by(sessions.c.started, sessions.c.id, measurements.c.position)
    )
    return _rows(connection, statement if whole else statement.where(measurements.c.in_series))


_OF_SERIES = {
    "session", "id", "spec_key", "label", "model", "gpus", "system", "hosts", "fingerprint", "mean_log", "images_per_sec",
    "runs", "spread", "noise_run", "noise_session", "verdict", "baseline", "change",
}  # fmt: skip


def left_out(connection: Connection) -> list[Row]:
    """Return the training, verdict and reason of measurements whose numbers may not be compared, the oldest first."""
    columns = [measurements.c[name] for name in ("spec_key", "label", "system", "verdict", "reason")]
    statement = select(*columns, sessions.c.started).join(sessions, sessions.c.id == measurements.c.session)
    return _rows(connection, statement.where(~measurements.c.in_series).order_by(sessions.c.started, measurements.c.position))


def all_fingerprints(connection: Connection) -> dict[str, Mapping[str, Any]]:
    return {row["digest"]: row["content"] for row in _rows(connection, select(fingerprints))}


def all_events(connection: Connection) -> list[Row]:
    """In the order in which they began."""
    return _rows(connection, select(events).order_by(events.c.first_bad_at, events.c.id))


def unwatched(connection: Connection) -> set[str]:
    """Sessions whose rates have not been searched for changes."""
    return set(connection.scalars(select(sessions.c.id).where(sessions.c.watched.is_(False))))


def mark_watched(connection: Connection) -> None:
    connection.execute(update(sessions).where(sessions.c.watched.is_(False)).values(watched=True))


def replace_events(connection: Connection, found: Sequence[Mapping[str, Any]]) -> None:
    """What there was is forgotten: all events follow from all sessions."""
    connection.execute(delete(events))
    if found:
        connection.execute(insert(events), [dict(each) for each in found])


def _rows(connection: Connection, statement: Any) -> list[Row]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def _some(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[begin : begin + MANY] for begin in range(0, len(names), MANY))
