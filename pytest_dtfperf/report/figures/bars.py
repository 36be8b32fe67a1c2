"""Groups of bars with their values written on them: what rates.py and overhead.py draw into axes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from pytest_dtfperf.report.figures.style import PALETTE

HATCHES = ("", "///", "...", "\\\\\\", "xx", "---", "ooo")  # in print without colours, too, they are told apart
INCHES_A_BAR = 0.3  # of a figure's width
WIDTH = 0.84  # of a group of bars, of the distance between two
MOST_UPRIGHT = 14  # bars: values on more than so many are written upwards


@dataclass(frozen=True)
class Bars:
    """One kind of bar."""

    label: str
    values: Mapping[int, float]  # by number of devices
    tainted: Collection[int] = ()  # numbers of devices


def draw_bars(axes: Axes, kinds: Sequence[Bars], written: Callable[[float], str]) -> list[Patch]:
    """A group for each number of devices; returns what a legend shows.

    Ids in the SVG: `bar-0-8` is the first kind's on 8 devices. What is TAINTED is pale, and has a dashed edge.
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
                written(value),
                (at, value),
                (0, 3 if value >= 0 else -3),
                textcoords="offset points",
                ha="center",
                va="bottom" if value >= 0 else "top",
                rotation=90 if turned else 0,
                fontsize=8,
            )
    values = [0.0, *(value for bars in kinds for value in bars.values.values())]
    room = 1.28 if turned else 1.1  # for what is written on the highest
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
