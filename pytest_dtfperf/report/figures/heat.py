"""Rates over parameter servers and devices, as a heat map with its numbers: how many servers, for how many devices."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedFormatter, FixedLocator

from pytest_dtfperf.formats import rate
from pytest_dtfperf.report.figures.style import INK, PALETTE, apply_style, make_figure
from pytest_dtfperf.report.series import ScalingPoint

HeatMapCells = Mapping[tuple[int, int], ScalingPoint]  # by number of parameter servers, then of devices

LIGHT = 0.55  # of the column's best: letters on darker cells are white
INCHES = 0.95, 0.5  # of a cell


@apply_style()
def draw_heat_map(title: str, maps: Mapping[str, HeatMapCells], *, beneath: Sequence[str] = ()) -> Figure:
    """One map below the other, each with the name of its way to train.

    Colour is a cell's share of the best of its column, for that is what one chooses from; the best has an edge. A TAINTED cell
    is written with an x, is never the best, and has no colour. Ids: `cell-0-4-8` is the first map's, 4 servers, 8 devices.
    """
    sizes = [(len({ps for ps, _ in cells}), len({gpus for _, gpus in cells})) for cells in maps.values()]
    width = max(8.5, 2.0 + INCHES[0] * max(columns for _, columns in sizes))
    height = 1.2 + 0.2 * len(beneath) + sum(1.1 + INCHES[1] * rows for rows, _ in sizes)
    figure = make_figure(title, width, height)
    panels = figure.subplots(len(maps), 1, squeeze=False, height_ratios=[1 + rows for rows, _ in sizes])[:, 0]
    for number, (axes, (name, cells)) in enumerate(zip(panels, maps.items(), strict=True)):
        axes.set_title(name)
        _draw_map(axes, cells, number)
    lines = ["images/sec; framed: the most for so many devices; x: TAINTED, something else disturbed every run", *beneath]
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
