"""How the rates of one training went, on each system that it was measured on. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pytest_dtfperf.baselines.comparability import must_match
from pytest_dtfperf.formats import NONE, change, counted, minute, percent, rate
from pytest_dtfperf.history import words
from pytest_dtfperf.history.past import Change
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series, Successions
from pytest_dtfperf.report.page import figures
from pytest_dtfperf.report.page.view import Fact, Standing
from pytest_dtfperf.report.site import names
from pytest_dtfperf.report.site.chart import Chart, ChangeMark, Night, draw_chart
from pytest_dtfperf.report.site.overview import get_direction
from pytest_dtfperf.stats.intervals import half_widths

MOST_NIGHTS, LEAST_NIGHTS = 1500, 60  # on a page, and of a series where many share it
MOST_SERIES = 20  # on a page

Contents = Mapping[str, Mapping[str, Any]]  # of fingerprints, by their digests


@dataclass(frozen=True)
class ChangeStart:
    """A change, as it is marked in the chart."""

    name: str
    direction: Standing
    words: str
    first_bad: str  # names of pages, from the site's first
    last_good: str


@dataclass(frozen=True)
class NightRow:
    """A night in numbers."""

    href: str
    started: str
    rate: str
    interval: str
    runs: int
    baseline: str
    verdict: str


@dataclass(frozen=True)
class TrainingPart:
    """One series."""

    anchor: str
    title: str
    facts: Sequence[Fact]
    chart: Chart
    begun: Sequence[ChangeStart]
    nights: Sequence[NightRow]  # the latest first
    left_out: str


@dataclass(frozen=True)
class TrainingView:
    """A page."""

    label: str
    key: str
    words: str
    parts: Sequence[TrainingPart]
    left_out: str


def make_training_view(all_series: Sequence[Series], events: Mapping[str, Sequence[Change]], contents: Contents) -> TrainingView:
    """`all_series`: of this one training; `events`: by series, those that hold, the oldest first."""
    ordered = sorted(all_series, key=lambda series: series.points[-1]["started"], reverse=True)
    shown = ordered[:MOST_SERIES]
    most = max(LEAST_NIGHTS, MOST_NIGHTS // len(shown))
    left_out = len(ordered) - len(shown)
    systems = len({series.system for series in ordered})
    return TrainingView(
        label=ordered[0].label,
        key=ordered[0].spec_key,
        words=f"{counted(len(ordered), 'series', '')} on {counted(systems, 'system')}",
        parts=[make_training_part(each, events.get(each.name, ()), _find_predecessor(each, ordered), contents, most) for each in shown],
        left_out=f"{left_out} more series, which were measured longer ago: dtfperf history trend" if left_out else "",
    )


def _find_predecessor(series: Series, others: Iterable[Series]) -> Series | None:
    """The one that it took the place of: on the same system, and over when it began."""
    began = series.points[0]["started"]
    earlier = [
        each
        for each in others
        if (each.system, each.hosts) == (series.system, series.hosts) and each.points[-1]["started"] < began
    ]
    return max(earlier, key=lambda each: each.points[-1]["started"], default=None)


def make_training_part(series: Series, events: Sequence[Change], before: Series | None, contents: Contents, most: int) -> TrainingPart:
    points = series.points[-most:]
    halves = half_widths([(point["runs"], point["spread"]) for point in points])
    nights = [_make_night(point, half) for point, half in zip(points, halves, strict=True)]
    begun = [_make_change_start(str(number), event, member) for number, (event, member) in enumerate(events, start=1)]
    marks = [ChangeMark(_parse_time_s(event["first_bad_at"]), str(number)) for number, (event, _) in enumerate(events, start=1)]
    described = (
        figures.describe_trend([(point["started"], point["images_per_sec"]) for point in points])
        if len(points) > 1
        else f"one session, {rate(points[0]['images_per_sec'])} images/sec"
    )
    described += f"; {counted(len(begun), 'change')}" if begun else ""
    left_out = len(series.points) - len(points)
    rows = [_make_night_row(point, night) for point, night in zip(points, nights, strict=True)]
    return TrainingPart(
        anchor=series.name,
        title=f"{series.system}, {counted(series.hosts, 'host')}",
        facts=_list_facts(series, begun, before, contents),
        chart=draw_chart(nights, marks, described),
        begun=begun,
        nights=rows[::-1],
        left_out=f"{counted(left_out, 'earlier night')}: dtfperf history export" if left_out else "",
    )


def _list_facts(series: Series, begun: Sequence[ChangeStart], before: Series | None, contents: Contents) -> list[Fact]:
    first, last = series.points[0], series.points[-1]
    why = must_match(contents[before.points[-1]["fingerprint"]], contents[first["fingerprint"]]) if before else []
    begin = Successions([before, series], contents).begin(series) if before else None
    against = last["baseline"]
    change_words = f" ({change(last['change'])} against {rate(against)})" if against else ""
    facts = [
        Fact("last", f"{rate(last['images_per_sec'])} images/sec on {minute(last['started'])}{change_words}"),
        Fact("nights", f"{len(series.points)}, since {minute(first['started'])}"),
        Fact("last change", begun[-1].words if begun else "none is known"),
        Fact("noise", _format_noise(last)),
        Fact("a new series because of", "; ".join(why)),
        Fact("it began", str(begin) if begin else ""),
    ]
    return [fact for fact in facts if fact.text]


def _format_noise(last: Row) -> str:
    if not last["noise_run"]:
        return ""
    sessions = f", {percent(last['noise_session'])} from session to session" if last["noise_session"] else ""
    return f"{percent(last['noise_run'])} from run to run{sessions}, as calibrated with its baseline"


def _make_night(point: Row, half: float | None) -> Night:
    """Its interval is that of the geometric mean of its runs; the dot is their median, as everywhere."""
    middle = point["mean_log"]
    low, high = (None, None) if half is None else (math.exp(middle - half), math.exp(middle + half))
    return Night(_parse_time_s(point["started"]), point["images_per_sec"], low, high, point["baseline"])


def _make_night_row(point: Row, night: Night) -> NightRow:
    known = night.low is not None and night.high is not None
    return NightRow(
        href=names.make_session_page_name(point["session"]),
        started=minute(point["started"]),
        rate=rate(point["images_per_sec"]),
        interval=f"{rate(night.low)} to {rate(night.high)}" if known and night.low and night.high else NONE,
        runs=point["runs"],
        baseline=rate(point["baseline"]) if point["baseline"] else NONE,
        verdict=point["verdict"] or NONE,
    )


def _make_change_start(name: str, event: Row, member: Row) -> ChangeStart:
    return ChangeStart(
        name=name,
        direction=get_direction(member["change"]),
        words=words.line_of_member(event, member),
        first_bad=names.make_session_page_name(member["first_bad"]),
        last_good=names.make_session_page_name(member["last_good"]),
    )


def _parse_time_s(started: str) -> float:
    return datetime.fromisoformat(started).timestamp()
