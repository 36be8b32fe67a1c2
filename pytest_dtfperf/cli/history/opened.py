"""What all commands of a history share: which one it is, and how what they find is printed."""

import argparse
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.project import configured_history
from pytest_dtfperf.cli.terms import add_results, results_folder
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.history.where import VARIABLE, Address, address_of

if TYPE_CHECKING:
    from pytest_dtfperf.history.database import Database


def add_history(parser: argparse.ArgumentParser) -> None:
    """--history, --results and --json."""
    text = f"by default what {VARIABLE} or the project's dtfperf_history says, or history.sqlite among the sessions' folders"
    parser.add_argument("--history", metavar="FILE|URL", help=text)
    add_results(parser)
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")


def address(args: argparse.Namespace) -> Address:
    """Raises `UsageError` where the project keeps none."""
    found = address_of(args.history or os.environ.get(VARIABLE) or configured_history(), results_folder(args))
    if found is None:
        raise UsageError("no history is kept here, as the project says (`never`); name one with --history")
    return found


def opened(args: argparse.Namespace) -> "Database":
    """The history, which must be there. Raises `HistoryError`, `UsageError`."""
    from pytest_dtfperf.history.database import Database

    return Database.open(address(args))


def print_json(lines: Iterable[Mapping[str, Any]]) -> None:
    for line in lines:
        print(json.dumps(line, ensure_ascii=False, allow_nan=False))
