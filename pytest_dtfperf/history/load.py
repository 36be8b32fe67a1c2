"""Load everything that the pages of a history show, in one read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.history.tables import measurements
from pytest_dtfperf.history.watching import Watched, watch


@dataclass(frozen=True)
class Whole:
    """Sessions, series and events, the oldest first. Rows are those of the tables."""

    sessions: Sequence[Row]
    all_series: Sequence[Series]
    events: Sequence[Row]
    fingerprints: Mapping[str, Mapping[str, Any]]  # digest -> content
    promise: Mapping[str, Any]  # of false events, as events have it
    is_noise_known: bool
    measured: Callable[[str], Sequence[Row]]  # session -> all its measurements


def load_history(database: Database) -> Whole:
    """Rates that were not searched for changes are searched first, which writes; else nothing is. Raises `HistoryError`."""
    with database.reading() as connection:
        found = None if store.find_unwatched_sessions(connection) else _all(connection)
    watched, sessions, fingerprints = found or database.write(_all)
    return Whole(
        sessions=sessions,
        all_series=watched.all_series,
        events=watched.events,
        fingerprints=fingerprints,
        promise=_promise(watched),
        is_noise_known=watched.is_noise_known,
        measured=lambda name: _read_measurements(database, name),
    )


def _all(connection: Connection) -> tuple[Watched, list[Row], dict[str, Mapping[str, Any]]]:
    """Read all tables in one state."""
    return watch(connection), store.all_sessions(connection), store.all_fingerprints(connection)


def _promise(watched: Watched) -> dict[str, Any]:
    return {"share": watched.promise.share, "nights": watched.promise.nights, "series": watched.series}


def _read_measurements(database: Database, name: str) -> Sequence[Row]:
    with database.reading() as connection:
        return sorted(store.of_session(connection, measurements, name), key=lambda row: row["position"])
