"""What all commands of dtfperf share: their names, how they end, the options that say which cluster, and how tables look."""

import argparse
import os
import sys
from typing import TextIO

from pytest_dtfperf.clusters import named
from pytest_dtfperf.clusters.named import ClusterConfig

# Modules of this package. Each has `add(commands)`, which makes its parser and sets `run`, a function of the arguments that
# returns an exit code; it imports what it works with when it runs.
COMMANDS = ("doctor", "judge", "baselines", "slurm", "ec2", "data", "make_data")

DONE, FAILED, USAGE = 0, 1, 2
INTERRUPTED = 130  # as shells say it
WIDE = 200  # columns of a log: lines there are searched, not looked at

Commands = argparse._SubParsersAction  # what `add_subparsers` returns has no public name


def add_command(commands: "Commands[argparse.ArgumentParser]", name: str, *, help: str, text: str) -> argparse.ArgumentParser:  # noqa: A002
    """A command whose `--help` shows `text` as it is."""
    return commands.add_parser(name, help=help, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_cluster(parser: argparse.ArgumentParser, *, required: bool, text: str) -> None:
    """--cluster and --clusters-file."""
    parser.add_argument("--cluster", metavar="NAME", required=required, help=text)
    parser.add_argument(
        "--clusters-file", metavar="FILE", help="by default clusters.toml here, in perf_tests, or in a folder above"
    )


def cluster_of(args: argparse.Namespace) -> ClusterConfig:
    """The cluster that --cluster names. Raises `ClusterFileError`."""
    return named.choose(args.cluster, args.clusters_file, ["."])[1]


def width() -> int | None:
    """Columns of what is printed: the terminal's, as rich finds it, or enough for a log."""
    return None if sys.stdout.isatty() else WIDE


def columns(stream: TextIO) -> int:
    """Columns of what is printed there. Of a terminal that does not tell, as many as all have."""
    return (os.get_terminal_size(stream.fileno()).columns or 80) if stream.isatty() else WIDE
