"""The style of all figures, and their conversion to SVG and PNG. The same numbers give the same bytes."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

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


def make_figure(title: str, width: float = 10.5, height: float = 4.2) -> Figure:
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
