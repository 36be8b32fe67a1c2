"""Events as text, a line each: the lines at a session's end and in the morning's report. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pytest_dtfperf.formats import NONE, change, format_count, percent, rate
from pytest_dtfperf.history.events import size_of
from pytest_dtfperf.history.rows import Row

BREAK = "break"  # the kind of an event with which one series ended and another began
MOST = 5  # events at a session's end; `dtfperf history changes` has all
MOST_CAUSES = 4  # of an event, on one line
UNKNOWN = "how slowly rates wander without a change is not known yet: until then, only larger changes are found"


def line_of(event: Row, today: datetime | None = None) -> str:
    """`since 12 March: -2.1 % (-2.6 % to -1.6 %) in 24 series; meanwhile tensorflow 2.20.0 -> 2.21.0`."""
    members = event["members"]
    of = members[0]["label"] if len(members) == 1 else f"in {len(members)} series"
    size = _size(event["kind"], *size_of(event))
    return f"since {day_of(event['first_bad_at'], today)}: {size} {of}{_causes(event)}"


def line_of_member(event: Row, member: Mapping[str, Any], today: datetime | None = None) -> str:
    """Return the line of one series: `since 12 March 2026: -2.3 % (-2.9 % to -1.7 %); meanwhile ...`."""
    size = _size(member["kind"], member["low"], member["change"], member["high"])
    return f"since {day_of(event['first_bad_at'], today)}: {size}{_causes(event)}"


def _size(kind: str, low: float, middle: float, high: float) -> str:
    how = "drifting by now " if kind == "drift" else ""
    return f"{how}{change(middle)} ({change(low)} to {change(high)})"


def _causes(event: Row) -> str:
    """Format what else changed; a break has what ended the series before it."""
    causes = event["differences"]
    more = f"; and {len(causes) - MOST_CAUSES} more" if len(causes) > MOST_CAUSES else ""
    how = ", with" if event["kind"] == BREAK else "; meanwhile"
    return f"{how} {'; '.join(causes[:MOST_CAUSES])}{more}" if causes else ""


def day_of(started: str, today: datetime | None = None) -> str:
    """`12 March`, with the year where it is another, or where `today` is not known, as of what is read years later."""
    began = datetime.fromisoformat(started)
    return f"{began.day} {began:%B}" + (f" {began.year}" if today is None or began.year != today.year else "")


def summary(events: Sequence[Row], new: Sequence[Row], today: datetime) -> list[str]:
    """The new ones first, then what still holds, the latest first."""
    known = [event for event in reversed(events) if event["state"] == "confirmed" and event not in new]
    lines = [f"NEW {line_of(event, today)}" for event in new] + [line_of(event, today) for event in known]
    more = [f"and {format_count(len(lines) - MOST, 'earlier change')}: dtfperf history changes"] if len(lines) > MOST else []
    return [*lines[:MOST], *more]


def promise_of(promise: dict[str, Any], *, is_known: bool) -> str:
    """Return what is promised, and whether it can be kept already."""
    horizon = f"at most {percent(promise['share'])} of all stretches of {promise['nights']} nights"
    words = f"Promised: {horizon} have any false event, over {promise['series']} series together"
    return words if is_known else f"{words}; {UNKNOWN}"


def measurement_cells(row: Row) -> list[str]:
    """Return the cells of a measurement's row: what was trained, rate, runs, efficiency, baseline, change, verdict."""
    return [
        row["label"],
        rate(row["images_per_sec"]),
        str(row["runs"]),
        NONE if row["efficiency"] is None else percent(row["efficiency"]),
        NONE if row["baseline"] is None else rate(row["baseline"]),
        NONE if row["change"] is None else change(row["change"]),
        row["verdict"] or NONE,
    ]
