"""Search for changes in the sessions that were entered since the last search, and store what is found.

`load_history` reads everything that the pages of a history show, after such a search.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.history import store
from pytest_dtfperf.history.database import Database, measurements, tracks
from pytest_dtfperf.history.events import FoundChange, format_member, is_of_hosts, make_events, number_events
from pytest_dtfperf.history.past import find_last_changes
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import HOST_PREFIX, Series, Successions, make_host_series, make_series
from pytest_dtfperf.stats.changes import ChangeWatch, Promise, Track

ALIVE = timedelta(days=90)  # series that were not measured for longer do not count for the limit of false events


@dataclass(frozen=True)
class ChangeSearch:
    """The changes that are known after all sessions."""

    events: Sequence[Row]
    new: Sequence[Row]  # confirmed by the latest session
    promise: Promise
    series: int  # number of series that share the promise
    is_noise_known: bool  # the drift of rates without a change
    measured: Mapping[str, Set[str]]  # session -> its series
    all_series: Sequence[Series] = ()

    def is_affected(self, event: Row, session: str, hosts: Set[str]) -> bool:
        """Return whether a session has measured a series of the event. `hosts`: those with readings of the session."""
        measured = self.measured.get(session, ())
        return any(member["series"] in measured or member.get("host") in hosts for member in event["members"])


def search_changes(connection: Connection) -> ChangeSearch:
    """Search new sessions for changes of rates, and of readings of hosts, each with a limit of false events of its own.

    If an old session was entered, all nights are searched again.
    """
    contents = store.read_fingerprints(connection)
    all_series = make_series(store.read_measurements(connection), contents)
    order = {row["id"]: number for number, row in enumerate(store.read_sessions(connection))}
    unwatched = store.find_unwatched_sessions(connection)
    first = min((order[name] for name in unwatched), default=len(order))
    again = any(number > first and name not in unwatched for name, number in order.items())
    begin = 0 if again else first
    state = {} if again else _read_states(connection)
    successions = Successions(all_series, contents)
    rates = _watch_series(all_series, ChangeWatch(), state, order, begin, successions)
    found = _list_changes(rates, contents, order)
    readings = None  # of all hosts; None: not read, as there are no new ones
    if again or unwatched & store.find_sessions_with_readings(connection):
        of_hosts = make_host_series(store.read_host_readings(connection))
        readings = _watch_series(of_hosts, ChangeWatch(), state, order, begin, Successions((), {}))
        host_events = _list_changes(readings, {"": Fingerprint()}, order)
    else:
        host_events = [event for event in store.read_events(connection) if is_of_hosts(event)]
    watched = _make_result(rates, number_events([*found, *host_events], order), order)
    if unwatched:
        _write(connection, rates, readings, watched.events)
    return watched


@dataclass(frozen=True)
class _SeriesWatch:
    """The changes in some series, which share a limit of false events."""

    watching: ChangeWatch
    all_series: Sequence[Series]
    alive: int  # number of series that share the limit


def _watch_series(
    all_series: Sequence[Series],
    watching: ChangeWatch,
    state: Mapping[str, Mapping[str, Any]],
    order: Mapping[str, int],
    begin: int,
    successions: Successions,
) -> _SeriesWatch:
    """Search the nights from session `begin` on; the earlier ones are in `state`."""
    by_name = {series.name: series for series in all_series}
    watching.resume({s.name: track for s in all_series if (track := _restore_track(s, state, order, begin))})
    alive = 0
    for night in _list_nights(all_series, order, begin):
        alive = _count_alive(all_series, night[0])
        watching.add_night(night[1], alive, _find_ended_series(watching, by_name, night, successions))
    latest = max((series.points[-1]["started"] for series in all_series), default=None)
    return _SeriesWatch(watching, all_series, alive or _count_alive(all_series, latest))


def _read_states(connection: Connection) -> dict[str, Mapping[str, Any]]:
    return {row["series"]: row["state"] for row in connection.execute(select(tracks)).mappings()}


def _restore_track(
    series: Series, state: Mapping[str, Mapping[str, Any]], order: Mapping[str, int], begin: int
) -> Track | None:
    """Return the state of a series before the new sessions; None if it had no nights."""
    values = [point["mean_log"] for point in series.points if order[point["session"]] < begin]
    if not values:
        return None
    return Track.from_json(state.get(series.name, {"skipped": [], "begins": [0], "changes": [], "past": []}), values)


def _list_nights(all_series: Sequence[Series], order: Mapping[str, int], begin: int) -> list[tuple[str, dict[str, float]]]:
    """Return the start of each session from `begin` on, and its rates by series."""
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
    """Return, for each series of a night that may still be compared with it, the series that ended when it began."""
    at, rates = night
    waiting = [name for name in rates if watching.may_cross(name)]
    found = {name: successions.find_ended(by_name[name], at) for name in waiting}
    return {name: before[0].name for name, before in found.items() if before}


def _count_alive(all_series: Sequence[Series], moment: str | None) -> int:
    """Return the number of series that have begun and were measured recently at that time."""
    if moment is None:
        return 0
    least = (datetime.fromisoformat(moment) - ALIVE).isoformat()
    return sum(series.points[0]["started"] <= moment and series.points[-1]["started"] >= least for series in all_series)


def _list_changes(watch: _SeriesWatch, contents: Mapping[str, Fingerprint], order: Mapping[str, int]) -> list[Row]:
    """Return the events of some series."""
    by_name = {series.name: series for series in watch.all_series}
    found = []
    for name, track in watch.watching.tracks.items():
        once = {id(change): change for change in (*track.changes, *track.past)}
        found += [FoundChange(by_name[name], change) for change in once.values()]
        if track.crossing:
            found.append(FoundChange(by_name[name], track.crossing, by_name[track.ended]))
    promise = {
        "share": watch.watching.promise.share,
        "nights": watch.watching.promise.nights,
        "series": watch.alive,
        "is_noise_known": watch.watching.is_noise_known(),
    }
    return make_events(found, order, contents, promise)


def _make_result(rates: _SeriesWatch, events: Sequence[Row], order: Mapping[str, int]) -> ChangeSearch:
    latest = max(order, key=lambda name: order[name], default=None)
    new = [event for event in events if event["found"] == latest and event["state"] == "confirmed"]
    measured: dict[str, set[str]] = {}
    for series in rates.all_series:
        for point in series.points:
            measured.setdefault(point["session"], set()).add(series.name)
    watching = rates.watching
    return ChangeSearch(
        events, new, watching.promise, rates.alive, watching.is_noise_known(), measured, all_series=rates.all_series
    )


def _write(connection: Connection, rates: _SeriesWatch, readings: _SeriesWatch | None, events: Sequence[Row]) -> None:
    """Write the state of the search. The state of the hosts' series stays if they were not searched."""
    is_of_host = tracks.c.series.startswith(HOST_PREFIX, autoescape=True)
    connection.execute(delete(tracks) if readings else delete(tracks).where(~is_of_host))
    watched = [*rates.watching.tracks.items(), *(readings.watching.tracks.items() if readings else ())]
    states = [{"series": name, "state": track.to_json()} for name, track in watched]
    if states:
        connection.execute(insert(tracks), states)
    store.replace_events(connection, events)
    store.mark_watched(connection)


@dataclass(frozen=True)
class HistoryData:
    """Sessions, series and events, the oldest first. Rows are those of the tables."""

    sessions: Sequence[Row]
    all_series: Sequence[Series]
    events: Sequence[Row]
    fingerprints: Mapping[str, Fingerprint]  # digest -> content
    promise: Mapping[str, Any]  # the limit of false events
    is_noise_known: bool
    measured: Callable[[str], Sequence[Row]]  # session -> all its measurements


def load_history(database: Database) -> HistoryData:
    """Load the history. New rates are searched for changes first, which writes. Raises `HistoryError`."""
    with database.reading() as connection:
        found = None if store.find_unwatched_sessions(connection) else _read_all(connection)
    watched, sessions, fingerprints = found or database.write(_read_all)
    return HistoryData(
        sessions=sessions,
        all_series=watched.all_series,
        events=watched.events,
        fingerprints=fingerprints,
        promise=_make_promise(watched),
        is_noise_known=watched.is_noise_known,
        measured=lambda name: _read_measurements(database, name),
    )


def _read_all(connection: Connection) -> tuple[ChangeSearch, list[Row], dict[str, Fingerprint]]:
    """Read all tables in a consistent state."""
    return search_changes(connection), store.read_sessions(connection), store.read_fingerprints(connection)


def _make_promise(watched: ChangeSearch) -> dict[str, Any]:
    return {"share": watched.promise.share, "nights": watched.promise.nights, "series": watched.series}


def _read_measurements(database: Database, name: str) -> Sequence[Row]:
    with database.reading() as connection:
        return sorted(store.read_rows(connection, measurements, name), key=lambda row: row["position"])


def find_slow_hosts(connection: Connection, cluster: str, today: datetime) -> dict[str, str]:
    """Return the slow hosts of a cluster with the reason: a reading became slower, or the last qualification called it slow.

    A reading that became faster again is no reason. Hosts without readings in the last 90 days are left out.
    """
    events = search_changes(connection).events
    rows = [row for row in store.read_host_readings(connection) if row["cluster"] == cluster]
    least = (today - ALIVE).isoformat()
    alive = {(row["host"], row["kind"]) for row in rows if row["started"] >= least}
    slow: dict[str, str] = {}
    for event, member in find_last_changes(events).values():
        host = member.get("host")
        if host and member["cluster"] == cluster and member["change"] < 0 and (host, member["system"]) in alive:
            slow[host] = f"{member['label']} {format_member(event, member, today)}"
    judged = {row["host"]: row["session"] for row in rows if row["verdict"]}
    for row in rows:
        host, kind = row["host"], row["kind"]
        if row["verdict"] == "SLOW" and row["session"] == judged[host] and (host, kind) in alive:
            slow.setdefault(
                host, f"{host}: {row['name']} is slower than that of its peers, in the qualification {row['session']}"
            )
    return slow
