"""`dtfperf history trend` and `dtfperf history hosts`: rates of trainings and readings of hosts over time."""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.history_data import add_history, open_history, parse_count
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    OTHER_KEYS,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    complete_patterns,
    count_columns,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.formats import NONE, format_count, minute, printable, rate, with_prefix

if TYPE_CHECKING:
    from pytest_dtfperf.history.rows import Row
    from pytest_dtfperf.history.series import Series, SeriesBegin

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

    pattern = BaselinePattern.parse(args.pattern or ["model=*"])
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


def draw_series(
    series: "Series",
    events: "Sequence[Row]",
    nights: int,
    begin: "SeriesBegin | None" = None,
    *,
    column: str = "images_per_sec",
    what: str = "images/sec",
    show: Callable[[float], str] = rate,
) -> list[str]:
    """Return the lines of a series: a sign for each of the latest nights, marks at the start of each event, and the events.

    Args:
        series: what is drawn.
        events: all known ones.
        nights: at most so many.
        begin: of a series that replaced another one.
        column: with the values, of the points.
        what: the name of the values.
        show: formats a value.
    """
    from pytest_dtfperf.history.events import BREAK, format_member

    points = series.points[-nights:]
    rates = [point[column] for point in points]
    low, high = min(rates), max(rates)
    confirmed = [event for event in events if event["state"] == "confirmed"]
    known = [(event, member) for event in confirmed for member in event["members"] if member["series"] == series.name]
    began = {member["first_bad"] for _, member in known}
    marks = "".join("^" if point["session"] in began else " " for point in points).rstrip()
    title = f"{series.label} on {series.system}, {points[0]['started'][:10]} to {points[-1]['started'][:10]}"
    span = f"{what}: {show(low)} to {show(high)}, latest {show(rates[-1])}, {len(points)} of {len(series.points)} nights"
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


HOSTS = """\
Show the readings of hosts over time, and their changes: arithmetic and memory of the probes of all sessions, and all readings
of `dtfperf qualify`. With a name, each reading of that host is drawn, the latest on the right.

    dtfperf history hosts
    dtfperf history hosts nid00017
    dtfperf history hosts nid00017 --last=60
    dtfperf history hosts --json

Readings of another cluster, of other hardware or under other conditions (threads, streams, another training) are series of
their own. Simulated hosts have none.
"""
HOSTS_ENDS = {
    DONE: "shown",
    FAILED: "the history has no readings of this host, or of any",
    USAGE: "wrong arguments, or a history that cannot be read",
}
HOSTS_SHAPE: Shape = {
    "hosts": [
        {
            "host": "its name",
            "cluster": "its cluster",
            "kind": "its hardware",
            "sessions": "number of sessions with readings of it",
            "latest": "start of the last one, UTC",
            "verdict": "of its last qualification; null: it was never qualified",
            "series": [
                {
                    "name": "of the series",
                    "capacity": "core.matmul, memory, training, link in, ...",
                    "unit": "of per_s",
                    "conditions": "readings that differ in it are not compared",
                    "points": [{"session": "its id", "started": "UTC", "per_s": "the reading", "verdict": "of it, or null"}],
                }
            ],
        }
    ],
    "changes": [{"id": "of the change", OTHER_KEYS: "as of dtfperf history changes"}],
}
Key = tuple[str, str, str]  # cluster, host, kind
UNITS = {
    "training": "images/s",
    "training in pairs": "images/s",
    "link in": "bytes/s",
    "link out": "bytes/s",
}  # of readings that only qualifications have


def add_hosts_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "hosts", help="show readings of hosts over time", text=HOSTS, ends=HOSTS_ENDS)
    parser.add_argument("host", nargs="?", metavar="HOST", help="its name; by default all hosts are listed")
    parser.add_argument(
        "--last", metavar="N", type=parse_count, help="only the latest N; by default as many as the terminal shows"
    )
    add_history(parser)
    add_json(parser, HOSTS_SHAPE)
    parser.set_defaults(run=run_hosts)


def run_hosts(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.events import is_of_hosts
    from pytest_dtfperf.history.series import make_host_series
    from pytest_dtfperf.history.watching import search_changes

    database = open_history(args)
    watched = database.write(search_changes)
    with database.reading() as connection:
        found = make_host_series(store.read_host_readings(connection, args.host))
    names = {series.host for series in found}
    events = [event for event in watched.events if is_of_hosts(event) and names & set(_list_hosts(event))]
    hosts: dict[Key, list[Series]] = defaultdict(list)
    for series in found:
        hosts[series.points[-1]["cluster"], series.host, series.system].append(series)
    if args.json:
        print_json({"hosts": [_make_json(key, hosts[key], args.last) for key in sorted(hosts)], "changes": events})
    elif found and args.host:
        _draw_host(found, events, args.last or max(10, count_columns(sys.stdout) - 2))
    elif found:
        headings = ("host", "cluster", "hardware", "sessions", "latest", "last qualification", "last change")
        print_table(headings, [_make_row(key, hosts[key], events) for key in sorted(hosts)])
    if not found:
        known = f"of {printable(args.host)}" if args.host else "of hosts"
        print_remark(f"the history has no readings {known}: sessions and dtfperf qualify enter them.")
    return DONE if found else FAILED


def _list_hosts(event: "Row") -> Sequence[str]:
    return [member["host"] for member in event["members"]]


def _draw_host(found: "Sequence[Series]", events: "Sequence[Row]", nights: int) -> None:
    from pytest_dtfperf.explain.probes import describe_reading

    for series in sorted(found, key=lambda series: (series.points[-1]["cluster"], series.system, series.capacity)):
        show = partial(_format_reading, _choose_unit(series.capacity))
        what = describe_reading(series.capacity)
        print("\n".join(draw_series(series, events, nights, column="per_s", what=what, show=show)), end="\n\n")


def _choose_unit(capacity: str) -> str:
    from pytest_dtfperf.explain.probes import unit_of

    return UNITS.get(capacity) or unit_of(capacity)


def _format_reading(unit: str, per_s: float) -> str:
    return with_prefix(per_s, unit)


def _make_row(key: Key, found: "Sequence[Series]", events: "Sequence[Row]") -> list[str]:
    from pytest_dtfperf.history.events import format_event

    cluster, host, kind = key
    names = {series.name for series in found}
    own = [event for event in events if event["state"] == "confirmed" and names & {m["series"] for m in event["members"]}]
    changed = format_event(own[-1]) if own else NONE
    sessions, latest, verdict = _summarise(found)
    return [host, cluster, kind, str(sessions), minute(latest), verdict or NONE, changed]


def _summarise(found: "Sequence[Series]") -> tuple[int, str, str | None]:
    """Return the number of sessions, the start of the last one, and the verdict of the last qualification."""
    points = sorted((point for series in found for point in series.points), key=lambda point: point["started"])
    judged = [point for point in points if point["verdict"]]
    verdicts = {point["verdict"] for point in judged if point["session"] == judged[-1]["session"]}
    worst = next((verdict for verdict in ("SLOW", "NOT_JUDGED", "FIT") if verdict in verdicts), None)
    return len({point["session"] for point in points}), points[-1]["started"], worst


def _make_json(key: Key, found: "Sequence[Series]", last: int | None) -> Mapping[str, Any]:
    cluster, host, kind = key
    sessions, latest, verdict = _summarise(found)
    series = [
        {
            "name": each.name,
            "capacity": each.capacity,
            "unit": _choose_unit(each.capacity),
            "conditions": each.points[-1]["conditions"],
            "points": [
                {name: point[name] for name in ("session", "started", "per_s", "verdict")}
                for point in each.points[-last if last else 0 :]
            ],
        }
        for each in found
    ]
    return {
        "host": host, "cluster": cluster, "kind": kind, "sessions": sessions, "latest": latest, "verdict": verdict,
        "series": series,
    }  # fmt: skip
