"""Search for changes in the sessions that were entered since the last search, and store what is found.

`load_history` reads everything that the pages of a history show, after such a search.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database
from pytest_dtfperf.history.events import FoundChange, events_of
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series, Successions, series_of
from pytest_dtfperf.history.tables import measurements, tracks
from pytest_dtfperf.stats.changes import ChangeWatch, Promise, Track

ALIVE = timedelta(days=90)  # a series that was not measured for longer has no share of the promise


@dataclass(frozen=True)
class Watched:
    """What is known of changes after all sessions."""

    events: Sequence[Row]
    new: Sequence[Row]  # confirmed by the latest session
    promise: Promise
    series: int  # that share it
    is_noise_known: bool  # how slowly rates wander without a change
    measured: Mapping[str, Set[str]]  # session -> series that it has a rate of
    all_series: Sequence[Series] = ()

    def concerns(self, event: Row, session: str) -> bool:
        """Return whether a session has measured any of its series."""
        return any(member["series"] in self.measured.get(session, ()) for member in event["members"])


def watch(connection: Connection, promise: Promise | None = None) -> Watched:
    """Search what was not searched yet. Where a session of long ago has come, all nights are gone through again."""
    rows, contents = store.read_measurements(connection), store.all_fingerprints(connection)
    all_series = series_of(rows, contents)
    order = {row["id"]: number for number, row in enumerate(store.all_sessions(connection))}
    unwatched = store.find_unwatched_sessions(connection)
    first = min((order[name] for name in unwatched), default=len(order))
    again = any(number > first and name not in unwatched for name, number in order.items())
    begin = 0 if again else first
    state = {} if again else _state(connection)
    watching, alive, successions = ChangeWatch(promise), 0, Successions(all_series, contents)
    by_name = {series.name: series for series in all_series}
    watching.resume({s.name: track for s in all_series if (track := _track(s, state, order, begin))})
    for night in _nights(all_series, order, begin):
        alive = _alive(all_series, night[0])
        watching.night(night[1], alive, _find_ended_series(watching, by_name, night, successions))
    watched = _watch_series(
        watching, all_series, order, contents, alive or _alive(all_series, rows[-1]["started"] if rows else None)
    )
    if unwatched:
        _write(connection, watching, watched.events)
    return watched


def _state(connection: Connection) -> dict[str, Mapping[str, Any]]:
    return {row["series"]: row["state"] for row in connection.execute(select(tracks)).mappings()}


def _track(series: Series, state: Mapping[str, Mapping[str, Any]], order: Mapping[str, int], begin: int) -> Track | None:
    """As it was before the sessions that are new."""
    values = [point["mean_log"] for point in series.points if order[point["session"]] < begin]
    if not values:
        return None
    return Track.from_json(state.get(series.name, {"skipped": [], "begins": [0], "changes": [], "past": []}), values)


def _nights(all_series: Sequence[Series], order: Mapping[str, int], begin: int) -> list[tuple[str, dict[str, float]]]:
    """Return when each session from `begin` on began, and its rates by series."""
    found: dict[int, tuple[str, dict[str, float]]] = {}
    for series in all_series:
        name = series.name
        for point in series.points:
            number = order[point["session"]]
            if number >= begin:
                found.setdefault(number, (point["started"], {}))[1][name] = point["mean_log"]
    return [found[number] for number in sorted(found)]


def _find_ended_series(
    watching: ChangeWatch, by_name: Mapping[str, Series], night: tuple[str, Mapping[str, float]], successions: Successions
) -> dict[str, str]:
    """Return the series that ended where those of a night began, for those that may still be compared with it."""
    at, rates = night
    waiting = [name for name in rates if watching.may_cross(name)]
    found = {name: successions.before(by_name[name], at) for name in waiting}
    return {name: before[0].name for name, before in found.items() if before}


def _alive(all_series: Sequence[Series], at: str | None) -> int:
    """Series that have begun by then and were measured not long before."""
    if at is None:
        return 0
    least = (datetime.fromisoformat(at) - ALIVE).isoformat()
    return sum(series.points[0]["started"] <= at and series.points[-1]["started"] >= least for series in all_series)


def _watch_series(
    watching: ChangeWatch,
    all_series: Sequence[Series],
    order: Mapping[str, int],
    contents: Mapping[str, Mapping[str, Any]],
    alive: int,
) -> Watched:
    by_name = {series.name: series for series in all_series}
    found = []
    for name, track in watching.tracks.items():
        once = {id(change): change for change in (*track.changes, *track.past)}
        found += [FoundChange(by_name[name], change) for change in once.values()]
        if track.crossing:
            found.append(FoundChange(by_name[name], track.crossing, by_name[track.ended]))
    is_known = watching.knows_noise()
    promise = {
        "share": watching.promise.share,
        "nights": watching.promise.nights,
        "series": alive,
        "is_noise_known": is_known,
    }
    events = events_of(found, order, contents, promise)
    latest = max(order, key=lambda name: order[name], default=None)
    new = [event for event in events if event["found"] == latest and event["state"] == "confirmed"]
    measured: dict[str, set[str]] = {}
    for name, series in by_name.items():
        for point in series.points:
            measured.setdefault(point["session"], set()).add(name)
    return Watched(events, new, watching.promise, alive, is_known, measured, all_series)


def _write(connection: Connection, watching: ChangeWatch, events: Sequence[Row]) -> None:
    connection.execute(delete(tracks))
    states = [{"series": name, "state": track.to_json()} for name, track in watching.tracks.items()]
    if states:
        connection.execute(insert(tracks), states)
    store.replace_events(connection, events)
    store.mark_watched(connection)


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
