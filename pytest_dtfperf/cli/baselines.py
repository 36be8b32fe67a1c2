"""`dtfperf baselines ...`: what is to be done with accepted measurements besides accepting them."""

import argparse
from importlib import import_module

from pytest_dtfperf.cli.terms import Commands

# Modules of this package, each with `add(commands)`, as for `dtfperf` itself; `remove` brings `uncalibrate`, too.
SUBCOMMANDS = ("audit", "calibrate", "remove")


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    baselines = commands.add_parser("baselines", help="accepted measurements: can they be relied upon?").add_subparsers(
        title="commands", required=True, metavar="COMMAND"
    )
    for module in SUBCOMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add(baselines)
