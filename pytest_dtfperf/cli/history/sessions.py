"""`dtfperf history list` and `show`: which sessions there are, and what one of them has measured."""

import argparse
from collections.abc import Mapping
from typing import Any

from pytest_dtfperf.cli.history.opened import add_history, count, opened
from pytest_dtfperf.cli.output import print_json, say
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    OTHERS,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    cluster_names,
    completed_by,
    print_table,
    session_ids,
)
from pytest_dtfperf.formats import NONE, counted, duration, minute, printable

LIST = """\
Lists the sessions of a history, the latest last: when each began, where, how its tests ended, and with which exit code.

    dtfperf history list
    dtfperf history list --cluster=daint --last=10
    dtfperf history list --json
"""

SHOW = """\
Shows what a session has measured: the one of this id, of the begin of an id, of a date, of a commit, or the last one of a
version (tensorflow=2.21.0).

    dtfperf history show 20260131T021503Z-9f3c1a
    dtfperf history show 2026-01-31
    dtfperf history show last
"""
SESSION: Shape = {
    "id": "of the session",
    "started": "UTC",
    "cluster": "that it was on",
    "verdicts": "how many there are of each, as an object",
    "wall_s": "how long it took; null: it is not over",
    "exit_code": "null: it is not over",
    "commit": "of the project; null: not known",
    OTHERS: "every column of the table of sessions: see docs/history.md",
}
TABLES: Shape = {
    "measurements": "a list of rows of the table of measurements",
    "runs": "a list of rows of the table of runs",
    "hosts": "a list of rows of the table of hosts",
}

LIST_ENDS = {
    DONE: "there are some",
    FAILED: "there is none",
    USAGE: "wrong arguments, or a history that cannot be read",
}
SHOW_ENDS = {DONE: "shown", USAGE: "wrong arguments, no such session, or a history that cannot be read"}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "list", help="the sessions of a history", text=LIST, ends=LIST_ENDS)
    completed_by(parser.add_argument("--cluster", metavar="NAME", help="of this cluster alone"), cluster_names)
    parser.add_argument("--last", metavar="N", type=count, help="the latest N alone")
    add_history(parser)
    add_json(parser, {"sessions": [SESSION]})
    parser.set_defaults(run=_list)
    parser = add_command(commands, "show", help="what a session has measured", text=SHOW, ends=SHOW_ENDS)
    text = "an id, a date, a commit, a version, or `last`"
    completed_by(parser.add_argument("session", metavar="SESSION", help=text), session_ids)
    add_history(parser)
    add_json(parser, {**SESSION, **TABLES})
    parser.set_defaults(run=_show)


def _list(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    with opened(args).reading() as connection:
        found = [row for row in store.all_sessions(connection) if args.cluster in (None, row["cluster"])]
    found = found[-args.last :] if args.last else found
    if args.json:
        print_json({"sessions": found})
    elif found:
        headings = ("session", "started", "cluster", "verdicts", "took", "exit code", "commit")
        print_table(headings, [_cells(row) for row in found])
    if not found:
        say("there is no such session in the history.")
    return DONE if found else FAILED


def _cells(row: Mapping[str, Any]) -> list[str]:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items())
    took = duration(row["wall_s"]) if row["wall_s"] is not None else "not over"
    code = NONE if row["exit_code"] is None else str(row["exit_code"])
    commit = (row["commit"] or NONE)[:12]
    return [row["id"], minute(row["started"]), row["cluster"], verdicts or NONE, took, code, commit]


def _show(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.chosen import chosen
    from pytest_dtfperf.history.tables import hosts, measurements, runs
    from pytest_dtfperf.history.words import measurement_cells

    with opened(args).reading() as connection:
        session = chosen(store.all_sessions(connection), args.session)
        rows = {table.name: store.of_session(connection, table, session["id"]) for table in (measurements, runs, hosts)}
    if args.json:
        print_json({**session, **rows})
        return DONE
    print(f"{session['id']}: {printable(session['cluster'])}, {minute(session['started'])} UTC")
    print(f"started as: {printable(' '.join(session['command']))}")
    print(f"versions: {', '.join(f'{name} {version}' for name, version in sorted(session['versions'].items()))}")
    print(f"commit: {session['commit'] or 'not known'}")
    print(f"folder, when it was entered: {printable(session['folder'])}")
    in_order = sorted(rows["measurements"], key=lambda row: row["position"])
    headings = ("spec", "images/sec", "runs", "efficiency", "baseline", "change", "verdict")
    print_table(headings, [measurement_cells(row) for row in in_order])
    print(f"{counted(len(in_order), 'measurement')}, {counted(len(rows['runs']), 'run')}")
    return DONE
