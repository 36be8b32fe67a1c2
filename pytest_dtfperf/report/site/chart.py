"""Rates of one series over time, as SVG that takes its colours from the page's style. Values in, markup out.

Rates lie in a drawing of their own within the drawing, of SIDE x SIDE units that are stretched to the room there is: lines keep
their width, and a script zooms by showing fewer of these units. What must not be stretched, words, stands in percent beside it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup

from pytest_dtfperf.formats import rate
from pytest_dtfperf.report.page.figures import make_element

SIDE = 1000
EDGE = 20.0  # units left and right of the first and the last night
HEAD = 60.0  # above the highest, for the numbers of changes
LEAST_RANGE = 0.02  # of the axis, as a fraction of the rates: noise of a per mille must not look like a mountain
X_LABELS, Y_TICKS = 5, 5


@dataclass(frozen=True)
class Night:
    """One point."""

    at: float  # seconds since 1970
    rate: float
    low: float | None  # of the interval; None: not known
    high: float | None
    baseline: float | None


@dataclass(frozen=True)
class ChangeMark:
    """Where a change began."""

    at: float
    name: str


@dataclass(frozen=True)
class Chart:
    """The drawing with its axes."""

    plot: Markup
    below: Markup  # the axis of time
    left: Markup  # the axis of rates
    begin: float  # seconds since 1970 at the left end, and at the right
    end: float
    has_intervals: bool
    has_baseline: bool


def draw_chart(nights: Sequence[Night], marks: Sequence[ChangeMark], described: str) -> Chart:
    """`nights`: at least one, the oldest first."""
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
        make_element("polyline", points=" ".join(f"{time(n.at):.1f},{values.down(n.rate):.1f}" for n in nights), class_="rate"),
        *_make_path("".join(f"M{time(n.at):.1f},{values.down(n.rate):.1f}h0" for n in nights), "nights"),
        class_="zoomed", viewBox=f"0 0 {SIDE} {SIDE}", preserveAspectRatio="none", width="100%", height="100%",
    )  # fmt: skip
    ticks = values.ticks()
    lines = [make_element("line", x2="100%", y1=_format_units(values.down(tick)), y2=_format_units(values.down(tick))) for tick in ticks]
    names = [_make_text(mark.name, _format_units(time(mark.at)), "1em", class_="mark") for mark in shown]
    plot = make_element("svg", make_element("title", described), *lines, inner, *names, class_="plot", role="img")
    left = [_make_text(rate(tick), "100%", _format_units(values.down(tick)), dy=".35em") for tick in ticks]
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
    """From values to units, and back."""

    begin: float
    end: float
    edges: tuple[float, float]  # units before `begin` and behind `end`

    @classmethod
    def of_time(cls, first: float, last: float) -> "_Scale":
        if first == last:
            first, last = first - 43200.0, last + 43200.0  # a single night lies in the middle of a day
        return cls(first, last, (EDGE, EDGE))

    def __call__(self, value: float) -> float:
        room = SIDE - sum(self.edges)
        return self.edges[0] + room * (value - self.begin) / (self.end - self.begin)

    def down(self, value: float) -> float:
        """As screens count, from the top, and within the drawing."""
        return min(max(SIDE - self(value), 0.0), float(SIDE))

    def back(self, units: float) -> float:
        room = SIDE - sum(self.edges)
        return self.begin + (self.end - self.begin) * (units - self.edges[0]) / room

    def ticks(self) -> list[float]:
        """Round values, about Y_TICKS."""
        step = _round_step((self.end - self.begin) / Y_TICKS)
        first = math.ceil(self.begin / step)
        return [step * n for n in range(first, math.floor(self.end / step) + 1)]


def _make_rate_scale(nights: Sequence[Night]) -> _Scale:
    """All rates and baselines; intervals as far as they lie not much farther."""
    values = [night.rate for night in nights] + [night.baseline for night in nights if night.baseline is not None]
    low, high = min(values), max(values)
    wider = (high - low) or LEAST_RANGE * high
    low = max(low - wider, min([low, *(night.low for night in nights if night.low is not None)]))
    high = min(high + wider, max([high, *(night.high for night in nights if night.high is not None)]))
    missing = max(0.0, LEAST_RANGE * high - (high - low)) / 2
    return _Scale(low - missing, high + missing, (EDGE, HEAD + EDGE))


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _draw_intervals(nights: Iterable[Night], time: _Scale, values: _Scale) -> str:
    return "".join(
        f"M{time(night.at):.1f},{values.down(night.high):.1f}V{values.down(night.low):.1f}"
        for night in nights
        if night.low is not None and night.high is not None
    )


def _draw_baseline(nights: Sequence[Night], time: _Scale, values: _Scale) -> str:
    """Each baseline from its night to the next; where there is none, nothing."""
    parts, before = [], None
    for night, after in zip(nights, [*nights[1:], None], strict=True):
        if night.baseline is None:
            before = None
            continue
        y = values.down(night.baseline)
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
