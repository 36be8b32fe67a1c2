"""`dtfperf history ...`: what all sessions have measured, and since when it is otherwise."""

import argparse
from importlib import import_module

from pytest_dtfperf.cli.terms import Commands, add_group

# Modules of this package, each with `add(commands)`, as for `dtfperf` itself.
SUBCOMMANDS = ("sessions", "trend", "compare", "changes", "bring", "prune", "export")

TEXT = """\
Every session goes into a history when it ends: history.sqlite beside the session folders, or the database that --history, the
variable DTFPERF_HISTORY or the project's dtfperf_history names. docs/history.md says what is in it.

    dtfperf history list
    dtfperf history trend model=alexnet gpus=8
    dtfperf history changes --json
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "all sessions: list, show, trend, compare, changes, import, prune, export"
    history = add_group(commands, "history", help=text, text=TEXT)
    for module in SUBCOMMANDS:
        import_module(f"pytest_dtfperf.cli.history.{module}").add(history)
