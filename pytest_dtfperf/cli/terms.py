"""What all commands of dtfperf share: their names, how they end, the options that say which cluster, and how tables look."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TextIO

from pytest_dtfperf.cli.project import configured
from pytest_dtfperf.clusters import file, named
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import DtfPerfError

# Modules of this package. Each has `add(commands)`, which makes its parser and sets `run`, a function of the arguments that
# returns an exit code; it imports what it works with when it runs.
COMMANDS = (
    "init", "clusters", "doctor", "run", "judge", "explain", "nightly", "history", "site", "figures", "baselines", "slurm",
    "ec2", "launch", "notebook", "data", "make_data", "completion",
)  # fmt: skip

DONE, FAILED, USAGE = 0, 1, 2
INTERRUPTED, CUT_OFF = 130, 141  # as shells say it: SIGINT, SIGPIPE
BASELINES, RESULTS = "baselines", "perf_results"  # folders, where neither an option nor the project names another
WIDE = 200  # columns of a log: lines there are searched, not looked at

Commands = argparse._SubParsersAction  # what `add_subparsers` returns has no public name


def add_command(commands: "Commands[argparse.ArgumentParser]", name: str, *, help: str, text: str) -> argparse.ArgumentParser:  # noqa: A002
    """A command whose `--help` shows `text` as it is."""
    return commands.add_parser(name, help=help, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_cluster(parser: argparse.ArgumentParser, *, required: bool, text: str) -> None:
    """--cluster and --clusters-file."""
    action = parser.add_argument("--cluster", metavar="NAME", required=required, help=text)
    completed_by(action, cluster_names)
    text = (
        "by default what the project's dtfperf_clusters_file says, or clusters.toml here, in perf_tests, or in a folder above"
    )
    parser.add_argument("--clusters-file", metavar="FILE", help=text)


def completed_by(action: argparse.Action, complete: Callable[..., Iterable[str]]) -> None:
    """What a shell offers for the argument: argcomplete calls it with `prefix`, `parsed_args` and more."""
    vars(action)["completer"] = complete


def cluster_names(parsed_args: argparse.Namespace, **_: object) -> Iterable[str]:
    """Of the cluster file that would be read; none where it cannot be."""
    try:
        return named.load(file.find(clusters_file(parsed_args), ["."]))
    except DtfPerfError:
        return ()


def cluster_of(args: argparse.Namespace) -> ClusterConfig:
    """The cluster that --cluster names. Raises `ClusterFileError`, `UsageError`."""
    return named.choose(args.cluster, clusters_file(args), ["."])[1]


def clusters_file(args: argparse.Namespace) -> str | Path | None:
    """The one that was named, by an option or by the project. Raises `UsageError`."""
    return args.clusters_file or configured("dtfperf_clusters_file")


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """--baselines: `baselines_folder` is what it means."""
    text = f"their folder; by default what the project's dtfperf_baselines says, or {BASELINES} here"
    parser.add_argument("--baselines", metavar="DIR", help=text)


def baselines_folder(args: argparse.Namespace) -> Path:
    """The folder of baselines, which need not be there. Raises `UsageError`."""
    return Path(args.baselines or configured("dtfperf_baselines") or BASELINES)


def add_results(parser: argparse.ArgumentParser) -> None:
    """--results: `results_folder` is what it means."""
    text = f"where sessions are kept; by default what the project's dtfperf_perf_results says, or {RESULTS} here"
    parser.add_argument("--results", metavar="DIR", help=text)


def results_folder(args: argparse.Namespace) -> Path:
    """The folder of sessions' folders, which need not be there. Raises `UsageError`."""
    return Path(args.results or configured("dtfperf_perf_results") or RESULTS)


def colour(stream: TextIO) -> bool:
    """Whether to write colours and bold letters there. As pytest has it, so that all that is ours looks alike."""
    if os.environ.get("NO_COLOR"):  # https://no-color.org: whatever it says, unless it is empty
        return False
    if os.environ.get("FORCE_COLOR"):  # https://force-color.org: likewise
        return True
    return is_terminal(stream)


def is_terminal(stream: TextIO) -> bool:
    """Whether lines can be drawn over there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On stdout, as wide as the terminal, or as a log may be."""
    from pytest_dtfperf.report.drawing import render, table

    drawn = table(headings, rows, [None] * len(headings), words=range(len(headings)))
    print(render([drawn], columns(sys.stdout), colour(sys.stdout)), end="")


def columns(stream: TextIO) -> int:
    """Columns of what is printed there: COLUMNS, or what the terminal says; of one that says nothing, as many as all have."""
    if not stream.isatty():
        return WIDE
    given = os.environ.get("COLUMNS", "")
    return int(given) if re.fullmatch("[1-9][0-9]{0,3}", given) else os.get_terminal_size(stream.fileno()).columns or 80
