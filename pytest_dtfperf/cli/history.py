"""`dtfperf history ...`: list sessions, show and compare them, draw trends, and report changes of rates."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.history_data import (
    add_export_parser,
    add_history,
    add_import_parser,
    add_prune_parser,
    open_history,
    parse_count,
)
from pytest_dtfperf.cli.history_trend import add_hosts_parser, add_trend_parser
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    OTHER_KEYS,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_group,
    add_json,
    complete_cluster_names,
    complete_session_ids,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.formats import NONE, change, duration, format_count, minute, printable, rate

if TYPE_CHECKING:
    from pytest_dtfperf.history.comparison import ComparedTraining


HISTORY = """\
Show the history of all sessions. A session is entered into it when it ends: into history.sqlite beside the session folders,
or the database of --history, the variable DTFPERF_HISTORY or the project's dtfperf_history. Contents: docs/history.md.

    dtfperf history list
    dtfperf history trend model=alexnet gpus=8
    dtfperf history changes --json
"""


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "list, show and compare all sessions, find changes of rates, export"
    history = add_group(commands, "history", help=text, text=HISTORY)
    for add in (
        add_sessions_parsers, add_trend_parser, add_compare_parser, add_changes_parser, add_hosts_parser,
        add_import_parser, add_prune_parser, add_export_parser,
    ):  # fmt: skip
        add(history)


LIST = """\
List the sessions of a history, the latest last, with their start, cluster, verdicts and exit code.

    dtfperf history list
    dtfperf history list --cluster=daint --last=10
    dtfperf history list --json
"""

SHOW = """\
Show the measurements of a session. It is selected by its id or the beginning of the id, by a date, by a commit, or as the
last one with a version (tensorflow=2.21.0).

    dtfperf history show 20260131T021503Z-9f3c1a
    dtfperf history show 2026-01-31
    dtfperf history show last
"""
SESSION_SHAPE: Shape = {
    "id": "of the session",
    "started": "UTC",
    "cluster": "its name",
    "verdicts": "number of each, as an object",
    "wall_s": "duration in seconds; null: it has not ended",
    "exit_code": "null: it has not ended",
    "commit": "of the project; null: not known",
    OTHER_KEYS: "all columns of the table of sessions: docs/history.md",
}
TABLES_SHAPE: Shape = {
    "measurements": "a list of rows of the table of measurements",
    "runs": "a list of rows of the table of runs",
    "hosts": "a list of rows of the table of hosts",
}

LIST_ENDS = {
    DONE: "sessions were found",
    FAILED: "no session was found",
    USAGE: "wrong arguments, or a history that cannot be read",
}
SHOW_ENDS = {DONE: "shown", USAGE: "wrong arguments, no such session, or a history that cannot be read"}


def add_sessions_parsers(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "list", help="list the sessions", text=LIST, ends=LIST_ENDS)
    set_completer(
        parser.add_argument("--cluster", metavar="NAME", help="only sessions of this cluster"), complete_cluster_names
    )
    parser.add_argument("--last", metavar="N", type=parse_count, help="only the latest N")
    add_history(parser)
    add_json(parser, {"sessions": [SESSION_SHAPE]})
    parser.set_defaults(run=run_list)
    parser = add_command(commands, "show", help="show the measurements of a session", text=SHOW, ends=SHOW_ENDS)
    text = "an id, a date, a commit, a version, or `last`"
    set_completer(parser.add_argument("session", metavar="SESSION", help=text), complete_session_ids)
    add_history(parser)
    add_json(parser, {**SESSION_SHAPE, **TABLES_SHAPE})
    parser.set_defaults(run=run_show)


def run_list(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    with open_history(args).reading() as connection:
        found = [row for row in store.read_sessions(connection) if args.cluster in (None, row["cluster"])]
    found = found[-args.last :] if args.last else found
    if args.json:
        print_json({"sessions": found})
    elif found:
        headings = ("session", "started", "cluster", "verdicts", "took", "exit code", "commit")
        print_table(headings, [_make_session_cells(row) for row in found])
    if not found:
        print_remark("there is no such session in the history.")
    return DONE if found else FAILED


def _make_session_cells(row: Mapping[str, Any]) -> list[str]:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in row["verdicts"].items())
    took = duration(row["wall_s"]) if row["wall_s"] is not None else "not over"
    code = NONE if row["exit_code"] is None else str(row["exit_code"])
    commit = (row["commit"] or NONE)[:12]
    return [row["id"], minute(row["started"]), row["cluster"], verdicts or NONE, took, code, commit]


def run_show(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.comparison import find_session
    from pytest_dtfperf.history.database import hosts, measurements, runs
    from pytest_dtfperf.history.events import make_measurement_cells

    with open_history(args).reading() as connection:
        session = find_session(store.read_sessions(connection), args.session)
        rows = {table.name: store.read_rows(connection, table, session["id"]) for table in (measurements, runs, hosts)}
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
    print_table(headings, [make_measurement_cells(row) for row in in_order])
    print(f"{format_count(len(in_order), 'measurement')}, {format_count(len(rows['runs']), 'run')}")
    return DONE


COMPARE = """\
Compare the trainings that two sessions measured: the change of each rate from A to B with its interval of 95 %, by the
statistics of baselines (docs/statistics.md).

    dtfperf history compare 20260130T021503Z-a81b22 20260131T021503Z-9f3c1a
    dtfperf history compare 2026-01-30 last
    dtfperf history compare tensorflow=2.20.0 tensorflow=2.21.0      # the last session with each
    dtfperf history compare 9f2c1d7 e0b4411                          # commits
"""
COMPARE_ENDS = {
    DONE: "compared",
    FAILED: "they have no training in common",
    USAGE: "wrong arguments, no such session, or a history that cannot be read",
}
COMPARE_SHAPE: Shape = {
    "baseline": "the id of A",
    "current": "the id of B",
    "compared": [
        {
            "label": "of the training",
            "spec_key": "the training in full",
            "baseline": "images/sec of A",
            "current": "images/sec of B",
            "change": "as a fraction of A",
            "low": "lower end of its interval; null: one of them has a single run",
            "high": "likewise",
            "foreign": "a list of differences that forbid the comparison",
            "noted": "a list of other differences",
            "replaced": "a list of software and graphs that were replaced on the same hardware",
            "answer": "slower, faster or no difference seen, each with `, across a break` where anything was replaced; "
            "not known; not comparable: on other hardware",
        }
    ],
}


def add_compare_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "compare", help="compare two sessions", text=COMPARE, ends=COMPARE_ENDS)
    for name in ("before", "after"):
        text = "an id, a date, a commit, a version, or `last`"
        set_completer(parser.add_argument(name, metavar="AB"[name == "after"], help=text), complete_session_ids)
    add_history(parser)
    add_json(parser, COMPARE_SHAPE)
    parser.set_defaults(run=run_compare)


def run_compare(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.comparison import compare_sessions, find_session
    from pytest_dtfperf.history.database import measurements, runs

    with open_history(args).reading() as connection:
        sessions = store.read_sessions(connection)
        names = [find_session(sessions, given)["id"] for given in (args.before, args.after)]
        sides = [store.read_rows(connection, measurements, name) for name in names]
        of_both = [row for name in dict.fromkeys(names) for row in store.read_rows(connection, runs, name)]
        contents = store.read_fingerprints(connection)
    found = compare_sessions(sides[0], sides[1], of_both, contents)
    if args.json:
        rows = [{**asdict(each), "answer": each.answer} for each in found]
        print_json({"baseline": names[0], "current": names[1], "compared": rows})
        return DONE if found else FAILED
    print(f"A: {names[0]}\nB: {names[1]}")
    if not found:
        print("They have no training in common.")
        return FAILED
    headings = ("spec", "A images/sec", "B images/sec", "change", "interval", "")
    print_table(headings, map(_make_comparison_cells, found))
    for note in dict.fromkeys(note for each in found for note in (*each.foreign, *each.noted)):
        print(f"different: {printable(note)}")
    return DONE


def _make_comparison_cells(found: "ComparedTraining") -> list[str]:
    between = NONE if found.low is None or found.high is None else f"{change(found.low)} to {change(found.high)}"
    return [found.label, rate(found.baseline), rate(found.current), change(found.change), between, found.answer]


CHANGES = """\
Show changes of rates and of readings of hosts over time: steps and drifts, each with its size, the last session before and the
first session after it, and differences of the software. Sessions that are new in the history are searched first.

    dtfperf history changes
    dtfperf history changes --all          # also those after which the rate came back within 21 sessions
    dtfperf history changes --json
    dtfperf history changes --fail         # for a nightly job

The last line has the stated rate of false events. docs/history.md describes the search.
"""
CHANGES_ENDS = {
    DONE: "shown, also if there is none",
    FAILED: "with --fail, if the latest session confirmed a change",
    USAGE: "wrong arguments, or a history that cannot be read",
}
CHANGES_SHAPE: Shape = {
    "changes": [
        {
            "id": "of the change",
            "kind": "step, drift, or break: another graph or framework ended a series and began another",
            "state": "confirmed, or reverted if the rate came back",
            "members": "trainings or readings of a host, each with series, label, change, low, high, first_bad, last_good",
            "first_bad": "the first session after it",
            "last_good": "the last session before it",
            "found": "the session that confirmed it",
            "differences": "a list: other differences at that time",
            OTHER_KEYS: "see docs/history.md",
        }
    ],
    "promise": {
        "share": "at most this fraction of periods of `nights` nights has a false event, over all series together",
        "nights": "length of a period",
        "series": "number of series that were measured in the last 90 days and share the rate",
        "known": "whether the slow drift of rates without a change is known; false: only large changes are found",
    },
}


def add_changes_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands, "changes", help="find changes of rates and of hosts over time", text=CHANGES, ends=CHANGES_ENDS
    )
    parser.add_argument("--all", action="store_true", help="also reverted changes")
    parser.add_argument("--fail", action="store_true", help="exit code 1 if the latest session confirmed a change")
    add_history(parser)
    add_json(parser, CHANGES_SHAPE)
    parser.set_defaults(run=run_changes)


def run_changes(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.events import format_event, format_promise
    from pytest_dtfperf.history.watching import search_changes

    watched = open_history(args).write(search_changes)
    events = [event for event in watched.events if args.all or event["state"] == "confirmed"]
    promise = {"share": watched.promise.share, "nights": watched.promise.nights, "series": watched.series}
    if args.json:
        print_json({"changes": events, "promise": {**promise, "known": watched.is_noise_known}})
        return FAILED if args.fail and watched.new else DONE
    today = datetime.now(UTC)
    for event in events:
        print(f"{event['id']}: {printable(format_event(event, today))}")
        print("\n".join(_list_change_details(event)), end="\n\n")
    if not events:
        print("dtfperf: no change of a rate over time was found.")
    print(format_promise(promise, is_known=watched.is_noise_known))
    return FAILED if args.fail and watched.new else DONE


def _list_change_details(event: Mapping[str, Any]) -> list[str]:
    state = "" if event["state"] == "confirmed" else ": no change after all, the rate came back"
    return [
        f"    {event['kind']}{state}",
        f"    last good   {event['last_good']}",
        f"    first bad   {event['first_bad']}",
        f"    confirmed   {event['found']}",
        *(f"    different   {printable(difference)}" for difference in event["differences"]),
        *(f"    {change(m['change'])} ({change(m['low'])} to {change(m['high'])})  {m['label']}" for m in event["members"]),
    ]
