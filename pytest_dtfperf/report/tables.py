"""Tables and notes for a terminal of a given width. Values in, text out."""

import io
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pytest_dtfperf.formats import printable

MIN_TEXT = 12  # columns that words keep however narrow the terminal is
GAP = 2  # blanks between two columns


def measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(Text(cell).cell_len for cell in column) for column in zip(*rows, strict=True)]


def sum_widths(columns: Sequence[int]) -> int:
    return sum(columns) + GAP * (len(columns) - 1)


def fit_columns(columns: Sequence[int], width: int, positions: Iterable[int] = (-1, 0)) -> list[int]:
    """Make the columns at `positions`, which are words, narrower one after the other until all fit; numbers are never cut."""
    fitted = list(columns)
    for position in positions:
        excess = max(0, sum_widths(fitted) - width)
        fitted[position] = max(min(MIN_TEXT, fitted[position]), fitted[position] - excess)
    return fitted


def make_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    columns: Sequence[int | None],
    *,
    words: Collection[int] = (0, -1),
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Words to the left, by default those of the first and last column; numbers to the right. `styles`: those of some cells.

    A column without a width has the room that its cells need, and where there is not so much, folds them.
    """
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_header=bool(headings))
    left = {position % len(columns) for position in words}
    for position, width in enumerate(columns):
        heading = headings[position] if headings else ""
        side: Literal["left", "right"] = "left" if position in left else "right"
        if width is None:
            drawn.add_column(heading, justify=side, overflow="fold")
        else:
            drawn.add_column(heading, justify=side, no_wrap=True, width=width)
    for row in rows:
        drawn.add_row(*(Text(printable(cell), style=(styles or {}).get(cell, "")) for cell in row))
    return drawn


def wrap_note(text: str, width: int) -> Text:
    """Wrapped between words only, so that a path or a command stays whole to be copied. Nothing in it obeys a terminal."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    lines = textwrap.wrap(
        printable(text.replace("\n", " ")), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines), no_wrap=True, overflow="ignore")


def render(blocks: Iterable[RenderableType], width: int, colour: bool) -> str:
    """Draw for a terminal of this width, whatever the environment of this process says about its own."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        force_jupyter=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as capture:
        for block in blocks:
            console.print(block, crop=False)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"
