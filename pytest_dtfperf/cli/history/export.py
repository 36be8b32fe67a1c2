"""`dtfperf history export`: all measurements as a table for other programs."""

import argparse
import csv
import sys

from pytest_dtfperf.cli.history.opened import add_history, opened, print_json
from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command

TEXT = """\
Prints all measurements of a history, the oldest first: a table with commas, or with --json a line of JSON for each, which says
of the training, of its fingerprint and of its anatomy all that is known. docs/history.md describes the columns.

    dtfperf history export >rates.csv
    dtfperf history export --json | jq 'select(.model == "alexnet") | .images_per_sec'

Exit codes: 0 printed; 1 there is none; 2 wrong arguments, or a history that cannot be read.
"""

COLUMNS = (
    "session", "started", "cluster", "commit", "id", "test", "label", "model", "batch_size", "gpus", "num_ps",
    "variable_update", "system", "hosts", "fingerprint", "program", "verdict", "runs", "images_per_sec", "mean_log", "spread",
    "noise_run", "noise_session", "efficiency", "baseline", "change", "accepted", "in_series",
)  # fmt: skip


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "export", help="all measurements as a table", text=TEXT)
    add_history(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    with opened(args).reading() as connection:
        rows = store.measured(connection, whole=True)
        contents = store.all_fingerprints(connection) if args.json else {}
    if args.json:
        print_json({**row, "fingerprint": contents[row["fingerprint"]]} for row in rows)
    else:
        writer = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return DONE if rows else FAILED
