"""`dtfperf history export`: measurements and runs for other programs."""

import argparse
import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.history.opened import add_history, address, opened
from pytest_dtfperf.cli.output import print_json, say, write_file
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    OTHERS,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    completed_by,
    session_ids,
)
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted
from pytest_dtfperf.report.forms import EXPORT_FORMATS

if TYPE_CHECKING:
    from pytest_dtfperf.report.sources import StoredSession

TEXT = """\
Prints all measurements of a history, the oldest first: a table with commas, or with --json a line of JSON for each, which says
of the training, of its fingerprint and of its anatomy all that is known. docs/history.md describes the columns.

    dtfperf history export >rates.csv
    dtfperf history export --json | jq 'select(.model == "alexnet") | .images_per_sec'

With --format it writes what other programs read, of a history or of a folder: all runs, a row for each, or one session, the
latest unless --session names another. docs/exports.md describes each format.

    dtfperf history export --format=csv --out=runs.csv
    dtfperf history export --format=parquet --out=runs.parquet perf_results
    dtfperf history export --format=pytest-benchmark --out=tonight.json
    dtfperf history export --format=bencher --session=2026-01-31 | bencher run --adapter json --file /dev/stdin
    dtfperf history export --format=openmetrics perf_results/20260131T021503Z-9f3c1a
"""
ENDS = {DONE: "written", FAILED: "there is none", USAGE: "wrong arguments, or a history or a folder that cannot be read"}
SHAPE: Shape = {
    "session": "the id of the session",
    "id": "of the measurement",
    "label": "of the training",
    "images_per_sec": "its rate",
    "fingerprint": "of what it was measured on and with, as an object",
    OTHERS: "every column of the table of measurements: see docs/history.md",
}

COLUMNS = (
    "session", "started", "cluster", "commit", "id", "test", "label", "model", "batch_size", "gpus", "num_ps",
    "variable_update", "system", "hosts", "fingerprint", "program", "verdict", "runs", "images_per_sec", "mean_log", "spread",
    "noise_run", "noise_session", "efficiency", "baseline", "change", "accepted", "in_series",
)  # fmt: skip
TERMINAL = "parquet is no text: write it with --out=FILE"


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "export", help="measurements and runs for other programs", text=TEXT, ends=ENDS)
    text = "with --format: a session's folder, or a folder of such, instead of the history"
    parser.add_argument("source", nargs="?", metavar="DIR", help=text)
    parser.add_argument("--format", choices=sorted(EXPORT_FORMATS), help="what is to read it")
    text = "with --format: an id, a date, a commit, a version, or `last`"
    completed_by(parser.add_argument("--session", metavar="SESSION", help=text), session_ids)
    parser.add_argument("--out", metavar="FILE", type=Path, help="with --format: write there, and not on stdout")
    add_history(parser)
    add_json(parser, SHAPE, lines="measurement")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.format:
        return _write(args)
    given = [name for name in ("source", "session", "out") if getattr(args, name)]
    if given:
        argument = "DIR" if given[0] == "source" else f"--{given[0]}"
        raise UsageError(f"{argument} goes with --format, one of {', '.join(sorted(EXPORT_FORMATS))}")
    return _print(args)


def _write(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.chosen import LAST
    from pytest_dtfperf.report.sources import load_history_sessions, load_sessions, select_sessions

    if args.json:
        raise UsageError("--json and --format exclude each other: which JSON is meant?")
    if args.format == "parquet" and not args.out and sys.stdout.isatty():
        raise UsageError(TERMINAL)
    form = EXPORT_FORMATS[args.format]
    one = form.of == "one session"
    found = load_sessions(args.source, say) if args.source else load_history_sessions(address(args))
    sessions = select_sessions(found, args.session or (LAST if one and found else None))[-1 if one else 0 :]
    if not any(stored.records for stored in sessions):
        say("there is no measurement to export.")
        return FAILED
    content = form.write(sessions)
    if one:
        _say_left_out(sessions[-1])
    if args.out:
        write_file(args.out, content)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return DONE


def _say_left_out(stored: "StoredSession") -> None:
    left = len(stored.records) - len(stored.comparable)
    if left:
        why = "INVALID, TAINTED, on other hosts than asked for, or slowed down on purpose"
        say(f"{counted(left, 'measurement')} of {stored.id} left out: {why}.")


def _print(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.report.session_exports import escape_formula

    with opened(args).reading() as connection:
        rows = store.measured(connection, whole=True)
        contents = store.all_fingerprints(connection) if args.json else {}
    if args.json:
        for row in rows:
            print_json({**row, "fingerprint": contents[row["fingerprint"]]})
    else:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: escape_formula(row[name]) for name in COLUMNS} for row in rows)
    return DONE if rows else FAILED
