"""`dtfperf baselines ...`: what is to be done with accepted measurements besides accepting them."""

import argparse
from importlib import import_module

from pytest_dtfperf.cli.terms import Commands

# Modules of this package, each with `add(commands)`, as for `dtfperf` itself; `remove` brings `uncalibrate`, too.
SUBCOMMANDS = ("audit", "calibrate", "remove")

TEXT = """\
A baseline is a measurement that somebody has accepted (pytest perf_tests --update-baselines), and that later ones of the same
training on the same hardware are compared with. They are kept in baselines/, a file for each kind of hardware.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "accepted measurements: audit, calibrate, remove"
    group = commands.add_parser("baselines", help=text, description=TEXT)
    baselines = group.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in SUBCOMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add(baselines)
