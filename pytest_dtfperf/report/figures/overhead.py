"""What real input costs: the fraction of the rate with synthetic input that is lost, as bars with their values."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pytest_dtfperf.formats import percent
from pytest_dtfperf.report.figures.bars import INCHES_A_BAR, Bars, draw_bars
from pytest_dtfperf.report.figures.style import GREY, apply_style, make_figure


@apply_style()
def draw_overhead(title: str, overheads: Mapping[str, Mapping[int, float]], *, beneath: Sequence[str] = ()) -> Figure:
    """`overheads`: fractions by label and number of devices; below zero, real input was the faster. Ids: those of the bars."""
    bars = INCHES_A_BAR * sum(map(len, overheads.values()))
    figure = make_figure(title, max(6.0, 1.5 + bars), 4.2 + 0.18 * (len(overheads) + len(beneath)))
    axes = figure.subplots()
    legend = draw_bars(axes, [Bars(label, values) for label, values in overheads.items()], percent)
    axes.axhline(0.0, color=GREY, linewidth=1)
    axes.set_ylabel("I/O overhead")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    figure.legend(handles=legend, loc="outside lower left", title="\n".join(beneath), alignment="left")
    return figure
