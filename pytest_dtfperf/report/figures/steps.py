"""The steps of one run, worker by worker: how long each took, and how these times are spread."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from pytest_dtfperf.report.figures.style import PALETTE, apply_style, make_figure

DASHES = ("-", "--", ":", "-.")  # with more workers than colours, a colour comes again with other dashes
MOST_NAMED = 16  # workers: more have no room in a legend


@apply_style()
def draw_steps(title: str, step_s: Mapping[str, Sequence[float]], *, beneath: Sequence[str] = ()) -> Figure:
    """`step_s`: seconds of each measured step, by worker. Left over the steps, right the share that was as short or shorter.

    Ids: `steps-0` and `shares-0` of the first worker, in the order of their numbers.
    """
    workers = sorted(step_s, key=lambda name: (len(name), name))  # worker:2 before worker:10
    named = len(workers) <= MOST_NAMED
    below = -(-len(workers) // 8) if named else 1
    figure = make_figure(title, height=4.2 + 0.2 * (below + len(beneath)))
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
    lines = [*beneath, *([] if named else [f"{len(workers)} workers, which have no room for their names here"])]
    handles = over_steps.lines if named else []
    figure.legend(handles=handles, loc="outside lower left", title="\n".join(lines), alignment="left", ncols=8)
    return figure
