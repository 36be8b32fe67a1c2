"""`dtfperf history ...`: list sessions, show and compare them, draw trends, and report changes of rates."""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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
    complete_patterns,
    complete_session_ids,
    count_columns,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.formats import NONE, change, duration, format_count, minute, printable, rate

if TYPE_CHECKING:
    from pytest_dtfperf.history.comparison import ComparedTraining
    from pytest_dtfperf.history.rows import Row
    from pytest_dtfperf.history.series import Series, SeriesBegin


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
        add_sessions_parsers, add_trend_parser, add_compare_parser, add_changes_parser,
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
    from pytest_dtfperf.history.events import make_measurement_cells
    from pytest_dtfperf.history.tables import hosts, measurements, runs

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


TREND = """\
Draw the rates of trainings over time, the latest on the right. A ^ below the rates marks the start of a change. Fields select
the trainings: all must match, and values may contain *, ? and [...]. By default all trainings are drawn.

    dtfperf history trend model=alexnet gpus=8
    dtfperf history trend 'model=inception*' --last=60
    dtfperf history trend model=alexnet --json           # for programs

Another GPU, another graph or anything else that must match for a comparison begins another series. On the same hardware its
first nights are compared with the last ones before them, with the software that was replaced. Known changes are listed below.
"""
TREND_ENDS = {DONE: "drawn", FAILED: "there is no such training", USAGE: "wrong arguments, or a history that cannot be read"}
TREND_SHAPE: Shape = {
    "series": [
        {
            "name": "of the series",
            "label": "of its training",
            "system": "the hardware",
            "began": {
                "ended": "the series on this hardware that ended when this one began; null, as the next fields: there is none",
                "last_good": "its last session",
                "nights": "number of its last nights that the first ones of this series are compared with, at most 14",
                "change": "of the median rate, as a fraction",
                "because": "a list of the replaced software",
            },
            "points": [
                {
                    "session": "its id",
                    "started": "UTC",
                    "images_per_sec": "that night's rate",
                    OTHER_KEYS: "see docs/history.md",
                }
            ],
        }
    ]
}
OTHER_REASONS = "disturbed, on other hosts than requested, or with an injected slow-down"
BARS = "▁▂▃▄▅▆▇█"


def add_trend_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "trend", help="draw rates over time", text=TREND, ends=TREND_ENDS)
    text = "fields of the training: model, gpus, num_ps, ..."
    set_completer(parser.add_argument("pattern", nargs="*", metavar="FIELD=VALUE", help=text), complete_patterns)
    parser.add_argument(
        "--last", metavar="N", type=parse_count, help="only the latest N nights; by default as many as the terminal shows"
    )
    add_history(parser)
    add_json(parser, TREND_SHAPE)
    parser.set_defaults(run=run_trend)


def run_trend(args: argparse.Namespace) -> int:
    from pytest_dtfperf.baselines.store import BaselinePattern
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.series import Successions, make_series

    pattern = BaselinePattern.of(args.pattern or ["model=*"])
    with open_history(args).reading() as connection:
        rows = [row for row in store.read_measurements(connection) if pattern.matches(row["spec_key"])]
        contents = store.read_fingerprints(connection)
        found = make_series(rows, contents)
        events = store.read_events(connection)
        left_out = [row for row in store.read_left_out(connection) if pattern.matches(row["spec_key"])]
    successions = Successions(found, contents)
    if args.json:
        print_json({"series": [_make_series_json(each, successions.begin(each), args.last) for each in found]})
        return DONE if found else FAILED
    nights = args.last or max(10, count_columns(sys.stdout) - 2)
    for each in found:
        print("\n".join(draw_series(each, events, nights, successions.begin(each))), end="\n\n")
    for line in list_left_out(left_out):
        print_remark(line)
    if not found:
        print_remark("the history has no such training." if not left_out else "none of its measurements can be compared.")
    return DONE if found else FAILED


def _make_series_json(series: "Series", begin: "SeriesBegin | None", last: int | None) -> dict[str, Any]:
    points = [dict(point) for point in series.points[-last if last else 0 :]]
    none: dict[str, Any] = {"ended": None, "last_good": None, "nights": None, "change": None, "because": []}
    began = asdict(begin) if begin else none
    return {"name": series.name, "label": series.label, "system": series.system, "began": began, "points": points}


def draw_series(series: "Series", events: "Sequence[Row]", nights: int, begin: "SeriesBegin | None" = None) -> list[str]:
    """Return the lines of a series: a sign for each of the latest nights, marks at the start of each event, and the events."""
    from pytest_dtfperf.history.events import BREAK, format_member

    points = series.points[-nights:]
    rates = [point["images_per_sec"] for point in points]
    low, high = min(rates), max(rates)
    confirmed = [event for event in events if event["state"] == "confirmed"]
    known = [(event, member) for event in confirmed for member in event["members"] if member["series"] == series.name]
    began = {member["first_bad"] for _, member in known}
    marks = "".join("^" if point["session"] in began else " " for point in points).rstrip()
    title = f"{series.label} on {series.system}, {points[0]['started'][:10]} to {points[-1]['started'][:10]}"
    span = f"images/sec: {rate(low)} to {rate(high)}, latest {rate(rates[-1])}, {len(points)} of {len(series.points)} nights"
    lines = [printable(format_member(event, member)) for event, member in known]
    if begin and not any(event["kind"] == BREAK for event, _ in known):
        lines.insert(0, f"begins {printable(str(begin))}")
    return [title, "".join(_choose_bar(each, low, high) for each in rates), *([marks] if marks else []), span, *lines]


def list_left_out(rows: "Sequence[Row]") -> list[str]:
    """Return a line for each training with measurements that are not part of a series, and the reason."""
    from pytest_dtfperf.baselines.verdict import Verdict

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        is_disturbed = row["verdict"] in (Verdict.TAINTED, Verdict.INVALID)
        counts[f"{row['label']} on {row['system']}"][row["verdict"] if is_disturbed else OTHER_REASONS] += 1
    return [
        f"{format_count(why.total(), 'measurement')} of {printable(training)} left out: "
        f"{', '.join(f'{number} {word}' for word, number in why.items())}"
        for training, why in counts.items()
    ]


def _choose_bar(value: float, low: float, high: float) -> str:
    """Return the lowest sign for the lowest rate, or the middle one if all rates are equal."""
    return BARS[len(BARS) // 2] if high == low else BARS[round((value - low) / (high - low) * (len(BARS) - 1))]


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
    "then": "the id of A",
    "now": "the id of B",
    "compared": [
        {
            "label": "of the training",
            "spec_key": "the training in full",
            "then": "images/sec of A",
            "now": "images/sec of B",
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
    from pytest_dtfperf.history.tables import measurements, runs

    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    with open_history(args).reading() as connection:
        sessions = store.read_sessions(connection)
        names = [find_session(sessions, given)["id"] for given in (args.before, args.after)]
        sides = [store.read_rows(connection, measurements, name) for name in names]
        for name in dict.fromkeys(names):
            for row in store.read_rows(connection, runs, name):
                rates[row["session"], row["measurement"]] += [] if row["disturbances"] else [row["images_per_sec"]]
        contents = store.read_fingerprints(connection)
    found = compare_sessions(sides[0], sides[1], rates, contents)
    if args.json:
        rows = [{**asdict(each), "answer": each.answer} for each in found]
        print_json({"then": names[0], "now": names[1], "compared": rows})
        return DONE if found else FAILED
    print(f"A: {names[0]}\nB: {names[1]}")
    if not found:
        print("They have no training in common.")
        return FAILED
    headings = ("spec", "A images/sec", "B images/sec", "change", "lies between", "")
    print_table(headings, map(_make_comparison_cells, found))
    for note in dict.fromkeys(note for each in found for note in (*each.foreign, *each.noted)):
        print(f"meanwhile: {printable(note)}")
    return DONE


def _make_comparison_cells(found: "ComparedTraining") -> list[str]:
    between = NONE if found.low is None or found.high is None else f"{change(found.low)} and {change(found.high)}"
    return [found.label, rate(found.then), rate(found.now), change(found.change), between, found.answer]


CHANGES = """\
Show changes of rates over time: steps and drifts, each with its size, the last session before and the first session after it,
and differences of the software. Sessions that are new in the history are searched first.

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
            "members": "a list of trainings, each with series, label, change, low, high, first_bad, last_good",
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
    parser = add_command(commands, "changes", help="find changes of rates over time", text=CHANGES, ends=CHANGES_ENDS)
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
        *(f"    meanwhile   {printable(difference)}" for difference in event["differences"]),
        *(f"    {change(m['change'])} ({change(m['low'])} to {change(m['high'])})  {m['label']}" for m in event["members"]),
    ]
