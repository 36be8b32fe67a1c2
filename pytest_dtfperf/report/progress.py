"""Progress of training: a live bar on a terminal, otherwise one line when a run starts and one when it ends.

Progress shares its cores with the training that it reports, so no thread redraws it, and not every event is drawn.
"""

import os
import textwrap
import time
from collections.abc import Callable
from functools import update_wrapper
from typing import Concatenate, ParamSpec, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pytest_dtfperf.datamodel.measurement import Run
from pytest_dtfperf.formats import duration, rate
from pytest_dtfperf.spec import Spec

REDRAW_S = 0.25  # a drawing costs about a millisecond of a core that is being measured, and a faster one is not readable

NARROW = 80  # columns of a terminal of unknown width
LEAST_LABEL = 20  # least columns for a training's name
INDENT = "    "  # of continuation lines

P = ParamSpec("P")


def wrap_line(line: str, width: int | None) -> list[str]:
    """Wrap the line between words. A word that is longer than a line is cut."""
    if width is None or len(line) <= width:
        return [line]
    text = " ".join(cut(word, width - len(INDENT)) for word in line.split(" "))
    return textwrap.wrap(text, width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


def _ignore_errors(event: Callable[Concatenate["Progress", P], None]) -> Callable[Concatenate["Progress", P], None]:
    """Return a method that drops all events after one that cannot be shown: a closed terminal must not end a measurement."""

    def call_unless_broken(self: "Progress", /, *args: P.args, **kwargs: P.kwargs) -> None:
        if self._broken:
            return
        try:
            event(self, *args, **kwargs)
        except Exception:  # numbers matter more than their display
            self._broken = True

    update_wrapper(call_unless_broken, event)
    return call_unless_broken


class Progress:
    """Shows the runs of one session, one at a time. Methods do not raise.

    `fresh_line` is called before each output, to end a line of pytest; `where` returns the position in the session.
    """

    def __init__(
        self,
        file: TextIO,
        *,
        is_terminal: bool,
        width: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        fresh_line: Callable[[], None] = lambda: None,
        where: Callable[[], str] = lambda: "",
        is_quiet: bool = False,
    ) -> None:
        """Create it. `width`: columns at which lines wrap, if any; `is_quiet`: one short line for each run."""
        self._width = width
        self._is_quiet = is_quiet
        self._file = file
        self._fresh_line = fresh_line
        self._where = where
        can_overwrite = is_terminal and os.environ.get("TERM") != "dumb"
        self._console = Console(file=file, force_terminal=True, width=width, highlight=False) if can_overwrite else None
        self._clock = clock
        self._broken = False
        self._live: Live | None = None
        self._drawn_s = float("-inf")
        self._waited_for = ""
        self._waits_since: float | None = None
        self._title = ""
        self._short = ("", "")
        self._phase = ""
        self._steps: dict[str, int] = {}  # task -> step
        self._total_steps = 0
        self._rate: float | None = None

    @_ignore_errors
    def run_started(self, spec: Spec, number: int, total: int, stack: str | None = None) -> None:
        """Show a run before its tasks are started; `total` is the maximum of runs, and `stack` the software stack's name."""
        label = f"{spec.label} ({stack})" if stack else spec.label
        self._title, self._short = f"{label}, run {number} of {total}", (label, f" {number}/{total}: ")
        self._phase, self._steps, self._total_steps, self._rate = "starting", {}, 0, None
        self._waits_since = None
        if self._console is not None:
            self._show()
        elif not self._is_quiet:
            self._print_line(f"{self._headline} ...")

    @_ignore_errors
    def waiting(self, phase: str) -> None:
        """Show the state of waiting for hosts. A log gets a line when the text changes."""
        self._phase, self._steps = phase, {}
        if self._waits_since is None:
            self._waits_since = self._clock()
        if self._console is not None:
            self._show()
        elif phase != self._waited_for:
            self._print_line(phase)
        self._waited_for = phase

    @_ignore_errors
    def step(self, task: str, step: int, total_steps: int, images_per_sec: float | None = None) -> None:
        """Show the step of a task, called up to some times a second. The slowest task is shown.

        `total_steps` is 0 for an external command: its lines are counted.
        """
        self._steps[task] = step
        self._total_steps = total_steps
        if images_per_sec is not None:
            self._rate = images_per_sec
        if self._clock() - self._drawn_s >= REDRAW_S:
            self._draw()

    @_ignore_errors
    def run_ended(self, run: Run) -> None:
        """Show the result of a run."""
        shown = f"{rate(run.images_per_sec)} images/sec"
        if self._console is None and self._is_quiet:
            self._print_short(shown + ", disturbed" * bool(run.disturbances))
        elif self._console is None:
            why = f", disturbed: {'; '.join(map(str, run.disturbances))}" if run.disturbances else ""
            self._print_line(f"{self._headline}: {shown} ({run.wall_s:.1f} s){why}")
        self._erase()
        if self._console is not None and run.disturbances:
            self._print_line(f"{self._title}: {shown}, disturbed: {'; '.join(map(str, run.disturbances))}")

    @_ignore_errors
    def show_remark(self, text: str) -> None:
        """Show a line that stays, on a terminal, too."""
        self._erase()
        self._print_line(text)

    @_ignore_errors
    def run_failed(self, reason: str) -> None:
        """Show that a run failed, or that there were no hosts for it; `reason` is one line."""
        if self._console is None and self._title:
            self._print_short(reason) if self._is_quiet else self._print_line(f"{self._headline}: {reason}")
        self._erase()

    @_ignore_errors
    def end_measurement(self) -> None:
        """End the display after the last run of a spec, or after a failed wait: pytest continues its own line."""
        self._erase()
        self._title, self._waited_for, self._waits_since = "", "", None

    @_ignore_errors
    def close(self) -> None:
        """Restore the terminal at the end, whatever happened."""
        self._erase()

    @property
    def _headline(self) -> str:
        return ": ".join(filter(None, [self._where(), self._title]))

    def _print_line(self, line: str) -> None:
        self._fresh_line()
        self._file.write("\n".join(wrap_line(line, self._width)) + "\n")
        self._file.flush()

    def _print_short(self, result: str) -> None:
        """Print a result in one line; the name of the training is cut first."""
        label, run = self._short
        where = f"{self._where()} " if self._where() else ""
        width = self._width or NARROW
        room = width - len(where + run + result)
        self._fresh_line()
        self._file.write(cut(f"{where}{cut(label, max(room, LEAST_LABEL))}{run}{result}", width) + "\n")
        self._file.flush()

    def _show(self) -> None:
        if self._live is None:
            self._fresh_line()
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()
        self._draw()

    def _erase(self) -> None:
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    def _draw(self) -> None:
        if self._live is None:
            return
        self._drawn_s = self._clock()
        title = [Text(self._headline, no_wrap=True, overflow="ellipsis")] if self._title else []
        self._live.update(Group(*title, self._format_bar()), refresh=True)

    def _format_bar(self) -> Table:
        if not self._steps:
            return self._make_phase_line()
        step = min(self._steps.values())
        if not self._total_steps:
            return _make_line(Text("  running", style="dim"), f"line {step}")
        message = f"step {step}/{self._total_steps}" + (f"  {rate(self._rate)} images/sec" if self._rate is not None else "")
        return _make_line(ProgressBar(total=self._total_steps, completed=step), message)

    def _make_phase_line(self) -> Table:
        """Return the current phase, with the time that it has lasted if it is a wait."""
        waited = "" if self._waits_since is None else duration(self._clock() - self._waits_since)
        return _make_line(Text(f"  {self._phase}", style="dim", no_wrap=True, overflow="ellipsis"), waited)


def _make_line(left: RenderableType, right: str) -> Table:
    """Return both texts in one line; the left one is cut."""
    line = Table.grid(padding=(0, 2, 0, 0), expand=True)
    line.add_column(ratio=1)
    line.add_column(no_wrap=True)
    line.add_row(left, right)
    return line
