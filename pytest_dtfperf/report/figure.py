"""The scaling figure: images/sec and efficiency against devices, as SVG. The same numbers give the same bytes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator, PercentFormatter

from pytest_dtfperf.report.record import Record
from pytest_dtfperf.report.series import Series, measured_series, one_device_rates

# Okabe and Ito's palette, told apart with every kind of colour vision; its yellow is too pale on white and left out.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
PALE = ("#8FA3B0", "#B3A08F", "#8FB0A0", "#A892B0")  # published systems: there to compare with, not to be read first
INK, GREY, GRID = "#222222", "#9A9A9A", "#E6E6E6"

STYLE: dict[Any, Any] = {  # keys are a closed set to some versions of matplotlib and words to others
    "svg.hashsalt": "pytest-dtfperf",  # ids in the file come from its content, not from chance
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that every machine draws the same
    "font.size": 10,
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


def write_svg(figure: Figure, path: Path) -> None:
    with mpl.rc_context(STYLE):
        figure.savefig(path, format="svg", metadata={"Date": None})


@mpl.rc_context(STYLE)
def scaling_figure(records: Sequence[Record], beside: Sequence[Series] = ()) -> Figure:
    """The figure of one model and batch size. Efficiencies are anchored at the fastest 1-device rate with the same input."""
    spec = records[0].spec
    lines = measured_series(records)
    counts = sorted({point.gpus for series in (*lines, *beside) for point in series.points})
    figure = Figure(figsize=(10.5, 4.8), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
    figure.suptitle(f"{spec.model}, {spec.batch_size} images per device and step", x=0.01, ha="left", fontweight="bold")
    rates, efficiencies = figure.subplots(1, 2)
    anchors = one_device_rates(records)
    for one_device in anchors.values():
        rates.plot(counts, [n * one_device for n in counts], color=GREY, linewidth=1, zorder=1)
    efficiencies.plot(counts, [1.0 for _ in counts], color=GREY, linewidth=1, zorder=1)
    if not anchors:
        axes_middle = {"x": 0.5, "y": 0.5, "ha": "center", "va": "center", "transform": efficiencies.transAxes}
        efficiencies.text(s="no 1-device rate was measured", color=GREY, backgroundcolor="white", **axes_middle)
    drawn = [_draw(rates, efficiencies, series, i, pale=False) for i, series in enumerate(lines)]
    if anchors:
        drawn.append(Line2D([], [], color=GREY, linewidth=1, label="ideal: devices x the fastest 1-device rate"))
    figure.legend(handles=drawn, loc="outside lower left", title="measured (bars: slowest to fastest run)", alignment="left")
    if beside:
        drawn = [_draw(rates, efficiencies, series, i, pale=True) for i, series in enumerate(beside)]
        figure.legend(handles=drawn, loc="outside lower right", title="published", alignment="left")
    _dress_rates(
        rates, counts, [value for series in (*lines, *beside) for p in series.points for value in (p.lowest, p.highest)]
    )
    _dress_efficiencies(efficiencies, counts, [p.efficiency or 0.0 for series in (*lines, *beside) for p in series.points])
    return figure


def _draw(rates: Axes, efficiencies: Axes, series: Series, number: int, *, pale: bool) -> Line2D:
    """Draw a line into both halves; returns what the legend shows of it."""
    colours = PALE if pale else PALETTE
    style: dict[str, Any] = {
        "color": colours[number % len(colours)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4 if pale else 6,
        "linewidth": 1 if pale else 1.8,
        "linestyle": ":" if pale else "-" if series.data == "synthetic" else "--",
        "zorder": 2 if pale else 3,
    }
    gpus = [point.gpus for point in series.points]
    (line,) = rates.plot(gpus, [point.images_per_sec for point in series.points], label=series.label, **style)
    if not pale:
        lowest, highest = [p.lowest for p in series.points], [p.highest for p in series.points]
        rates.vlines(gpus, lowest, highest, colors=line.get_color(), linewidth=3, alpha=0.35)
    known = [(point.gpus, point.efficiency) for point in series.points if point.efficiency is not None]
    efficiencies.plot([n for n, _ in known], [value for _, value in known], **style)
    return line


def _dress_rates(axes: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    axes.set_title("Throughput")
    axes.set_ylabel("images/sec")
    axes.set_yscale("log", base=2)
    lowest, highest = math.floor(math.log2(min(values) * 0.95)), math.ceil(math.log2(max(values) * 1.05))
    axes.set_ylim(2.0**lowest, 2.0**highest)
    every = math.ceil((highest - lowest) / 10)  # label every octave, or every other where there are many
    axes.yaxis.set_major_locator(FixedLocator([2.0**power for power in range(lowest, highest + 1, every)]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _dress_devices(axes, counts)


def _dress_efficiencies(axes: Axes, counts: Sequence[int], values: Sequence[float]) -> None:
    axes.set_title("Scaling efficiency")
    axes.set_ylabel("rate / ideal rate")
    axes.set_ylim(0, max(1.1, 1.05 * max(values)))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    _dress_devices(axes, counts)


def _dress_devices(axes: Axes, counts: Sequence[int]) -> None:
    axes.set_xlabel("devices")
    axes.set_xscale("log", base=2)
    axes.set_xlim(counts[0] / 1.15, counts[-1] * 1.15)
    axes.xaxis.set_major_locator(FixedLocator(counts))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
