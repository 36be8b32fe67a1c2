"""The charts: bars of rates and of I/O overhead, scaling, heat maps of parameter servers, and steps. They share a style.

The same numbers give the same bytes of SVG and PNG.
"""

import io
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from pytest_dtfperf.formats import percent, rate
from pytest_dtfperf.report.series import (
    FigureGroup,
    PublishedPoint,
    ScalingPoint,
    ScalingSeries,
    describe_origin,
    make_published_series,
)

# Okabe and Ito's palette, distinguishable with every kind of colour vision, without its yellow, which is too pale on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
PALE = ("#8FA3B0", "#B3A08F", "#8FB0A0", "#A892B0")  # published systems, in the background
CROSSED: dict[str, Any] = {"marker": "x", "markersize": 8, "markeredgewidth": 2, "linestyle": "none", "zorder": 4}
INK, GREY, GRID = "#222222", "#9A9A9A", "#E6E6E6"

TAINTED = "TAINTED: something else disturbed every run"

STYLE: dict[Any, Any] = {  # keys are a closed set in some versions of matplotlib and strings in others
    "svg.hashsalt": "pytest-dtfperf",  # ids in the file are derived from its content, not random
    "font.family": ["DejaVu Sans"],  # included in matplotlib, so that every machine draws the same
    "font.size": 10,
    "text.parse_math": False,  # a cluster's name may contain a $
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
}


@contextmanager
def apply_style() -> Iterator[None]:
    """Apply this style to matplotlib, as a context manager or a decorator, independent of other settings."""
    with style.context(["default", STYLE]):
        yield


def make_figure(title: str, width: float = 10.5, *, height: float) -> Figure:
    """Return an empty figure. `width` and `height` are inches."""
    figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return figure


def convert_to_svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    with apply_style():
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def convert_to_png(figure: Figure) -> bytes:
    file = io.BytesIO()
    with apply_style():
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})  # the default contains matplotlib's version
    return file.getvalue()


def format_device_axis(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xlabel("devices")
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())


@dataclass(frozen=True)
class NamedFigure:
    """A figure with the name of its file."""

    name: str  # of its file, without a suffix
    figure: Figure


HATCHES = ("", "///", "...", "\\\\\\", "xx", "---", "ooo")  # they distinguish bars in print without colours, too
INCHES_A_BAR = 0.3  # of a figure's width
WIDTH = 0.84  # of a group of bars, relative to the distance between two groups
MOST_UPRIGHT = 14  # bars: with more, values are written vertically


@dataclass(frozen=True)
class Bars:
    """One kind of bar."""

    label: str
    values: Mapping[int, float]  # by number of devices
    tainted: Collection[int] = ()  # numbers of devices


def draw_bars(axes: Axes, kinds: Sequence[Bars], format_value: Callable[[float], str]) -> list[Patch]:
    """Draw a group for each number of devices; return the entries of the legend.

    Ids in the SVG: `bar-0-8` is the first kind's on 8 devices. A TAINTED bar is pale, and has a dashed edge.
    """
    counts = sorted({gpus for bars in kinds for gpus in bars.values})
    width = WIDTH / len(kinds)
    turned = sum(len(bars.values) for bars in kinds) > MOST_UPRIGHT
    legend = []
    for number, bars in enumerate(kinds):
        colour, hatch = PALETTE[number % len(PALETTE)], HATCHES[number % len(HATCHES)]
        legend.append(Patch(facecolor=colour, edgecolor="white", hatch=hatch, label=bars.label))
        for gpus, value in bars.values.items():
            at = counts.index(gpus) + (number + 0.5) * width - WIDTH / 2
            (bar,) = axes.bar([at], [value], width, color=colour, edgecolor="white", hatch=hatch, zorder=3)
            bar.set_gid(f"bar-{number}-{gpus}")
            if gpus in bars.tainted:
                bar.set(alpha=0.4, edgecolor=colour, linestyle="--")
            axes.annotate(
                format_value(value),
                (at, value),
                (0, 3 if value >= 0 else -3),
                textcoords="offset points",
                ha="center",
                va="bottom" if value >= 0 else "top",
                rotation=90 if turned else 0,
                fontsize=8,
            )
    values = [0.0, *(value for bars in kinds for value in bars.values.values())]
    room = 1.28 if turned else 1.1  # room for the text above the highest bar
    lowest, highest = min(values), max(values)
    axes.set_ylim(
        lowest - (room - 1) * (highest - lowest) if lowest < 0 else 0.0, highest + (room - 1) * (highest - lowest) or 1
    )
    axes.set_xlim(-0.6, len(counts) - 0.4)
    axes.xaxis.set_major_locator(FixedLocator(range(len(counts))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: str(counts[round(value)])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.grid(visible=False)
    axes.set_xlabel("devices")
    return legend


@apply_style()
def draw_rates(
    title: str, lines: Sequence[ScalingSeries], *, notes: Sequence[str], format_value: Callable[[float], str] = rate
) -> Figure:
    """Draw rates as bars, and speed-ups beside them if any is known on several devices.

    Ids in the SVG: those of the bars, `speedups-0` of the first line, and `ideal`.
    """
    scales = any(series.scales for series in lines)
    bars = INCHES_A_BAR * sum(len(series.points) for series in lines)
    width = max(5.0, bars) + (5.5 if scales else 1.0)
    figure = make_figure(title, width, height=4.2 + 0.18 * (len(lines) + len(notes)))
    panels = figure.subplots(1, 2 if scales else 1, squeeze=False, width_ratios=[max(5.0, bars), 4.5] if scales else None)[0]
    legend = draw_bars(panels[0], [_draw_bars(series) for series in lines], format_value)
    panels[0].set_ylabel("images/sec")
    if any(point.is_tainted for series in lines for point in series.points):
        legend.append(Patch(facecolor="white", edgecolor=GREY, linestyle="--", label=TAINTED))
    if scales:
        _draw_speedups(panels[1], lines)
    figure.legend(handles=legend, loc="outside lower left", title="\n".join(notes), alignment="left")
    return figure


def _draw_bars(series: ScalingSeries) -> Bars:
    values = {point.gpus: point.images_per_sec for point in series.points}
    return Bars(series.label, values, [point.gpus for point in series.points if point.is_tainted])


def _draw_speedups(axes: Axes, lines: Sequence[ScalingSeries]) -> None:
    """Draw the rate over the line's own 1-device rate, against the number of devices."""
    found = [
        [(point.gpus, point.gpus * point.efficiency) for point in series.points if point.efficiency and not point.is_tainted]
        for series in lines
    ]
    counts = sorted({gpus for points in found for gpus, _ in points})
    axes.plot(counts, counts, color=GREY, linewidth=1, zorder=1, gid="ideal", label="ideal")
    for number, points in enumerate(found):
        axes.plot(
            [gpus for gpus, _ in points],
            [speedup for _, speedup in points],
            color=PALETTE[number % len(PALETTE)],
            marker=MARKERS[number % len(MARKERS)],
            linestyle="-" if lines[number].data == "synthetic" else "--",
            gid=f"speedups-{number}",
            zorder=3,
        )
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator(counts))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    format_device_axis(axes, counts)
    axes.set_ylabel("speed-up over one device")
    axes.legend(handles=[axes.lines[0]], loc="upper left")


@apply_style()
def draw_overhead(title: str, overheads: Mapping[str, Mapping[int, float]], *, notes: Sequence[str]) -> Figure:
    """Draw overheads: fractions by label and number of devices, below zero where real input was faster. Ids: as in the bars."""
    bars = INCHES_A_BAR * sum(map(len, overheads.values()))
    figure = make_figure(title, max(6.0, 1.5 + bars), height=4.2 + 0.18 * (len(overheads) + len(notes)))
    axes = figure.subplots()
    legend = draw_bars(axes, [Bars(label, values) for label, values in overheads.items()], percent)
    axes.axhline(0.0, color=GREY, linewidth=1)
    axes.set_ylabel("I/O overhead")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    figure.legend(handles=legend, loc="outside lower left", title="\n".join(notes), alignment="left")
    return figure


HeatMapCells = Mapping[tuple[int, int], ScalingPoint]  # by number of parameter servers, then of devices

LIGHT = 0.55  # of the column's best: letters on darker cells are white
INCHES = 0.95, 0.5  # of a cell


@apply_style()
def draw_heat_map(title: str, maps: Mapping[str, HeatMapCells], *, notes: Sequence[str] = ()) -> Figure:
    """Draw the maps below each other, each with the name of its way of training.

    The colour is a cell's share of the best in its column, because the reader chooses within a column; the best has an edge.
    A TAINTED cell has an x and no colour, and is never the best. Ids: `cell-0-4-8` is the first map's, 4 servers, 8 devices.
    """
    sizes = [(len({ps for ps, _ in cells}), len({gpus for _, gpus in cells})) for cells in maps.values()]
    width = max(8.5, 2.0 + INCHES[0] * max(columns for _, columns in sizes))
    height = 1.2 + 0.2 * len(notes) + sum(1.1 + INCHES[1] * rows for rows, _ in sizes)
    figure = make_figure(title, width, height=height)
    panels = figure.subplots(len(maps), 1, squeeze=False, height_ratios=[1 + rows for rows, _ in sizes])[:, 0]
    for number, (axes, (name, cells)) in enumerate(zip(panels, maps.items(), strict=True)):
        axes.set_title(name)
        _draw_map(axes, cells, number)
    lines = ["images/sec; framed: the most for so many devices; x: TAINTED, something else disturbed every run", *notes]
    figure.legend(handles=[], loc="outside lower left", title="\n".join(lines), alignment="left")
    return figure


def _draw_map(axes: Axes, cells: HeatMapCells, number: int) -> None:
    servers, counts = sorted({ps for ps, _ in cells}), sorted({gpus for _, gpus in cells})
    best = {
        gpus: max((p.images_per_sec for (_, at), p in cells.items() if at == gpus and not p.is_tainted), default=None)
        for gpus in counts
    }
    shares = np.full((len(servers), len(counts)), np.nan)
    for (ps, gpus), point in cells.items():
        row, column, most = servers.index(ps), counts.index(gpus), best[gpus]
        share = point.images_per_sec / most if most and not point.is_tainted else None
        shares[row, column] = np.nan if share is None else share
        axes.text(
            column,
            row,
            rate(point.images_per_sec) + (" x" if point.is_tainted else ""),
            ha="center",
            va="center",
            color="white" if share is not None and share > LIGHT else INK,
            gid=f"cell-{number}-{ps}-{gpus}",
        )
        if most == point.images_per_sec and not point.is_tainted:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor=PALETTE[1], linewidth=3, zorder=3))
    axes.imshow(np.ma.masked_invalid(shares), cmap="cividis_r", vmin=0, vmax=1.15, aspect="auto", origin="lower")
    axes.grid(visible=False)
    axes.xaxis.set_major_locator(FixedLocator(range(len(counts))))
    axes.xaxis.set_major_formatter(FixedFormatter([str(gpus) for gpus in counts]))
    axes.yaxis.set_major_locator(FixedLocator(range(len(servers))))
    axes.yaxis.set_major_formatter(FixedFormatter([str(ps) for ps in servers]))
    axes.set_xlabel("devices")
    axes.set_ylabel("parameter servers")


DASHES = ("-", "--", ":", "-.")  # with more workers than colours, a colour is used again with other dashes
MOST_NAMED = 16  # workers: a legend has no room for more


@apply_style()
def draw_steps(title: str, step_s: Mapping[str, Sequence[float]], *, notes: Sequence[str] = ()) -> Figure:
    """Draw step times over the steps (left) and as cumulative shares (right). `step_s`: seconds of each step, by worker.

    Ids: `steps-0` and `shares-0` of the first worker, in the order of their numbers.
    """
    workers = sorted(step_s, key=lambda name: (len(name), name))  # worker:2 before worker:10
    named = len(workers) <= MOST_NAMED
    below = -(-len(workers) // 8) if named else 1
    figure = make_figure(title, height=4.2 + 0.2 * (below + len(notes)))
    over_steps, shares = figure.subplots(1, 2)
    for number, worker in enumerate(workers):
        milliseconds = 1000 * np.asarray(step_s[worker])
        colour, dashes = PALETTE[number % len(PALETTE)], DASHES[number // len(PALETTE) % len(DASHES)]
        style = {"color": colour, "linestyle": dashes, "linewidth": 1.2, "label": worker}
        over_steps.plot(np.arange(1, len(milliseconds) + 1), milliseconds, gid=f"steps-{number}", **style)
        ordered = np.sort(milliseconds)
        shares.plot(
            ordered, np.arange(1, len(ordered) + 1) / len(ordered), gid=f"shares-{number}", **style, drawstyle="steps-post"
        )
    over_steps.set_xlabel("measured step")
    over_steps.set_ylabel("ms")
    over_steps.set_ylim(bottom=0)
    shares.set_xlabel("ms of a step")
    shares.set_ylabel("share of the worker's steps as short or shorter")
    shares.set_ylim(0, 1.02)
    lines = [*notes, *([] if named else [f"{len(workers)} workers, which have no room for their names here"])]
    handles = over_steps.lines if named else []
    figure.legend(handles=handles, loc="outside lower left", title="\n".join(lines), alignment="left", ncols=8)
    return figure


LEAST_AXIS = 8  # devices: least extent for published systems, as most of them have this size


def draw_group_scaling(group: FigureGroup, published: Iterable[PublishedPoint]) -> Figure:
    """Draw the measured lines of a group, with some published ones."""
    specs = [record.spec for record in group.records]
    series = make_published_series(published, specs, max(LEAST_AXIS, *(spec.gpus for spec in specs)))
    return draw_scaling(group.title, group.lines, series, notes=describe_origin(group.measured))


@apply_style()
def draw_scaling(
    title: str,
    lines: Sequence[ScalingSeries],
    published: Sequence[ScalingSeries] = (),
    *,
    notes: Sequence[str] = (),
    heading: str = "measured (bars: slowest to fastest run)",
) -> Figure:
    """Draw measured and published lines; `notes`: hosts, date and versions of the measured ones; `heading`: what lines are.

    Ids in the SVG of the first line: `rates-0`, `efficiencies-0`, `ideal-0` and `tainted-0`.
    """
    scales = any(series.scales for series in lines)
    below = max(len(lines) + len(notes), len(published))
    figure = make_figure(title, height=4.2 + 0.16 * below)
    panels = figure.subplots(1, 2 if scales else 1, squeeze=False)[0]
    rates, efficiencies = panels[0], panels[1] if scales else None
    drawn = [_draw_series(rates, efficiencies, series, i, pale=False) for i, series in enumerate(lines)]
    drawn += _draw_ideals(rates, lines)
    if any(point.is_tainted for series in lines for point in series.points):
        drawn.append(Line2D([], [], **CROSSED, color=INK, label=TAINTED))
    figure.legend(handles=drawn, loc="outside lower left", title="\n".join([heading, *notes]), alignment="left")
    if published:
        drawn = [_draw_series(rates, efficiencies, series, i, pale=True) for i, series in enumerate(published)]
        figure.legend(handles=drawn, loc="outside lower right", title="published", alignment="left")
    points = [point for series in (*lines, *published) for point in series.points]
    counts = sorted({point.gpus for point in points})
    ideals = [point.ideal for series in lines for point in series.points if point.ideal]
    _format_rate_axis(rates, counts, [*(value for p in points for value in (p.lowest, p.highest)), *ideals])
    if efficiencies:
        efficiencies.plot(counts, [1.0 for _ in counts], color=GREY, linewidth=1, zorder=1)
        _format_efficiency_axis(efficiencies, counts, [p.efficiency or 0.0 for p in points])
    return figure


def _draw_series(rates: Axes, efficiencies: Axes | None, series: ScalingSeries, number: int, *, pale: bool) -> Line2D:
    """Draw a line into both halves, and return its entry of the legend. Disturbed points are not connected."""
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
    """Draw the rates of efficiency 1 for each line; return the entries of the legend."""
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
    every = math.ceil((highest - lowest) / 10)  # label every octave, or every second one if there are many
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(lowest, highest + 1, every)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    format_device_axis(axes, counts)


def _format_efficiency_axis(axes: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    axes.set_ylabel("scaling efficiency")
    axes.set_ylim(0, max(1.1, 1.05 * max(values)))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    format_device_axis(axes, counts)
