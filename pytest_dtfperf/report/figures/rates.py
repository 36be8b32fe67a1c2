"""Rates as bars with their values, and beside them speed-ups against devices, with the ideal."""

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter

from pytest_dtfperf.formats import rate
from pytest_dtfperf.report.figures.bars import INCHES_A_BAR, Bars, draw_bars
from pytest_dtfperf.report.figures.style import GREY, MARKERS, PALETTE, TAINTED, apply_style, format_device_axis, make_figure
from pytest_dtfperf.report.series import ScalingSeries


@apply_style()
def draw_rates(
    title: str, lines: Sequence[ScalingSeries], *, beneath: Sequence[str] = (), written: Callable[[float], str] = rate
) -> Figure:
    """`written`: a rate as it stands on its bar. Speed-ups have a half of the figure where one is known on several devices.

    Ids in the SVG: those of the bars, `speedups-0` of the first line, and `ideal`.
    """
    scales = any(series.scales for series in lines)
    bars = INCHES_A_BAR * sum(len(series.points) for series in lines)
    width = max(5.0, bars) + (5.5 if scales else 1.0)
    figure = make_figure(title, width, 4.2 + 0.18 * (len(lines) + len(beneath)))
    panels = figure.subplots(1, 2 if scales else 1, squeeze=False, width_ratios=[max(5.0, bars), 4.5] if scales else None)[0]
    legend = draw_bars(panels[0], [_bars(series) for series in lines], written)
    panels[0].set_ylabel("images/sec")
    if any(point.is_tainted for series in lines for point in series.points):
        legend.append(Patch(facecolor="white", edgecolor=GREY, linestyle="--", label=TAINTED))
    if scales:
        _draw_speedups(panels[1], lines)
    figure.legend(handles=legend, loc="outside lower left", title="\n".join(beneath), alignment="left")
    return figure


def _bars(series: ScalingSeries) -> Bars:
    values = {point.gpus: point.images_per_sec for point in series.points}
    return Bars(series.label, values, [point.gpus for point in series.points if point.is_tainted])


def _draw_speedups(axes: Axes, lines: Sequence[ScalingSeries]) -> None:
    """On how many times as many devices as one how many times the line's own rate on one."""
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
