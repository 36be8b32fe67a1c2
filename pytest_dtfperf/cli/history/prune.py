"""`dtfperf history prune`: forget old sessions. Their folders stay."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, opened, print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted

if TYPE_CHECKING:
    from pytest_dtfperf.history.rows import Row

TEXT = """\
Forgets old sessions, after it has said how many and asked: all but the latest, or those before a date. Session folders stay as
they are, and can be entered again with `dtfperf history import`. Changes are then searched for in what is left.

    dtfperf history prune --keep=400
    dtfperf history prune --before=2025-01-01 --yes            # where nobody can be asked

Exit codes: 0 they were forgotten; 1 there are none such, or the answer was no; 2 wrong arguments, a history that cannot be
written, or there is nobody to ask and no --yes.
"""
YES = ("y", "yes")


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "prune", help="forget old sessions", text=TEXT)
    parser.add_argument("--keep", metavar="N", type=int, help="all but the latest N")
    parser.add_argument("--before", metavar="DATE", help="those that began before this day: 2025-01-01")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_history(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    if (args.keep is None) == (args.before is None) or (args.keep is not None and args.keep < 1):
        raise UsageError("prune takes --keep=N, with N of at least 1, or --before=DATE")
    database = opened(args)
    with database.reading() as connection:
        names = [row["id"] for row in _old(store.all_sessions(connection), args)]
    if names and (args.yes or _confirmed(len(names), str(database.address))):
        database.write(lambda connection: store.remove(connection, names))
    else:
        print("dtfperf: nothing was changed.", file=sys.stderr)
        return FAILED
    if args.json:
        print_json([{"forgotten": names}])
    else:
        print(f"dtfperf: {counted(len(names), 'session')} forgotten.")
    return DONE


def _old(sessions: "Sequence[Row]", args: argparse.Namespace) -> "Sequence[Row]":
    if args.keep is not None:
        return sessions[: -args.keep]
    return [row for row in sessions if row["started"] < args.before]


def _confirmed(count: int, where: str) -> bool:
    """Raises `UsageError` where nobody can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nothing was changed: there is no terminal to ask at; add --yes if that is what you want")
    try:
        answer = input(f"dtfperf: {counted(count, 'session')} of {where} will be forgotten. Go on? [y/N] ")
    except EOFError:
        print()
        return False
    return answer.strip().lower() in YES
