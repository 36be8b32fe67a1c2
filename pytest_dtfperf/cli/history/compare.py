"""`dtfperf history compare`: two sessions side by side."""

import argparse
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, opened, print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command, print_table
from pytest_dtfperf.formats import NONE, change, rate
from pytest_dtfperf.printable import printable

if TYPE_CHECKING:
    from pytest_dtfperf.history.comparison import Compared

TEXT = """\
Compares what two sessions have both measured: the change of each rate from A to B with the interval in which it lies, by the
statistics that baselines are compared with (docs/statistics.md), at 95 %.

    dtfperf history compare 20260130T021503Z-a81b22 20260131T021503Z-9f3c1a
    dtfperf history compare 2026-01-30 last
    dtfperf history compare tensorflow=2.20.0 tensorflow=2.21.0      # the last session with each
    dtfperf history compare 9f2c1d7 e0b4411                          # commits

Exit codes: 0 compared; 1 they have nothing in common; 2 wrong arguments, no such session, or a history that cannot be read.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "compare", help="two sessions side by side", text=TEXT)
    for name in ("before", "after"):
        parser.add_argument(name, metavar="AB"[name == "after"], help="an id, a date, a commit, a version, or `last`")
    add_history(parser)
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
        print_json({"then": names[0], "now": names[1], **asdict(each), "answer": each.answer} for each in found)
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
