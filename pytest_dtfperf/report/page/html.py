"""Render pages: templates with their styles and scripts, and SVG that takes its colours from the page's style.

Widths of drawings are percentages of the available room, so that they are not stretched. Each drawing has a title, and the page
has a table with the same numbers beside it.
"""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from pytest_dtfperf.formats import change, percent, printable, rate
from pytest_dtfperf.report.page.view import StepPart

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
    text = (Markup(' {}="{}"').format(key, _format_text(value)) for key, value in named.items())
    begin = Markup("<{}{}").format(Markup(name), Markup("").join(text))
    if not children:
        return begin + Markup("/>")
    return begin + Markup(">{}</{}>").format(Markup("").join(map(_format_text, children)), Markup(name))


def _format_text(value: object) -> str:
    if isinstance(value, Markup):
        return value
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else printable(str(value))


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
    values: Sequence[tuple[str, float]], name: str | None, began: int | None = None, *, is_disturbed: bool = False
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
