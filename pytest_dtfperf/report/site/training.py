"""The page of one training: its rates over time on each system, as chart and table.

Rates are drawn in an inner SVG of SIDE x SIDE units, stretched to the available room. Lines keep their width, and a script
zooms by showing fewer units. Text must not be stretched, and is placed in percent beside it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from pytest_dtfperf.baselines.comparability import list_forbidden_differences
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.formats import NONE, change, format_count, minute, percent, rate
from pytest_dtfperf.history import events
from pytest_dtfperf.history.past import Change
from pytest_dtfperf.history.rows import Row
from pytest_dtfperf.history.series import Series, Successions
from pytest_dtfperf.report.page import html
from pytest_dtfperf.report.page.html import Fact, Standing, make_element
from pytest_dtfperf.report.site import files
from pytest_dtfperf.report.site.overview import get_direction
from pytest_dtfperf.stats.noise import compute_half_widths

SIDE = 1000
EDGE = 20.0  # units left and right of the first and the last night
HEAD = 60.0  # above the highest point, for the numbers of changes
LEAST_RANGE = 0.02  # of the axis, as a fraction of the rates: noise of 0.1 % must not look large
X_LABELS, Y_TICKS = 5, 5


@dataclass(frozen=True)
class NightPoint:
    """One point of the chart."""

    at: float  # seconds since 1970
    rate: float
    low: float | None  # of the interval; None: unknown
    high: float | None
    baseline: float | None


@dataclass(frozen=True)
class ChangeMark:
    """The start of a change."""

    at: float
    name: str


@dataclass(frozen=True)
class Chart:
    """The drawing with its axes."""

    plot: Markup
    below: Markup  # the axis of time
    left: Markup  # the axis of rates
    begin: float  # seconds since 1970 at the left and right ends
    end: float
    has_intervals: bool
    has_baseline: bool


def draw_chart(nights: Sequence[NightPoint], marks: Sequence[ChangeMark], described: str) -> Chart:
    """Draw a chart. `nights`: at least one, the oldest first."""
    time = _Scale.of_time(nights[0].at, nights[-1].at)
    values = _make_rate_scale(nights)
    shown = [mark for mark in marks if time.begin <= mark.at <= time.end]
    has_intervals = any(night.low is not None for night in nights)
    has_baseline = any(night.baseline is not None for night in nights)
    inner = make_element(
        "svg",
        *(_make_path(_draw_intervals(nights, time, values), "intervals") if has_intervals else ()),
        *(_make_path(_draw_baseline(nights, time, values), "baseline") if has_baseline else ()),
        *_make_path("".join(f"M{time(mark.at):.1f},0V{SIDE}" for mark in shown), "marks"),
        make_element(
            "polyline", class_="rate", points=" ".join(f"{time(n.at):.1f},{values.invert(n.rate):.1f}" for n in nights)
        ),
        *_make_path("".join(f"M{time(n.at):.1f},{values.invert(n.rate):.1f}h0" for n in nights), "nights"),
        class_="zoomed", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", width="100%", height="100%",
    )  # fmt: skip
    ticks = values.ticks()
    lines = [
        make_element("line", x2="100%", y1=_format_units(values.invert(tick)), y2=_format_units(values.invert(tick)))
        for tick in ticks
    ]
    names = [_make_text(mark.name, _format_units(time(mark.at)), "1em", class_="mark") for mark in shown]
    plot = make_element("svg", make_element("title", described), *lines, inner, *names, class_="plot", role="img")
    left = [_make_text(rate(tick), "100%", _format_units(values.invert(tick)), dy=".35em") for tick in ticks]
    dates = [
        (SIDE * i / (X_LABELS - 1), "start" if i == 0 else "end" if i == X_LABELS - 1 else "middle") for i in range(X_LABELS)
    ]
    below = [_make_text(_format_day(time.back(at)), _format_units(at), "1em", text_anchor=anchor) for at, anchor in dates]
    return Chart(
        plot=plot,
        below=make_element("svg", *below, class_="below", aria_hidden="true"),
        left=make_element("svg", *left, class_="left", aria_hidden="true"),
        begin=time.back(0.0),
        end=time.back(float(SIDE)),
        has_intervals=has_intervals,
        has_baseline=has_baseline,
    )


@dataclass(frozen=True)
class _Scale:
    """A scale from values to units, and back."""

    begin: float
    end: float
    edges: tuple[float, float]  # units before `begin` and after `end`

    @classmethod
    def of_time(cls, first: float, last: float) -> "_Scale":
        if first == last:
            first, last = first - 43200.0, last + 43200.0  # a single night is in the middle of a day
        return cls(first, last, (EDGE, EDGE))

    def __call__(self, value: float) -> float:
        room = SIDE - sum(self.edges)
        return self.edges[0] + room * (value - self.begin) / (self.end - self.begin)

    def invert(self, value: float) -> float:
        """Return units from the top, limited to the drawing."""
        return min(max(SIDE - self(value), 0.0), float(SIDE))

    def back(self, units: float) -> float:
        room = SIDE - sum(self.edges)
        return self.begin + (self.end - self.begin) * (units - self.edges[0]) / room

    def ticks(self) -> list[float]:
        """Return round values, about Y_TICKS."""
        step = _round_step((self.end - self.begin) / Y_TICKS)
        first = math.ceil(self.begin / step)
        return [step * n for n in range(first, math.floor(self.end / step) + 1)]


def _make_rate_scale(nights: Sequence[NightPoint]) -> _Scale:
    """Return a scale for all rates and baselines, and for intervals unless they are much wider."""
    values = [night.rate for night in nights] + [night.baseline for night in nights if night.baseline is not None]
    low, high = min(values), max(values)
    wider = (high - low) or LEAST_RANGE * high
    low = max(low - wider, min([low, *(night.low for night in nights if night.low is not None)]))
    high = min(high + wider, max([high, *(night.high for night in nights if night.high is not None)]))
    missing = max(0.0, LEAST_RANGE * high - (high - low)) / 2
    return _Scale(low - missing, high + missing, (EDGE, HEAD + EDGE))


def _round_step(least: float) -> float:
    """Return 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _draw_intervals(nights: Iterable[NightPoint], time: _Scale, values: _Scale) -> str:
    return "".join(
        f"M{time(night.at):.1f},{values.invert(night.high):.1f}V{values.invert(night.low):.1f}"
        for night in nights
        if night.low is not None and night.high is not None
    )


def _draw_baseline(nights: Sequence[NightPoint], time: _Scale, values: _Scale) -> str:
    """Return a path of each baseline from its night to the next, with gaps where there is none."""
    parts, before = [], None
    for night, after in zip(nights, [*nights[1:], None], strict=True):
        if night.baseline is None:
            before = None
            continue
        y = values.invert(night.baseline)
        begin = "V" if before is not None else f"M{time(night.at):.1f},"
        end = time(after.at) if after else time(night.at) + (EDGE if len(nights) > 1 else SIDE / 4)
        parts += [*([] if before == night.baseline else [f"{begin}{y:.1f}"]), f"H{end:.1f}"]
        before = night.baseline
    return "".join(parts)


def _make_path(drawn: str, name: str) -> list[Markup]:
    return [make_element("path", d=drawn, class_=name)] if drawn else []


def _make_text(text: str, x: str, y: str, **attributes: str) -> Markup:
    return make_element("text", text, x=x, y=y, **attributes)


def _format_units(units: float) -> str:
    return f"{units / SIDE * 100:.2f}".rstrip("0").rstrip(".") + "%"


def _format_day(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d}"


MOST_NIGHTS, LEAST_NIGHTS = 1500, 60  # on a page, and per series if many share it
MOST_SERIES = 20  # on a page

Contents = Mapping[str, Fingerprint]  # of fingerprints, by their digests


@dataclass(frozen=True)
class ChangeStart:
    """The start of a change in the chart."""

    name: str
    direction: Standing
    summary: str
    first_bad: str  # names of pages, relative to the site's first page
    last_good: str


@dataclass(frozen=True)
class NightRow:
    """A night as numbers."""

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
    """The page of a training."""

    label: str
    key: str
    summary: str
    parts: Sequence[TrainingPart]
    left_out: str


def make_training_view(
    all_series: Sequence[Series], events: Mapping[str, Sequence[Change]], contents: Contents
) -> TrainingView:
    """Return the view of one training. `events`: by series, the confirmed ones, the oldest first."""
    ordered = sorted(all_series, key=lambda series: series.points[-1]["started"], reverse=True)
    shown = ordered[:MOST_SERIES]
    most = max(LEAST_NIGHTS, MOST_NIGHTS // len(shown))
    left_out = len(ordered) - len(shown)
    systems = len({series.system for series in ordered})
    return TrainingView(
        label=ordered[0].label,
        key=ordered[0].spec_key,
        summary=f"{format_count(len(ordered), 'series', '')} on {format_count(systems, 'system')}",
        parts=[
            make_training_part(each, events.get(each.name, ()), _find_predecessor(each, ordered), contents, most)
            for each in shown
        ],
        left_out=f"{left_out} more series, which were measured longer ago: dtfperf history trend" if left_out else "",
    )


def _find_predecessor(series: Series, others: Iterable[Series]) -> Series | None:
    """Return the series on the same system that ended before this one began."""
    began = series.points[0]["started"]
    earlier = [
        each
        for each in others
        if (each.system, each.hosts) == (series.system, series.hosts) and each.points[-1]["started"] < began
    ]
    return max(earlier, key=lambda each: each.points[-1]["started"], default=None)


def make_training_part(
    series: Series, events: Sequence[Change], before: Series | None, contents: Contents, most: int
) -> TrainingPart:
    points = series.points[-most:]
    halves = compute_half_widths([(point["runs"], point["spread"]) for point in points])
    nights = [_make_night(point, half) for point, half in zip(points, halves, strict=True)]
    begun = [_make_change_start(str(number), event, member) for number, (event, member) in enumerate(events, start=1)]
    marks = [ChangeMark(_parse_time_s(event["first_bad_at"]), str(number)) for number, (event, _) in enumerate(events, start=1)]
    described = (
        html.describe_trend([(point["started"], point["images_per_sec"]) for point in points])
        if len(points) > 1
        else f"one session, {rate(points[0]['images_per_sec'])} images/sec"
    )
    described += f"; {format_count(len(begun), 'change')}" if begun else ""
    left_out = len(series.points) - len(points)
    rows = [_make_night_row(point, night) for point, night in zip(points, nights, strict=True)]
    return TrainingPart(
        anchor=series.name,
        title=f"{series.system}, {format_count(series.hosts, 'host')}",
        facts=_list_facts(series, begun, before, contents),
        chart=draw_chart(nights, marks, described),
        begun=begun,
        nights=rows[::-1],
        left_out=f"{format_count(left_out, 'earlier night')}: dtfperf history export" if left_out else "",
    )


def _list_facts(series: Series, begun: Sequence[ChangeStart], before: Series | None, contents: Contents) -> list[Fact]:
    first, last = series.points[0], series.points[-1]
    why = (
        list_forbidden_differences(contents[before.points[-1]["fingerprint"]], contents[first["fingerprint"]]) if before else []
    )
    begin = Successions([before, series], contents).begin(series) if before else None
    against = last["baseline"]
    change_words = f" ({change(last['change'])} against {rate(against)})" if against else ""
    facts = [
        Fact("last", f"{rate(last['images_per_sec'])} images/sec on {minute(last['started'])}{change_words}"),
        Fact("nights", f"{len(series.points)}, since {minute(first['started'])}"),
        Fact("last change", begun[-1].summary if begun else "none is known"),
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


def _make_night(point: Row, half: float | None) -> NightPoint:
    """Return a point: the median of the runs, with the interval of their geometric mean."""
    middle = point["mean_log"]
    low, high = (None, None) if half is None else (math.exp(middle - half), math.exp(middle + half))
    return NightPoint(_parse_time_s(point["started"]), point["images_per_sec"], low, high, point["baseline"])


def _make_night_row(point: Row, night: NightPoint) -> NightRow:
    known = night.low is not None and night.high is not None
    return NightRow(
        href=files.make_session_page_name(point["session"]),
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
        summary=events.format_member(event, member),
        first_bad=files.make_session_page_name(member["first_bad"]),
        last_good=files.make_session_page_name(member["last_good"]),
    )


def _parse_time_s(started: str) -> float:
    return datetime.fromisoformat(started).timestamp()
