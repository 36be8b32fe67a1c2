"""How the rates that a session has measured went before it, to be drawn. Pure.

What is shown beside a measurement are nights of its series: neither other hosts nor another graph under the same label.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.history import events
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Comparable, Series

Night = tuple[Series, int]  # a point of a series, by its number
Change = tuple[Row, Row]  # an event, and its part about one series
MOST = 60  # nights that are drawn beside a measurement


@dataclass(frozen=True)
class Past:
    """A series up to one session, in its last nights."""

    points: Sequence[tuple[str, float]]  # (when its session began, images/sec), the oldest first; the last is the session's own
    began: str = ""  # when the first session of its present rate began; nothing: no change is known
    change: str = ""  # the same change as text
    is_disturbed: bool = False  # the session's own rate is none of the series: something disturbed it


def nights_of(all_series: Iterable[Series]) -> dict[str, list[Night]]:
    """By the ids of sessions: in which series each has a night, and which."""
    found: dict[str, list[Night]] = defaultdict(list)
    for series in all_series:
        for number, point in enumerate(series.points):
            found[point["session"]].append((series, number))
    return found


def pasts_of(nights: Iterable[Night], changes: Mapping[str, Change], rows: Iterable[Row]) -> dict[str, Past]:
    """Return pasts by the ids of a session's measurements; `rows` are those that may be compared with other nights.

    What a session measures twice belongs to one series, and both are shown with that.
    """
    found = {_key(series.points[number]): past_of(series, number, changes) for series, number in nights}
    mine = {row["id"]: (found[_key(row)], row["images_per_sec"]) for row in rows if _key(row) in found}
    return {name: replace(past, points=[*past.points[:-1], (past.points[-1][0], own)]) for name, (past, own) in mine.items()}


def pasts_of_disturbed(
    rows: Iterable[Row], started: str, all_series: Iterable[Series], changes: Mapping[str, Change], comparable: Comparable
) -> dict[str, Past]:
    """The same of measurements that would belong to a series, had nothing disturbed them: its nights before their session."""
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
            past = past_of(*mine[-1], changes)
            points = [*past.points[1 - MOST :], (started, row["images_per_sec"])]
            found[row["id"]] = replace(past, points=points, is_disturbed=True)
    return found


def _key(row: Row) -> tuple[str, int, str]:
    return row["spec_key"], row["hosts"], row["fingerprint"]


def past_of(series: Series, number: int, changes: Mapping[str, Change]) -> Past:
    """Return the past of a series at its point `number`: what came later, changes too, is none of it."""
    shown = [(point["started"], point["images_per_sec"]) for point in series.points[max(0, number + 1 - MOST) : number + 1]]
    event, member = changes.get(series.name, (None, None))
    if event is None or member is None or event["first_bad_at"] > shown[-1][0]:
        return Past(shown)
    return Past(shown, event["first_bad_at"], events.line_of_member(event, member))


def last_changes(events: Iterable[Row]) -> dict[str, Change]:
    """Return by series the last event that still holds, and its entry for the series."""
    ordered = sorted((event for event in events if event["state"] == "confirmed"), key=lambda event: event["first_bad_at"])
    return {member["series"]: (event, member) for event in ordered for member in event["members"]}
