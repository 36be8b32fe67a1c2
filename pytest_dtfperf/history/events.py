"""Events: changes of many series that began at the same time, grouped and formatted as text. Pure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pytest_dtfperf.baselines.comparability import describe_notes, describe_replacements
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.formats import NONE, change, format_count, percent, rate
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series
from pytest_dtfperf.stats.changes import RateChange

NEAR = 3  # sessions between the beginnings of a change in two series of one event, at most


@dataclass(frozen=True)
class FoundChange:
    """A change of one series."""

    series: Series
    change: RateChange
    ended: Series | None = None  # of a break: the series before it

    @property
    def first_bad(self) -> Row:
        return self.series.points[self.change.first_bad]

    @property
    def last_good(self) -> Row:
        return (self.ended or self.series).points[self.change.last_good]

    @property
    def found(self) -> Row:
        return self.series.points[self.change.found]


def make_events(
    found: Iterable[FoundChange],
    order: Mapping[str, int],
    fingerprints: Mapping[str, Fingerprint],
    promise: Mapping[str, Any],
) -> list[Row]:
    """Group changes, and return rows of the table of events in the order in which they were found.

    Args:
        found: The changes.
        order: The position of each session, by id.
        fingerprints: The fingerprints by digest.
        promise: The limit of false events.
    """
    groups: list[list[FoundChange]] = []
    for each in sorted(found, key=lambda each: order[each.first_bad["session"]]):
        group = next((group for group in reversed(groups) if _belongs_to(each, group, order)), None)
        if group is None:
            groups.append([each])
        else:
            group.append(each)
    groups.sort(key=lambda group: min(order[each.found["session"]] for each in group))
    return number_events([_make_event(group, order, fingerprints, promise) for group in groups], order)


def number_events(events: Iterable[Row], order: Mapping[str, int]) -> list[Row]:
    """Return events with their numbers, in the order in which they were found."""
    ordered = sorted(events, key=lambda event: order[event["found"]])
    return [{**event, "id": number} for number, event in enumerate(ordered, start=1)]


def _belongs_to(each: FoundChange, group: Sequence[FoundChange], order: Mapping[str, int]) -> bool:
    """Return whether a change has the time, direction and kind of a group that has no other change of its series."""
    first = group[0]
    distance = abs(order[each.first_bad["session"]] - order[first.first_bad["session"]])
    alike = each.change.is_reverted == first.change.is_reverted and each.change.size * first.change.size > 0
    alike = alike and (each.ended is None) == (first.ended is None)
    return distance <= NEAR and alike and all(each.series is not other.series for other in group)


def _make_event(
    group: Sequence[FoundChange],
    order: Mapping[str, int],
    fingerprints: Mapping[str, Fingerprint],
    promise: Mapping[str, Any],
) -> Row:
    """Return the row of an event, with the sessions that most of its series have."""
    found = min((each.found for each in group), key=lambda row: order[row["session"]])
    bad = statistics.mode(each.first_bad["session"] for each in group)
    typical = next(each for each in group if each.first_bad["session"] == bad)
    good = typical.last_good
    return {
        "kind": statistics.mode(each.change.kind for each in group),
        "state": "reverted" if group[0].change.is_reverted else "confirmed",
        "found": found["session"],
        "found_at": found["started"],
        "last_good": good["session"],
        "last_good_at": good["started"],
        "first_bad": bad,
        "first_bad_at": typical.first_bad["started"],
        "members": [_make_member(each) for each in sorted(group, key=lambda each: each.change.size)],
        "differences": _find_differences(group, fingerprints),
        "promise": dict(promise),
    }


def _make_member(each: FoundChange) -> dict[str, Any]:
    """Return the entry of a series in an event. Sizes are fractions of the rate before."""
    change = each.change
    return {
        "series": each.series.name,
        "label": each.series.label,
        "system": each.series.system,
        "kind": change.kind,
        "change": math.expm1(change.size),
        "low": math.expm1(change.low),
        "high": math.expm1(change.high),
        "first_bad": each.first_bad["session"],
        "last_good": each.last_good["session"],
        **({"host": each.series.host, "cluster": each.series.points[-1]["cluster"]} if each.series.host else {}),
    }


def is_of_hosts(event: Row) -> bool:
    """Return whether an event is a change of readings of hosts, not of a training's rate."""
    return any("host" in member for member in event["members"])


def _find_differences(group: Sequence[FoundChange], fingerprints: Mapping[str, Fingerprint]) -> list[str]:
    """Return the differences between the last session before the change and the first one after it.

    They are candidate causes. Differences that ended a series come first.
    """
    found: dict[str, None] = {}
    for each in group:
        contents = (fingerprints[each.last_good["fingerprint"]], fingerprints[each.first_bad["fingerprint"]])
        found |= dict.fromkeys(describe_replacements(*contents) if each.ended else [])
    for each in group:
        then, now = each.last_good, each.first_bad
        found |= dict.fromkeys(describe_notes(fingerprints[then["fingerprint"]], fingerprints[now["fingerprint"]]))
        versions = sorted({*then["versions"], *now["versions"]})
        for name in versions:
            before, after = then["versions"].get(name), now["versions"].get(name)
            if before != after:
                found[f"{name} {before or 'none'} -> {after or 'none'}"] = None
        if then["commit"] != now["commit"]:
            found[f"commit {(then['commit'] or 'unknown')[:12]} -> {(now['commit'] or 'unknown')[:12]}"] = None
    return list(found)


def compute_size(event: Row) -> tuple[float, float, float]:
    """Return the lower end, the middle and the upper end of the change as fractions: medians of its series."""
    members = event["members"]
    low, middle, high = (statistics.median(member[name] for member in members) for name in ("low", "change", "high"))
    return low, middle, high


BREAK = "break"  # the kind of an event with which one series ended and another began
MOST = 5  # events at a session's end; `dtfperf history changes` has all
MOST_HOSTS = 3  # of an event that has their names; with more, only their number
MOST_CAUSES = 4  # of an event, on one line
UNKNOWN = "the drift of rates without a change is not known yet: until then, only larger changes are found"


def format_event(event: Row, today: datetime | None = None) -> str:
    """Return a line: `since 12 March: -2.1 % (-2.6 % to -1.6 %) in 24 series; also changed: tensorflow 2.20.0 -> 2.21.0`."""
    members = event["members"]
    subject = members[0]["label"] if len(members) == 1 else f"in {_count_series(members)}"
    size = _format_size(event["kind"], *compute_size(event))
    return f"since {format_day(event['first_bad_at'], today)}: {size} {subject}{_format_causes(event)}"


def _count_series(members: Sequence[Mapping[str, Any]]) -> str:
    """Return the number of series: `24 series`, or `3 readings of nid00017`."""
    hosts = list(dict.fromkeys(member["host"] for member in members if "host" in member))
    if not hosts:
        return f"{len(members)} series"
    named = ", ".join(hosts) if len(hosts) <= MOST_HOSTS else format_count(len(hosts), "host")
    return f"{len(members)} readings of {named}"


def format_member(event: Row, member: Mapping[str, Any], today: datetime | None = None) -> str:
    """Return the line of one series: `since 12 March 2026: -2.3 % (-2.9 % to -1.7 %); also changed: ...`."""
    size = _format_size(member["kind"], member["low"], member["change"], member["high"])
    return f"since {format_day(event['first_bad_at'], today)}: {size}{_format_causes(event)}"


def _format_size(kind: str, low: float, middle: float, high: float) -> str:
    prefix = "drifting by now " if kind == "drift" else ""
    return f"{prefix}{change(middle)} ({change(low)} to {change(high)})"


def _format_causes(event: Row) -> str:
    """Format the other differences. For a break, these include what ended the series before it."""
    causes = event["differences"]
    more = f"; and {len(causes) - MOST_CAUSES} more" if len(causes) > MOST_CAUSES else ""
    begin = ", with" if event["kind"] == BREAK else "; also changed:"
    return f"{begin} {'; '.join(causes[:MOST_CAUSES])}{more}" if causes else ""


def format_day(started: str, today: datetime | None = None) -> str:
    """Format a date: `12 March`, with the year if `today` is unknown or in another year."""
    began = datetime.fromisoformat(started)
    return f"{began.day} {began:%B}" + (f" {began.year}" if today is None or began.year != today.year else "")


def format_summary(events: Sequence[Row], new: Sequence[Row], today: datetime) -> list[str]:
    """Return a line for each event: new ones first, then confirmed ones, the latest first."""
    known = [event for event in reversed(events) if event["state"] == "confirmed" and event not in new]
    lines = [f"NEW {format_event(event, today)}" for event in new] + [format_event(event, today) for event in known]
    more = [f"and {format_count(len(lines) - MOST, 'earlier change')}: dtfperf history changes"] if len(lines) > MOST else []
    return [*lines[:MOST], *more]


def format_promise(promise: dict[str, Any], *, is_known: bool) -> str:
    """Return the limit of false events, and whether it already applies."""
    horizon = f"at most {percent(promise['share'])} of all stretches of {promise['nights']} nights"
    text = f"Limit: {horizon} have any false event, over {promise['series']} series together"
    return text if is_known else f"{text}; {UNKNOWN}"


def make_measurement_cells(row: Row) -> list[str]:
    """Return the cells of a measurement's row: label, rate, runs, efficiency, baseline, change, verdict."""
    return [
        row["label"],
        rate(row["images_per_sec"]),
        str(row["runs"]),
        NONE if row["efficiency"] is None else percent(row["efficiency"]),
        NONE if row["baseline"] is None else rate(row["baseline"]),
        NONE if row["change"] is None else change(row["change"]),
        row["verdict"] or NONE,
    ]
