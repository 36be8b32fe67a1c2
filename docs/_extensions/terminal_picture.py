"""Run a command, and draw what it prints as a picture of a terminal.

    python docs/_extensions/terminal_picture.py docs/session.svg dtfperf run mnist gpus=2

The picture has the command behind a prompt, and the output with its colours. It refers to no other file or site.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS = 104
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # of another site, which a picture on a page may not load
SESSION_FOLDER = re.compile(r"/\S*/(?=perf_results/)")  # differs between machines


def run_command(command: Sequence[str]) -> str:
    """Return what the command prints on a terminal that cannot overwrite lines. Raises `CalledProcessError`."""
    variables = {**os.environ, "COLUMNS": str(COLUMNS), "FORCE_COLOR": "1", "TERM": "dumb"}
    ours, theirs = os.openpty()
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=variables)
    os.close(theirs)
    printed = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if code := process.wait():
        raise subprocess.CalledProcessError(code, command, printed)
    return printed.decode().replace("\r\n", "\n")


def _read(descriptor: int) -> bytes:
    """Return the next bytes of a terminal; none at its end, which Linux reports as an error."""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def draw_terminal(command: Sequence[str], output: str) -> str:
    """Return an SVG picture of the command and its output."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text(f"$ {shlex.join(command)}", style="bold"))
    console.print(Text.from_ansi(SESSION_FOLDER.sub("", output.rstrip())))
    svg = console.export_svg(title="", theme=MONOKAI, unique_id="session")
    return FONT.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas")


def main(arguments: Sequence[str]) -> None:
    picture, *command = arguments
    Path(picture).write_text(draw_terminal(command, run_command(command)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
