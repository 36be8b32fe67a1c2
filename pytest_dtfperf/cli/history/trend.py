"""`dtfperf history trend`: how the rates of some trainings went, in the terminal."""

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

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
    columns,
    completed_by,
    patterns,
)
from pytest_dtfperf.formats import counted, printable, rate

if TYPE_CHECKING:
    from pytest_dtfperf.history.rows import Row
    from pytest_dtfperf.history.series import Begin, Series

TEXT = """\
Draws the rates of trainings, night by night, the latest to the right; ^ beneath is where a change began. Which trainings is
said by fields, all of which must hold; values may have *, ? and [...]. Without any, all are drawn.

    dtfperf history trend model=alexnet gpus=8
    dtfperf history trend 'model=inception*' --last=60
    dtfperf history trend model=alexnet --json           # for programs

A change of what must match for a comparison (another GPU, another graph) begins another series. On the same hardware its first
nights are compared with the last ones before them, and what was replaced is named. Beneath are the changes that are known.
"""
ENDS = {DONE: "drawn", FAILED: "there is no such training", USAGE: "wrong arguments, or a history that cannot be read"}
SHAPE: Shape = {
    "series": [
        {
            "name": "of the series",
            "label": "of its training",
            "system": "the hardware",
            "began": {
                "ended": "the series on the same hardware that ended when this one began; null, as what follows: there is none",
                "last_good": "its last session",
                "nights": "how many of its last nights the first ones of this series are compared with, at most 14",
                "change": "of the median rate, as a fraction",
                "because": "a list of what was replaced",
            },
            "points": [
                {
                    "session": "its id",
                    "started": "UTC",
                    "images_per_sec": "that night's rate",
                    OTHERS: "see docs/history.md",
                }
            ],
        }
    ]
}
UNTOLD = "disturbed, on other hosts than asked for, or slowed down on purpose"
BARS = "▁▂▃▄▅▆▇█"


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "trend", help="how rates went", text=TEXT, ends=ENDS)
    text = "of the training: model, gpus, num_ps, ..."
    completed_by(parser.add_argument("pattern", nargs="*", metavar="FIELD=VALUE", help=text), patterns)
    parser.add_argument("--last", metavar="N", type=count, help="the latest N nights; by default as many as there is room for")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.baselines.store import BaselinePattern
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.series import Successions, series_of

    pattern = BaselinePattern.of(args.pattern or ["model=*"])
    with opened(args).reading() as connection:
        rows = [row for row in store.measured(connection) if pattern.matches(row["spec_key"])]
        contents = store.all_fingerprints(connection)
        found = series_of(rows, contents)
        events = store.all_events(connection)
        left_out = [row for row in store.left_out(connection) if pattern.matches(row["spec_key"])]
    successions = Successions(found, contents)
    if args.json:
        print_json({"series": [_to_json(each, successions.begin(each), args.last) for each in found]})
        return DONE if found else FAILED
    nights = args.last or max(10, columns(sys.stdout) - 2)
    for each in found:
        print("\n".join(drawn(each, events, nights, successions.begin(each))), end="\n\n")
    for line in why_left_out(left_out):
        say(line)
    if not found:
        say("the history has no such training." if not left_out else "no measurement of it may be compared with others.")
    return DONE if found else FAILED


def _to_json(series: "Series", begin: "Begin | None", last: int | None) -> dict[str, Any]:
    points = [dict(point) for point in series.points[-last if last else 0 :]]
    none: dict[str, Any] = {"ended": None, "last_good": None, "nights": None, "change": None, "because": []}
    began = asdict(begin) if begin else none
    return {"name": series.name, "label": series.label, "system": series.system, "began": began, "points": points}


def drawn(series: "Series", events: "Sequence[Row]", nights: int, begin: "Begin | None" = None) -> list[str]:
    """Return the lines of a series: a sign for each of the latest nights, marks where an event began, and the events."""
    from pytest_dtfperf.history import words

    points = series.points[-nights:]
    rates = [point["images_per_sec"] for point in points]
    low, high = min(rates), max(rates)
    confirmed = [event for event in events if event["state"] == "confirmed"]
    known = [(event, member) for event in confirmed for member in event["members"] if member["series"] == series.name]
    began = {member["first_bad"] for _, member in known}
    marks = "".join("^" if point["session"] in began else " " for point in points).rstrip()
    title = f"{series.label} on {series.system}, {points[0]['started'][:10]} to {points[-1]['started'][:10]}"
    span = f"images/sec: {rate(low)} to {rate(high)}, latest {rate(rates[-1])}, {len(points)} of {len(series.points)} nights"
    lines = [printable(words.line_of_member(event, member)) for event, member in known]
    if begin and not any(event["kind"] == words.BREAK for event, _ in known):
        lines.insert(0, f"begins {printable(str(begin))}")
    return [title, "".join(_bar(each, low, high) for each in rates), *([marks] if marks else []), span, *lines]


def why_left_out(rows: "Sequence[Row]") -> list[str]:
    """Return a line for each training with measurements that are no nights of a series, and why they are none."""
    from pytest_dtfperf.baselines.verdict import Verdict

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        is_told = row["verdict"] in (Verdict.TAINTED, Verdict.INVALID)
        counts[f"{row['label']} on {row['system']}"][row["verdict"] if is_told else UNTOLD] += 1
    return [
        f"{counted(why.total(), 'measurement')} of {printable(training)} left out: "
        f"{', '.join(f'{number} {word}' for word, number in why.items())}"
        for training, why in counts.items()
    ]


def _bar(value: float, low: float, high: float) -> str:
    """The lowest sign for the lowest rate. Where all are the same, one in the middle."""
    return BARS[len(BARS) // 2] if high == low else BARS[round((value - low) / (high - low) * (len(BARS) - 1))]
