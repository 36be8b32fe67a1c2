"""The scaling figure: images/sec and efficiency against devices."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, PercentFormatter

from pytest_dtfperf.report.figures.groups import FigureGroup, describe_origin
from pytest_dtfperf.report.figures.style import (
    CROSSED,
    GREY,
    INK,
    MARKERS,
    PALE,
    PALETTE,
    TAINTED,
    apply_style,
    format_device_axis,
    make_figure,
)
from pytest_dtfperf.report.published import PublishedRate
from pytest_dtfperf.report.series import ScalingSeries, make_published_series

LEAST_AXIS = 8  # devices: published systems are drawn so far at least, for most of them are of that size


def draw_group_scaling(group: FigureGroup, published: Iterable[PublishedRate]) -> Figure:
    """What was measured, and some of what was published beside it."""
    specs = [record.spec for record in group.records]
    beside = make_published_series(published, specs, max(LEAST_AXIS, *(spec.gpus for spec in specs)))
    return draw_scaling(group.title, group.lines, beside, beneath=describe_origin(group.measured))


@apply_style()
def draw_scaling(
    title: str, lines: Sequence[ScalingSeries], beside: Sequence[ScalingSeries] = (), *, beneath: Sequence[str] = ()
) -> Figure:
    """Measured lines and published ones; `beneath` says where, when and with what these were. No half of it is empty.

    What is drawn of a line has an id in the SVG: `rates-0`, `efficiencies-0`, `ideal-0` and `tainted-0` of the first.
    """
    scales = any(series.scales for series in lines)
    below = max(len(lines) + len(beneath), len(beside))
    figure = make_figure(title, height=4.2 + 0.16 * below)
    panels = figure.subplots(1, 2 if scales else 1, squeeze=False)[0]
    rates, efficiencies = panels[0], panels[1] if scales else None
    drawn = [_draw_series(rates, efficiencies, series, i, pale=False) for i, series in enumerate(lines)]
    drawn += _draw_ideals(rates, lines)
    if any(point.is_tainted for series in lines for point in series.points):
        drawn.append(Line2D([], [], **CROSSED, color=INK, label=TAINTED))
    heading = "\n".join(["measured (bars: slowest to fastest run)", *beneath])
    figure.legend(handles=drawn, loc="outside lower left", title=heading, alignment="left")
    if beside:
        drawn = [_draw_series(rates, efficiencies, series, i, pale=True) for i, series in enumerate(beside)]
        figure.legend(handles=drawn, loc="outside lower right", title="published", alignment="left")
    points = [point for series in (*lines, *beside) for point in series.points]
    counts = sorted({point.gpus for point in points})
    ideals = [point.ideal for series in lines for point in series.points if point.ideal]
    _format_rate_axis(rates, counts, [*(value for p in points for value in (p.lowest, p.highest)), *ideals])
    if efficiencies:
        efficiencies.plot(counts, [1.0 for _ in counts], color=GREY, linewidth=1, zorder=1)
        _format_efficiency_axis(efficiencies, counts, [p.efficiency or 0.0 for p in points])
    return figure


def _draw_series(rates: Axes, efficiencies: Axes | None, series: ScalingSeries, number: int, *, pale: bool) -> Line2D:
    """Draw a line into both halves; returns what the legend shows of it. What was disturbed is joined to nothing."""
    colours = PALE if pale else PALETTE
    style: dict[str, Any] = {
        "color": colours[number % len(colours)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4 if pale else 6,
        "linewidth": 1 if pale else 1.8,
        "linestyle": ":" if pale else "-" if series.data == "synthetic" else "--",
        "zorder": 2 if pale else 3,
    }
    sound = [point for point in series.points if not point.is_tainted]
    (line,) = rates.plot([p.gpus for p in sound], [p.images_per_sec for p in sound], label=series.label, **style)
    if not pale:
        line.set_gid(f"rates-{number}")
        lowest, highest = [p.lowest for p in series.points], [p.highest for p in series.points]
        rates.vlines([p.gpus for p in series.points], lowest, highest, colors=line.get_color(), linewidth=3, alpha=0.35)
        tainted = [point for point in series.points if point.is_tainted]
        if tainted:
            at, values = [p.gpus for p in tainted], [p.images_per_sec for p in tainted]
            rates.plot(at, values, **CROSSED, color=line.get_color(), gid=f"tainted-{number}")
    if efficiencies:
        known = [(point.gpus, point.efficiency) for point in series.points if point.efficiency is not None]
        (drawn,) = efficiencies.plot([n for n, _ in known], [value for _, value in known], **style)
        if not pale:
            drawn.set_gid(f"efficiencies-{number}")
    return line


def _draw_ideals(rates: Axes, lines: Sequence[ScalingSeries]) -> list[Line2D]:
    """For each line, the rates at which its efficiencies would be 1; returns what the legend shows of them."""
    drawn = []
    for number, series in enumerate(lines):
        ideals = [(point.gpus, point.ideal) for point in series.points if point.ideal]
        if series.scales:
            gpus, values = [n for n, _ in ideals], [value for _, value in ideals]
            drawn += rates.plot(gpus, values, color=GREY, linewidth=1, zorder=1, gid=f"ideal-{number}")
    return [Line2D([], [], color=GREY, linewidth=1, label="ideal: devices x the line's own 1-device rate")] if drawn else []


def _format_rate_axis(axes: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    axes.set_ylabel("images/sec")
    axes.set_yscale("log", base=2)
    lowest, highest = math.floor(math.log2(min(values) * 0.95)), math.ceil(math.log2(max(values) * 1.05))
    axes.set_ylim(2.0**lowest, 2.0**highest)
    every = math.ceil((highest - lowest) / 10)  # label every octave, or every other where there are many
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(lowest, highest + 1, every)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    format_device_axis(axes, counts)


def _format_efficiency_axis(axes: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    axes.set_ylabel("scaling efficiency")
    axes.set_ylim(0, max(1.1, 1.05 * max(values)))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    format_device_axis(axes, counts)
