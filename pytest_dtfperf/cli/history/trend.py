"""`dtfperf history trend`: how the rates of some trainings went, in the terminal."""

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, opened, print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command, columns
from pytest_dtfperf.formats import rate

if TYPE_CHECKING:
    from pytest_dtfperf.history.rows import Row
    from pytest_dtfperf.history.series import Series

TEXT = """\
Draws the rates of trainings, night by night, the latest to the right; ^ beneath is where a change began. Which trainings is
said by fields, all of which must hold; values may have *, ? and [...]. Without any, all are drawn.

    dtfperf history trend model=alexnet gpus=8
    dtfperf history trend 'model=inception*' --last=60
    dtfperf history trend model=alexnet --json           # a line for each night of each series

A change of what must match for a comparison (another GPU, another graph) begins another series.

Exit codes: 0 drawn; 1 there is no such training; 2 wrong arguments, or a history that cannot be read.
"""
BARS = "▁▂▃▄▅▆▇█"


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "trend", help="how rates went", text=TEXT)
    parser.add_argument("pattern", nargs="*", metavar="FIELD=VALUE", help="of the training: model, gpus, num_ps, ...")
    parser.add_argument("--last", metavar="N", type=int, help="the latest N nights; by default as many as there is room for")
    add_history(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.baselines.pattern import Pattern
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.series import series_of

    pattern = Pattern.of(args.pattern or ["model=*"])
    with opened(args).reading() as connection:
        rows = [row for row in store.measured(connection) if pattern.matches(row["spec_key"])]
        found = series_of(rows, store.all_fingerprints(connection))
        events = store.all_events(connection)
    if args.json:
        print_json({"series": each.name, "label": each.label, **point} for each in found for point in each.points)
        return DONE if found else FAILED
    nights = args.last or max(10, columns(sys.stdout) - 2)
    for each in found:
        print("\n".join(drawn(each, events, nights)), end="\n\n")
    if not found:
        print("dtfperf: the history has no such training.", file=sys.stderr)
    return DONE if found else FAILED


def drawn(series: "Series", events: "Sequence[Row]", nights: int) -> list[str]:
    """What it is, a sign for each of the latest nights, and marks beneath those where an event began."""
    points = series.points[-nights:]
    rates = [point["images_per_sec"] for point in points]
    low, high = min(rates), max(rates)
    confirmed = [event["members"] for event in events if event["state"] == "confirmed"]
    began = {member["first_bad"] for members in confirmed for member in members if member["series"] == series.name}
    marks = "".join("^" if point["session"] in began else " " for point in points).rstrip()
    title = f"{series.label} on {series.system}, {points[0]['started'][:10]} to {points[-1]['started'][:10]}"
    span = f"images/sec: {rate(low)} to {rate(high)}, latest {rate(rates[-1])}, {len(points)} of {len(series.points)} nights"
    return [title, "".join(_bar(each, low, high) for each in rates), *([marks] if marks else []), span]


def _bar(value: float, low: float, high: float) -> str:
    """The lowest sign for the lowest rate. Where all are the same, one in the middle."""
    return BARS[len(BARS) // 2] if high == low else BARS[round((value - low) / (high - low) * (len(BARS) - 1))]
