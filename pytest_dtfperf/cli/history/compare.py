"""`dtfperf history compare`: two sessions side by side."""

import argparse
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, opened
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    completed_by,
    print_table,
    session_ids,
)
from pytest_dtfperf.formats import NONE, change, printable, rate

if TYPE_CHECKING:
    from pytest_dtfperf.history.comparison import Compared

TEXT = """\
Compares what two sessions have both measured: the change of each rate from A to B with the interval in which it lies, by the
statistics that baselines are compared with (docs/statistics.md), at 95 %.

    dtfperf history compare 20260130T021503Z-a81b22 20260131T021503Z-9f3c1a
    dtfperf history compare 2026-01-30 last
    dtfperf history compare tensorflow=2.20.0 tensorflow=2.21.0      # the last session with each
    dtfperf history compare 9f2c1d7 e0b4411                          # commits
"""
ENDS = {
    DONE: "compared",
    FAILED: "they have nothing in common",
    USAGE: "wrong arguments, no such session, or a history that cannot be read",
}
SHAPE: Shape = {
    "then": "the id of A",
    "now": "the id of B",
    "compared": [
        {
            "label": "of the training",
            "spec_key": "the training in full",
            "then": "images/sec of A",
            "now": "images/sec of B",
            "change": "as a fraction of A",
            "low": "of the interval it lies in; null: a single run on either side tells none",
            "high": "likewise",
            "foreign": "a list of what forbids the comparison",
            "noted": "a list of what else was another",
            "replaced": "a list of the software and program that were replaced on the same hardware",
            "answer": "slower, faster or no difference seen, each with `, across a break` where anything was replaced; "
            "not known; not comparable: on other hardware",
        }
    ],
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "compare", help="two sessions side by side", text=TEXT, ends=ENDS)
    for name in ("before", "after"):
        text = "an id, a date, a commit, a version, or `last`"
        completed_by(parser.add_argument(name, metavar="AB"[name == "after"], help=text), session_ids)
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.history.chosen import chosen
    from pytest_dtfperf.history.comparison import compared
    from pytest_dtfperf.history.tables import measurements, runs

    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    with opened(args).reading() as connection:
        sessions = store.all_sessions(connection)
        names = [chosen(sessions, given)["id"] for given in (args.before, args.after)]
        sides = [store.of_session(connection, measurements, name) for name in names]
        for name in dict.fromkeys(names):
            for row in store.of_session(connection, runs, name):
                rates[row["session"], row["measurement"]] += [] if row["disturbances"] else [row["images_per_sec"]]
        contents = store.all_fingerprints(connection)
    found = compared(sides[0], sides[1], rates, contents)
    if args.json:
        rows = [{**asdict(each), "answer": each.answer} for each in found]
        print_json({"then": names[0], "now": names[1], "compared": rows})
        return DONE if found else FAILED
    print(f"A: {names[0]}\nB: {names[1]}")
    if not found:
        print("They have measured nothing in common.")
        return FAILED
    headings = ("spec", "A images/sec", "B images/sec", "change", "lies between", "")
    print_table(headings, map(_cells, found))
    for words in dict.fromkeys(words for each in found for words in (*each.foreign, *each.noted)):
        print(f"meanwhile: {printable(words)}")
    return DONE


def _cells(found: "Compared") -> list[str]:
    between = NONE if found.low is None or found.high is None else f"{change(found.low)} and {change(found.high)}"
    return [found.label, rate(found.then), rate(found.now), change(found.change), between, found.answer]
