"""`dtfperf baselines ...`: what is to be done with accepted measurements besides accepting them."""

import argparse
from importlib import import_module

from pytest_dtfperf.cli.terms import Commands, add_group

# Modules of this package, each with `add(commands)`, as for `dtfperf` itself; `remove` brings `uncalibrate`, too.
SUBCOMMANDS = ("audit", "calibrate", "remove")

TEXT = """\
A baseline is a measurement that somebody has accepted (pytest perf_tests --update-baselines), and that later ones of the same
training on the same hardware are compared with. They are kept in baselines/, a file for each kind of hardware.

    dtfperf baselines audit
    dtfperf baselines calibrate --sessions=10 perf_tests --cluster=daint
    dtfperf baselines remove model=alexnet
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "accepted measurements: audit, calibrate, remove"
    baselines = add_group(commands, "baselines", help=text, text=TEXT)
    for module in SUBCOMMANDS:
        import_module(f"pytest_dtfperf.cli.{module}").add(baselines)
