"""The view of a session's page, and its rendering: templates with styles and scripts, and SVG in the style's colours.

Numbers of a view are formatted, as templates compute nothing.

Widths of drawings are percentages of the available room, so that they are not stretched. Each drawing has a title, and the page
has a table with the same numbers beside it.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from pytest_dtfperf.baselines.verdict import Verdict
from pytest_dtfperf.formats import NONE, change, percent, printable, rate
from pytest_dtfperf.report.measurement_text import Grid


@dataclass(frozen=True)
class Standing:
    """A verdict for display: its name, and a shape and a colour by the effect on the test."""

    text: str
    outcome: str  # pass, warn, fail, error, or none
    order: int  # the gravest is 0

    @classmethod
    def from_verdict(cls, verdict: Verdict | None, text: str = "") -> "Standing":
        if verdict is None:
            return cls("not judged", "none", len(Verdict))
        return cls(text or str(verdict), verdict.row.outcome, verdict.severity)


@dataclass(frozen=True)
class Fact:
    """A name with its description."""

    name: str
    text: str
    is_code: bool = False


@dataclass(frozen=True)
class StepPart:
    """Seconds of one kind of work on a step's critical path."""

    kind: str
    seconds: float


@dataclass(frozen=True)
class Bar:
    """One step, as a stack of its parts."""

    name: str
    text: str  # its duration
    drawing: Markup


@dataclass(frozen=True)
class StepsView:
    """The breakdown of a step, beside the baseline's if that is known."""

    subject: str  # as `mean of 5 traced steps`
    bars: Sequence[Bar]
    kinds: Sequence[str]  # kinds of parts, in the bars' order
    table: Grid


@dataclass(frozen=True)
class CauseRow:
    """One cause of a longer step."""

    message: str
    seconds: str
    share: str
    width: float  # percent of the largest
    confidence: str
    evidence: Sequence[str]
    next: str | None


@dataclass(frozen=True)
class Causes:
    """The causes of a longer step, and the unexplained rest."""

    rows: Sequence[CauseRow]
    change: str
    unexplained: str
    notes: Sequence[str]
    command: str  # shows the whole explanation


@dataclass(frozen=True)
class Workers:
    """The numbers of each task, and the traffic of the hosts."""

    title: str
    table: Grid
    notes: Sequence[str]


@dataclass(frozen=True)
class Earlier:
    """The same training in earlier sessions."""

    drawing: Markup
    summary: str
    change: str  # the last one; empty if none is known
    table: Grid


@dataclass(frozen=True)
class TaskLog:
    """The end of one task's log."""

    name: str  # of the file, relative to the session's folder
    lines: Sequence[str]
    left_out: int  # bytes before these lines


@dataclass(frozen=True, kw_only=True)
class Card:
    """One measurement."""

    anchor: str  # id of its element
    standing: Standing
    label: str
    test: str
    rate: str
    rate_value: float
    efficiency: str
    of_limit: str
    baseline: str
    change: str
    change_value: float | None
    interval: Markup | None
    past: Earlier | None
    facts: Sequence[Fact]
    causes: Causes | None
    no_causes: str  # reason for missing causes, if some were requested
    steps: StepsView | None
    no_steps: str  # reason for a missing step breakdown, if one was requested
    workers: Workers | None
    differences: Sequence[str] | None  # against the baseline's fingerprint; None: there is no baseline
    command: str
    logs: Sequence[TaskLog]

    @property
    def is_green(self) -> bool:
        return self.standing.outcome == "pass"


@dataclass(frozen=True)
class ReasonView:
    """The reason of a verdict that is not green."""

    standing: Standing
    message: str
    cards: Sequence[Card]


@dataclass(frozen=True)
class WithoutMeasurement:
    """A test with logs but without a measurement."""

    name: str  # of its folder
    logs: Sequence[TaskLog]


@dataclass(frozen=True)
class Section:
    """Tables with their notes."""

    title: str
    anchor: str
    tables: Sequence[Grid]
    notes: Sequence[str]
    classes: str = ""  # of its tables: " w5" if the fifth column has text
    lines: Sequence[str] = ()  # preformatted text


@dataclass(frozen=True, kw_only=True)
class Page:
    """A session."""

    title: str
    standing: Standing  # the gravest
    counts: Sequence[tuple[Standing, int]]  # of tests, the gravest first
    ended: str
    facts: Sequence[Fact]
    why: Sequence[ReasonView]
    how: Sequence[str]  # commands that lead on
    cards: Sequence[Card]  # the gravest first
    measured: str  # how many comparisons and measurements
    brief: str  # note on shortened cards; empty if there are none
    without_measurement: Sequence[WithoutMeasurement]
    sections: Sequence[Section]
    legend: Sequence[str]
    verdicts: Sequence[tuple[Standing, str]]  # verdicts on this page, and their conditions
    remarks: Sequence[str]

    @property
    def has_limits(self) -> bool:
        return any(card.of_limit != NONE for card in self.cards)

    @property
    def has_history(self) -> bool:
        return any(card.past for card in self.cards)

    @property
    def has_intervals(self) -> bool:
        return any(card.interval for card in self.cards)


FOLDERS = ("page", "site")  # of report/: each has `templates`; file names are unique across both
STYLE, SCRIPT = "style.css", "theme.js"  # of all pages; a page's own files come after them


def render_template(
    name: str, *, styles: Sequence[str] = (), scripts: Sequence[str] = (), root: str | None = None, **shown: Any
) -> str:
    """Return a rendered template. `root`: the path to the site's first page; None if the page is not part of a site."""
    script = "\n".join(map(read_template, (SCRIPT, *scripts)))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    style = "\n".join(map(read_template, (STYLE, *styles)))
    return (
        load_environment()
        .get_template(name)
        .render(**shown, root=root, style=Markup(style), script=Markup(script), digest=digest)
    )


@cache
def load_environment() -> Environment:
    """Return the environment, which compiles each template once."""
    return Environment(
        loader=FunctionLoader(read_template),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_escape_value,
    )


def _escape_value(value: object) -> object:
    """Return an output of a template without control characters."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def read_template(name: str) -> str:
    """Return a template, style or script. Raises `FileNotFoundError`."""
    report = resources.files("pytest_dtfperf.report")
    paths = (report.joinpath(folder, "templates", name) for folder in FOLDERS)
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        raise FileNotFoundError(name)
    return found.read_text(encoding="utf-8")


_LEAST_WIDTH = 0.15  # percent: narrower parts are only in the table
_SPARK = (240.0, 52.0)  # width and height of a trend, in its own units
_SPARK_EDGE = 6.0


def make_element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an SVG element. `class_` and `text_anchor` become class and text-anchor; attributes that are None are left out."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    begin = f"<{name}" + "".join([f' {key}="{_escape_text(value)}"' for key, value in named.items()])
    if not children:
        return Markup(f"{begin}/>")
    return Markup(f"{begin}>{''.join(map(_escape_text, children))}</{name}>")


def _escape_text(value: object) -> Markup:
    if isinstance(value, Markup):
        return value
    return escape(f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value)))


def _format_percent(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") + "%"


def draw_interval(
    at: float, low: float | None, high: float | None, *, margin: float | None, limit: float, described: str
) -> Markup:
    """Draw a change and its interval against the baseline, on an axis from -limit to +limit: a row of a forest plot.

    A value beyond the axis is drawn as an arrow at its end.
    """

    def x(value: float) -> float:
        return 50 + 50 * max(-1.0, min(1.0, value / limit))

    marks = [make_element("title", described), _make_upright(50.0)]
    if margin is not None and margin < limit:
        marks.append(_make_upright(x(-margin), class_="margin"))
    if low is not None and high is not None:
        marks.append(make_element("rect", x=_format_percent(x(low)), width=_format_percent(x(high) - x(low))))
    shape = "#at" if abs(at) <= limit else "#less" if at < 0 else "#more"
    marks.append(make_element("use", href=shape, x=_format_percent(x(at)), y="50%"))
    return make_element("svg", *marks, class_="interval", role="img")


def _make_upright(at: float, **attributes: str) -> Markup:
    return make_element("line", x1=_format_percent(at), x2=_format_percent(at), y2="100%", **attributes)


def draw_stack(parts: Sequence[StepPart], whole_s: float, described: str) -> Markup:
    """Draw the parts of a step side by side, with widths in proportion to time; `whole_s` fills the drawing."""
    marks, begin = [make_element("title", described)], 0.0
    for part in parts:
        width = 100 * part.seconds / whole_s
        if width >= _LEAST_WIDTH:
            attributes = {"x": _format_percent(begin), "width": _format_percent(width), "class_": f"kind-{part.kind}"}
            marks.append(make_element("rect", **attributes))
        begin += width
    return make_element("svg", *marks, class_="stack", role="img")


def draw_trend(
    values: Sequence[tuple[str, float]], name: str | None, began: int | None, *, is_disturbed: bool = False
) -> Markup:
    """Draw rates over time, the latest with a dot, as a group with the id `name`, if any.

    `values`: (time, images/sec), the oldest first. `began`: start of the present rate; a vertical line is drawn before it.
    `is_disturbed`: the latest was disturbed, and is an unconnected ring.
    """
    rates = [value for _, value in values]
    lowest, highest = min(rates), max(rates)
    width, height = (side - 2 * _SPARK_EDGE for side in _SPARK)
    spread = (highest - lowest) or 1.0
    points = [
        (_SPARK_EDGE + width * i / (len(rates) - 1), _SPARK_EDGE + height * (1 - (value - lowest) / spread))
        for i, value in enumerate(rates)
    ]
    return make_element(
        "svg",
        make_element("title", describe_trend(values, is_disturbed=is_disturbed)),
        make_element(
            "g",
            *_draw_start_mark(points, began, height),
            make_element("polyline", points=" ".join(f"{x:.0f},{y:.0f}" for x, y in (points[:-1] if is_disturbed else points))),
            make_element("circle", cx=points[-1][0], cy=points[-1][1], r="5", class_="disturbed" if is_disturbed else None),
            id=name,
        ),
        class_="trend",
        role="img",
        viewBox=f"0 0 {_SPARK[0]:g} {_SPARK[1]:g}",
    )


def _draw_start_mark(points: Sequence[tuple[float, float]], began: int | None, height: float) -> list[Markup]:
    if not began:  # no start, or before the first value
        return []
    x = (points[began - 1][0] + points[began][0]) / 2
    return [make_element("path", d=f"M{x:.0f},{_SPARK_EDGE:.0f}v{height:.0f}")]


def describe_trend(values: Sequence[tuple[str, float]], *, is_disturbed: bool = False) -> str:
    if is_disturbed:
        return f"{_describe_rates(values[:-1])}; this one, which something disturbed: {rate(values[-1][1])} images/sec"
    return _describe_rates(values)


def _describe_rates(values: Sequence[tuple[str, float]]) -> str:
    (first, then), (last, now) = values[0], values[-1]
    if len(values) == 1:
        return f"one session on {first[:10]}: {rate(then)} images/sec"
    rates = [value for _, value in values]
    return (
        f"{len(values)} sessions from {first[:10]} to {last[:10]}: {rate(then)} to {rate(now)} images/sec, "
        f"lowest {rate(min(rates))}, highest {rate(max(rates))}"
    )


def describe_interval(at: float, low: float | None, high: float | None, margin: float | None) -> str:
    message = f"{change(at)} against the baseline"
    if low is not None and high is not None:
        message += f", between {change(low)} and {change(high)}"
    return message if margin is None else f"{message}; margin {percent(margin)}"
