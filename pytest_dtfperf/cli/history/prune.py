"""`dtfperf history prune`: forget old sessions. Their folders stay."""

import argparse
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, opened
from pytest_dtfperf.cli.output import confirmed, print_json, say
from pytest_dtfperf.cli.terms import DONE, FAILED, USAGE, Commands, add_command, add_json
from pytest_dtfperf.errors import UsageError, shown
from pytest_dtfperf.formats import counted

if TYPE_CHECKING:
    from pytest_dtfperf.history.rows import Row

TEXT = """\
Forgets old sessions, after it has said how many and asked: all but the latest, or those before a date. Session folders stay as
they are, and can be entered again with `dtfperf history import`. Changes are then searched for in what is left.

    dtfperf history prune --keep=400
    dtfperf history prune --before=2025-01-01 --yes            # where nobody can be asked
"""
ENDS = {
    DONE: "they were forgotten",
    FAILED: "there are none such, or the answer was no",
    USAGE: "wrong arguments, a history that cannot be written, or there is nobody to ask and no --yes",
}
SHAPE = {"forgotten": "a list of sessions"}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "prune", help="forget old sessions", text=TEXT, ends=ENDS)
    parser.add_argument("--keep", metavar="N", type=int, help="all but the latest N")
    parser.add_argument("--before", metavar="DATE", help="those that began before this day: 2025-01-01")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    if (args.keep is None) == (args.before is None) or (args.keep is not None and args.keep < 1):
        raise UsageError("prune takes --keep=N, with N of at least 1, or --before=DATE")
    if args.before is not None and not _is_day(args.before):
        raise UsageError(f"--before takes a day, as 2025-01-01, not {shown(args.before)}")
    database = opened(args)
    with database.reading() as connection:
        names = [row["id"] for row in _old(store.all_sessions(connection), args)]
    question = f"{counted(len(names), 'session')} of {database.address} will be forgotten. Go on?"
    if names and (args.yes or confirmed(question)):
        database.write(lambda connection: store.remove(connection, names))
    else:
        if args.json:
            print_json({"forgotten": []})
        say("nothing was changed.")
        return FAILED
    if args.json:
        print_json({"forgotten": names})
    else:
        print(f"dtfperf: {counted(len(names), 'session')} forgotten.")
    return DONE


def _is_day(text: str) -> bool:
    """As sessions' times begin, so that texts sort as days do."""
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat() == text
    return False


def _old(sessions: "Sequence[Row]", args: argparse.Namespace) -> "Sequence[Row]":
    if args.keep is not None:
        return sessions[: -args.keep]
    return [row for row in sessions if row["started"] < args.before]
