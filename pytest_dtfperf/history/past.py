"""The earlier rates of the trainings that a session has measured, for charts. Pure.

A night is a session, as in docs/history.md. Only nights of the same series are shown, not those of other hosts or
another graph with the same label.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.history import events
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import ComparabilityCheck, Series

Night = tuple[Series, int]  # a series, and the index of the night's point in it
Change = tuple[Row, Row]  # an event, and its entry for one series
MOST = 60  # nights that are drawn beside a measurement


@dataclass(frozen=True)
class Past:
    """The last nights of a series up to a session."""

    points: Sequence[tuple[str, float]]  # (start of the session, images/sec), the oldest first; the last is the session's own
    began: str = ""  # the start of the first session with the current rate; empty if no change is known
    change: str = ""  # the change as text
    is_disturbed: bool = False  # the session's own rate is not in the series, because it was disturbed


def map_nights(all_series: Iterable[Series]) -> dict[str, list[Night]]:
    """Return for each session its series, with the index of its point in each."""
    found: dict[str, list[Night]] = defaultdict(list)
    for series in all_series:
        for number, point in enumerate(series.points):
            found[point["session"]].append((series, number))
    return found


def make_pasts(nights: Iterable[Night], changes: Mapping[str, Change], rows: Iterable[Row]) -> dict[str, Past]:
    """Return the pasts of a session's measurements by id.

    If a session measured a training several times, each measurement gets the same earlier nights, and its own rate as the last.

    Args:
        nights: The nights of the session.
        changes: The last change of each series.
        rows: The session's measurements that may be compared with other nights.
    """
    found = {_get_key(series.points[number]): make_past(series, number, changes) for series, number in nights}
    mine = {row["id"]: (found[_get_key(row)], row["images_per_sec"]) for row in rows if _get_key(row) in found}
    return {name: replace(past, points=[*past.points[:-1], (past.points[-1][0], own)]) for name, (past, own) in mine.items()}


def make_disturbed_pasts(
    rows: Iterable[Row],
    started: str,
    all_series: Iterable[Series],
    changes: Mapping[str, Change],
    comparable: ComparabilityCheck,
) -> dict[str, Past]:
    """Return the pasts of disturbed measurements, which are not in a series: the nights before their session."""
    known: dict[tuple[str, int], list[tuple[Series, int]]] = defaultdict(list)
    for series in all_series:
        before = sum(point["started"] < started for point in series.points)
        if before:
            known[series.spec_key, series.hosts].append((series, before - 1))
    found = {}
    for row in rows:
        nights = known[row["spec_key"], row["hosts"]]
        mine = [night for night in nights if comparable(night[0].points[night[1]]["fingerprint"], row["fingerprint"])]
        if mine:
            past = make_past(*mine[-1], changes)
            points = [*past.points[1 - MOST :], (started, row["images_per_sec"])]
            found[row["id"]] = replace(past, points=points, is_disturbed=True)
    return found


def _get_key(row: Row) -> tuple[str, int, str]:
    return row["spec_key"], row["hosts"], row["fingerprint"]


def make_past(series: Series, number: int, changes: Mapping[str, Change]) -> Past:
    """Return the past of a series at its point `number`, without later nights and changes."""
    shown = [(point["started"], point["images_per_sec"]) for point in series.points[max(0, number + 1 - MOST) : number + 1]]
    event, member = changes.get(series.name, (None, None))
    if event is None or member is None or event["first_bad_at"] > shown[-1][0]:
        return Past(shown)
    return Past(shown, event["first_bad_at"], events.format_member(event, member))


def find_last_changes(events: Iterable[Row]) -> dict[str, Change]:
    """Return the last confirmed event of each series, with its entry for the series."""
    ordered = sorted((event for event in events if event["state"] == "confirmed"), key=lambda event: event["first_bad_at"])
    return {member["series"]: (event, member) for event in ordered for member in event["members"]}
