"""Tables and wrapped text for a terminal of a given width."""

import io
import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from pytest_dtfperf.formats import printable

MIN_TEXT = 12  # least columns for text on a narrow terminal
GAP = 2  # blanks between two columns
DEFAULT_COLUMNS = 80  # of a terminal of unknown width
_SHELL_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")


def measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(Text(cell).cell_len for cell in column) for column in zip(*rows, strict=True)]


def sum_widths(columns: Sequence[int]) -> int:
    return sum(columns) + GAP * (len(columns) - 1)


def fit_columns(columns: Sequence[int], width: int, positions: Iterable[int] = (-1, 0)) -> list[int]:
    """Make the columns at `positions`, which have text, narrower one after the other until all fit; numbers are never cut."""
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
    text_columns: Collection[int] = (0, -1),
    styles: Mapping[str, str] | None = None,
) -> Table:
    """Return a table with text to the left (by default the first and last column) and numbers to the right.

    A column without a width has the width of its cells, and folds them if there is not enough room.
    """
    drawn = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_header=bool(headings))
    left = {position % len(columns) for position in text_columns}
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


def wrap_text(text: str, width: int) -> list[str]:
    """Return the lines of a text, wrapped only between words, so that each path stays whole and can be copied."""
    indent = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(text, max(1, width), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def wrap_command(command: str, width: int) -> list[str]:
    """Return the lines of a shell command, wrapped between arguments, each but the last with a backslash at its end."""
    lines = [""]
    for word in _SHELL_WORD.findall(command):
        if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
            lines.append("  ")
        lines[-1] += f" {word}" if lines[-1].strip() else word
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]] if len(command) > width else [command]


def wrap_note(text: str, width: int) -> Text:
    """Return a note wrapped by `wrap_text`, without control characters."""
    return Text("\n".join(wrap_text(printable(text.replace("\n", " ")), width)), no_wrap=True, overflow="ignore")


def render(blocks: Iterable[RenderableType], width: int, colour: bool) -> str:
    """Render for a terminal of this width, independent of the environment."""
    console = Console(
        file=io.StringIO(),
        width=width,
        height=25,  # without it, rich takes a terminal with TERM=dumb to have 80 columns
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
