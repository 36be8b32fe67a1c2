"""What all commands of a history share: which one it is."""

import argparse
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.project import configured_history
from pytest_dtfperf.cli.terms import add_results, results_folder
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.where import VARIABLE, Address, address_of, asked_for

if TYPE_CHECKING:
    from pytest_dtfperf.history.database import Database


def add_history(parser: argparse.ArgumentParser) -> None:
    """--history and --results."""
    text = f"by default what {VARIABLE} or the project's dtfperf_history says, or history.sqlite among the sessions' folders"
    parser.add_argument("--history", metavar="FILE|URL", help=text)
    add_results(parser)


def count(text: str) -> int:
    """What --last takes."""
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"takes a whole number of at least 1, not {text!r}")
    return int(text)


def address(args: argparse.Namespace) -> Address:
    """Raises `UsageError` where the project keeps none."""
    found = address_of(asked_for(args.history) or configured_history(), results_folder(args))
    if found is None:
        raise UsageError("no history is kept here, as the project says (`never`); name one with --history")
    return found


def opened(args: argparse.Namespace) -> "Database":
    """The history, which must be there. Raises `HistoryError`, `UsageError`."""
    from pytest_dtfperf.history.database import Database

    return Database.open(address(args))
