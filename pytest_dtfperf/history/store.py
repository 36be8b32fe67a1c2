"""Write sessions to the database, and read them as rows or as records."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select, update

from pytest_dtfperf.baselines.judgement import Judgement
from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.codec import ValidationError
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement, Run
from pytest_dtfperf.errors import HistoryError
from pytest_dtfperf.formats import printable
from pytest_dtfperf.history.database import events, fingerprints, host_readings, hosts, measurements, runs, sessions, tracks
from pytest_dtfperf.history.rows import Row, SessionRows
from pytest_dtfperf.records.record import Record, with_efficiencies
from pytest_dtfperf.spec import Spec

MANY = 500  # ids per statement; SQLite allows some thousands


def enter(connection: Connection, rows: SessionRows) -> bool:
    """Write a session. Returns whether it was new or changed; an unchanged one is not written again."""
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
    new = [
        {"digest": digest, "content": content.to_json()} for digest, content in rows.fingerprints.items() if digest not in known
    ]
    for table, found in (
        (fingerprints, new), (measurements, rows.measurements), (runs, rows.runs), (hosts, rows.hosts),
        (host_readings, rows.host_readings),
    ):  # fmt: skip
        if found:
            connection.execute(insert(table), list(found))
    return True


def remove(connection: Connection, names: Sequence[str]) -> None:
    """Delete sessions with all their rows, and fingerprints that are not used any more."""
    for some in _split(names):
        for table in (hosts, runs, measurements, host_readings):
            connection.execute(delete(table).where(table.c.session.in_(some)))
        connection.execute(delete(sessions).where(sessions.c.id.in_(some)))
    forget_search(connection)
    used = select(measurements.c.fingerprint)
    connection.execute(delete(fingerprints).where(fingerprints.c.digest.not_in(used)))


def forget_search(connection: Connection) -> None:
    """Delete the state of the search for changes, so that all nights are searched again."""
    connection.execute(delete(tracks))
    connection.execute(update(sessions).values(watched=False))


def read_sessions(connection: Connection) -> list[Row]:
    """Return all sessions, the oldest first."""
    return _fetch(connection, select(sessions).order_by(sessions.c.started, sessions.c.id))


def read_rows(connection: Connection, table: Table, name: str) -> list[Row]:
    """Return the rows of one session in a table, in order."""
    return _fetch(connection, select(table).where(table.c.session == name).order_by(*table.primary_key.columns))


def read_measurements(connection: Connection, *, all_columns: bool = False) -> list[Row]:
    """Return measurements of all sessions, the oldest first, with `started`, `cluster`, `commit` and `versions` of the session.

    Without `all_columns`, return only the columns that a series needs, of measurements with comparable numbers.
    """
    columns = [column for column in measurements.c if all_columns or column.name in _OF_SERIES]
    statement = (
        select(*columns, sessions.c.started, sessions.c.cluster, sessions.c.commit, sessions.c.versions)
        .join(sessions, sessions.c.id == measurements.c.session)
        .order_by(sessions.c.started, sessions.c.id, measurements.c.position)
    )
    return _fetch(connection, statement if all_columns else statement.where(measurements.c.in_series))


_OF_SERIES = {
    "session", "id", "spec_key", "label", "model", "gpus", "system", "hosts", "fingerprint", "mean_log", "images_per_sec",
    "runs", "spread", "noise_run", "noise_session", "verdict", "baseline", "change",
}  # fmt: skip


def read_host_readings(connection: Connection, host: str | None = None) -> list[Row]:
    """Return readings of hosts, the oldest first, with `started`, `cluster`, `commit` and `versions` of the session."""
    statement = (
        select(host_readings, sessions.c.started, sessions.c.cluster, sessions.c.commit, sessions.c.versions)
        .join(sessions, sessions.c.id == host_readings.c.session)
        .order_by(sessions.c.started, sessions.c.id, host_readings.c.position)
    )
    return _fetch(connection, statement if host is None else statement.where(host_readings.c.host == host))


def read_host_names(connection: Connection, session: str) -> set[str]:
    """Return the names of the hosts with readings of a session."""
    return set(connection.scalars(select(host_readings.c.host).where(host_readings.c.session == session)))


def find_sessions_with_readings(connection: Connection) -> set[str]:
    """Return the ids of the sessions with readings of hosts."""
    return set(connection.scalars(select(host_readings.c.session).distinct()))


def read_left_out(connection: Connection) -> list[Row]:
    """Return the training, verdict and reason of measurements without comparable numbers, the oldest first."""
    columns = [measurements.c[name] for name in ("spec_key", "label", "system", "verdict", "reason")]
    statement = select(*columns, sessions.c.started).join(sessions, sessions.c.id == measurements.c.session)
    return _fetch(connection, statement.where(~measurements.c.in_series).order_by(sessions.c.started, measurements.c.position))


def read_fingerprints(connection: Connection) -> dict[str, Fingerprint]:
    return {row["digest"]: _read_fingerprint(row) for row in _fetch(connection, select(fingerprints))}


def _read_fingerprint(row: Row) -> Fingerprint:
    try:
        return Fingerprint.from_json(row["content"])
    except ValidationError as error:
        raise HistoryError(f"fingerprint {row['digest']} in the history is not valid: {printable(str(error))}") from error


def read_events(connection: Connection) -> list[Row]:
    """Return all events in the order in which they began."""
    return _fetch(connection, select(events).order_by(events.c.first_bad_at, events.c.id))


def find_unwatched_sessions(connection: Connection) -> set[str]:
    """Return the ids of sessions that have not been searched for changes."""
    return set(connection.scalars(select(sessions.c.id).where(sessions.c.watched.is_(False))))


def mark_watched(connection: Connection) -> None:
    connection.execute(update(sessions).where(sessions.c.watched.is_(False)).values(watched=True))


def replace_events(connection: Connection, found: Sequence[Mapping[str, Any]]) -> None:
    """Replace all events, which are computed from all sessions."""
    connection.execute(delete(events))
    if found:
        connection.execute(insert(events), [dict(each) for each in found])


def _fetch(connection: Connection, statement: Any) -> list[Row]:
    return [dict(row) for row in connection.execute(statement).mappings()]


def _split(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[begin : begin + MANY] for begin in range(0, len(names), MANY))


# The fields of a run that a history does not keep. Code that shows these must check first where a record is from.
_UNKNOWN: Mapping[str, Any] = {
    "step_s": {}, "loss": (), "startup_s": {}, "bytes_sent": 0, "bytes_received": 0, "peak_rss_bytes": {}, "cpu_s": {},
}  # fmt: skip


@dataclass(frozen=True)
class StoredMeasurements:
    """The measurements of one session, as far as a history stores them."""

    records: Sequence[Record] = ()  # in the order of measuring
    comparable: Collection[str] = ()  # ids of the measurements that may be compared with other nights


def read_records(connection: Connection) -> dict[str, StoredMeasurements]:
    """Return the measurements of each session, by its id."""
    of_runs, of_hosts = _group_by_measurement(connection, runs), _group_by_measurement(connection, hosts)
    fingerprints = read_fingerprints(connection)
    found: dict[str, list[Record]] = defaultdict(list)
    comparable: dict[str, set[str]] = defaultdict(set)
    for row in read_measurements(connection, all_columns=True):
        session, key = row["session"], (row["session"], row["id"])
        names_of_hosts = [host["name"] for host in of_hosts[key]]
        found[session].append(_make_record(row, of_runs[key], names_of_hosts, fingerprints[row["fingerprint"]]))
        comparable[session] |= {row["id"]} if row["in_series"] else set()
    return {session: StoredMeasurements(_add_anchors(records), comparable[session]) for session, records in found.items()}


def _group_by_measurement(connection: Connection, table: Any) -> dict[tuple[str, str], list[Row]]:
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings():
        found[row["session"], row["measurement"]].append(dict(row))
    return found


def _make_record(row: Row, found: Sequence[Row], names_of_hosts: Sequence[str], fingerprint: Fingerprint) -> Record:
    fields = ("images_per_sec", "elapsed_s", "wall_s", "accuracy", "disturbances")
    measurement = Measurement(
        spec=Spec.from_json(row["spec"]),
        runs=[Run(**_UNKNOWN, **{name: run[name] for name in fields}) for run in found],
        hosts=names_of_hosts,
        fingerprint=fingerprint,
    )
    return Record(
        id=row["id"],
        test=row["test"],
        measurement=measurement,
        efficiency=row["efficiency"],
        checks=_make_judgements(row),
        verdict=Verdict(row["verdict"]) if row["verdict"] else None,
        reason=row["reason"],
        accepted=row["accepted"],
    )


def _make_judgements(row: Row) -> tuple[Judgement, ...]:
    """Return the comparison with the baseline, of which a history stores two numbers; empty if there was none."""
    if row["baseline"] is None or not row["verdict"]:
        return ()
    numbers = {"baseline_rate": row["baseline"], "change": row["change"]}
    return (Judgement(Verdict(row["verdict"]), row["reason"] or "", **numbers),)


def _add_anchors(records: Sequence[Record]) -> list[Record]:
    """Return records with the anchor of each efficiency. It is not stored, but found again if its value is the same."""
    return [
        again if again.efficiency and record.efficiency and _is_same(again.efficiency, record.efficiency) else record
        for record, again in zip(records, with_efficiencies(records), strict=True)
    ]


def _is_same(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-9 * abs(other)
