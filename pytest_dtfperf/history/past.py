"""How the rates that a session has measured went before it, for whoever draws them. Pure.

What is shown beside a measurement are nights of its series: neither other hosts nor another graph under the same label.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_dtfperf.history import words
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series


@dataclass(frozen=True)
class Past:
    """A series up to one session."""

    points: Sequence[tuple[str, float]]  # (when its session began, images/sec), the oldest first; the last is the session's own
    began: str = ""  # when the first session of its present rate began; nothing: no change is known
    change: str = ""  # the same change in words


def pasts_of(session: str, all_series: Iterable[Series], events: Iterable[Row], rows: Iterable[Row]) -> dict[str, Past]:
    """By the ids of the session's measurements; `rows` are those of them that may be compared with other nights.

    What a session measures twice belongs to one series, and both are shown with that.
    """
    changes = last_changes(events)
    found: dict[tuple[str, int, str], Past] = {}
    for series in all_series:
        number = next((i for i, point in enumerate(series.points) if point["session"] == session), None)
        if number is not None:
            points = series.points[: number + 1]
            found[_key(points[-1])] = past_of(series.name, points, changes)
    mine = {row["id"]: (found[_key(row)], row["images_per_sec"]) for row in rows if _key(row) in found}
    return {name: replace(past, points=[*past.points[:-1], (past.points[-1][0], own)]) for name, (past, own) in mine.items()}


def _key(row: Row) -> tuple[str, int, str]:
    return row["spec_key"], row["hosts"], row["fingerprint"]


def past_of(name: str, points: Sequence[Row], changes: Mapping[str, tuple[Row, Row]]) -> Past:
    """Of the series `name` at the last of `points`: a change that began later is none of its past."""
    event, member = changes.get(name, (None, None))
    shown = [(point["started"], point["images_per_sec"]) for point in points]
    if event is None or member is None or event["first_bad_at"] > points[-1]["started"]:
        return Past(shown)
    return Past(shown, event["first_bad_at"], words.line_of_member(event, member))


def last_changes(events: Iterable[Row]) -> dict[str, tuple[Row, Row]]:
    """By series: the last event that still holds, and what that says of the series."""
    ordered = sorted((event for event in events if event["state"] == "confirmed"), key=lambda event: event["first_bad_at"])
    return {member["series"]: (event, member) for event in ordered for member in event["members"]}
