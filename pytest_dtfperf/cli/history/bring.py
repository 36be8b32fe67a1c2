"""`dtfperf history import`: session folders into the history, of any age, as often as one likes."""

import argparse
from pathlib import Path

from pytest_dtfperf.cli.history.opened import add_history, address
from pytest_dtfperf.cli.output import print_json, say
from pytest_dtfperf.cli.terms import DONE, FAILED, USAGE, Commands, Shape, add_command, add_json
from pytest_dtfperf.formats import counted, printable

TEXT = """\
Enters session folders: those that a history could not be written for when they ended, and those from before there was one. What
is there already stays as it is, so that it may be done again and again. Folders are read, and left as they are.

    dtfperf history import perf_results                                  # all sessions in it
    dtfperf history import perf_results/20260131T021503Z-9f3c1a
    dtfperf history import perf_results --history=postgresql://perf@db/perf
"""
ENDS = {
    DONE: "all of them are in the history now",
    FAILED: "some could not be read",
    USAGE: "wrong arguments, or a history that cannot be written",
}
SHAPE: Shape = {
    "new": "a list of sessions that were entered",
    "known": "likewise, of those that were there",
    "refused": [{"folder": "that cannot be read", "why": "in words"}],
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "import", help="enter session folders", text=TEXT, ends=ENDS)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a session's folder, or one that has them")
    add_history(parser)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.enter import enter_all, folders_of

    folders = [folder for path in args.folders for folder in folders_of(path)]
    where = address(args)
    done = enter_all(folders, where)
    if args.json:
        refused = [{"folder": path, "why": why} for path, why in done.refused.items()]
        print_json({"new": done.new, "known": done.known, "refused": refused})
    else:
        for path, why in done.refused.items():
            say(f"{printable(path)} was not entered: {why}")
        known = f", {len(done.known)} known already" if done.known else ""
        unread = f", {len(done.refused)} that cannot be read" if done.refused else ""
        print(f"dtfperf: {counted(len(done.new), 'session')} entered in {where}{known}{unread}.")
    return FAILED if done.refused else DONE
