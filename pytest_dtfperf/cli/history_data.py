"""`dtfperf history import`, `prune` and `export`, and the options that name a history."""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    OTHER_KEYS,
    USAGE,
    Commands,
    Shape,
    add_command,
    add_json,
    add_results,
    complete_session_ids,
    find_results_folder,
    set_completer,
)
from pytest_dtfperf.cli.output import confirm, print_json, print_remark, write_file
from pytest_dtfperf.cli.project import find_configured_history
from pytest_dtfperf.errors import UsageError, show_value
from pytest_dtfperf.extensions import load
from pytest_dtfperf.formats import format_count, printable
from pytest_dtfperf.history.where import VARIABLE, Address, get_requested, parse_address

if TYPE_CHECKING:
    from pytest_dtfperf.history.database import Database
    from pytest_dtfperf.history.rows import Row
    from pytest_dtfperf.report.sources import StoredSession


@dataclass(frozen=True)
class ExportFormat:
    """A format of `dtfperf history export --format`."""

    scope: Literal["all runs", "one session"]
    read_by: str  # as in docs/exports.md
    writer: str  # "module:function", which `write` calls

    def write(self, sessions: "Sequence[StoredSession]") -> bytes:
        """Return the file's content. `sessions` has one item if the format has. Raises `UsageError` without its library."""
        content: bytes = load(self.writer)(sessions)
        return content


_EXPORTS = "pytest_dtfperf.report.export_formats"
EXPORT_FORMATS: Mapping[str, ExportFormat] = {
    "csv": ExportFormat("all runs", "spreadsheets, pandas, R", "pytest_dtfperf.report.dataframe:format_csv"),
    "parquet": ExportFormat("all runs", "pandas, Arrow, DuckDB, Spark", "pytest_dtfperf.report.dataframe:format_parquet"),
    "pytest-benchmark": ExportFormat("one session", "`pytest-benchmark compare`", f"{_EXPORTS}:format_pytest_benchmark"),
    "github-action": ExportFormat(
        "one session", "github-action-benchmark, `tool: customBiggerIsBetter`", f"{_EXPORTS}:format_github_action"
    ),
    "github-annotations": ExportFormat(
        "one session", "GitHub Actions, if a step prints it", f"{_EXPORTS}:format_github_annotations"
    ),
    "gitlab-code-quality": ExportFormat(
        "one session", "GitLab, `artifacts:reports:codequality`", f"{_EXPORTS}:format_gitlab_code_quality"
    ),
    "bencher": ExportFormat("one session", "`bencher run --adapter json`", f"{_EXPORTS}:format_bencher"),
    "openmetrics": ExportFormat("one session", "Prometheus and compatible systems", f"{_EXPORTS}:format_openmetrics"),
    "prometheus": ExportFormat(
        "one session", "node_exporter's textfile collector, Pushgateway", f"{_EXPORTS}:format_prometheus"
    ),
}


def add_history(parser: argparse.ArgumentParser, values: str = "FILE|URL") -> None:
    """Add --history and --results."""
    text = "the history; by default that of "
    text += f"{VARIABLE} or of the project's dtfperf_history, or history.sqlite among the sessions' folders"
    parser.add_argument("--history", metavar=values, help=text)
    add_results(parser)


def parse_count(text: str) -> int:
    """Return the value of --last."""
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"takes a whole number of at least 1, not {text!r}")
    return int(text)


def find_address(args: argparse.Namespace) -> Address:
    """Return the address of the history. Raises `UsageError` if the project has none."""
    found = parse_address(get_requested(args.history) or find_configured_history(), find_results_folder(args))
    if found is None:
        raise UsageError("this project keeps no history (dtfperf_history = `never`): name one with --history")
    return found


def open_history(args: argparse.Namespace) -> "Database":
    """Open the history, which must exist. Raises `HistoryError`, `UsageError`."""
    from pytest_dtfperf.history.database import Database

    return Database.open(find_address(args))


IMPORT = """\
Enter session folders into the history, for example those that ended while the database could not be written. Sessions that
are in the history stay as they are. The folders are only read.

    dtfperf history import perf_results                                  # all sessions in it
    dtfperf history import perf_results/20260131T021503Z-9f3c1a
    dtfperf history import perf_results --history=postgresql://perf@db/perf
"""
IMPORT_ENDS = {
    DONE: "all are in the history",
    FAILED: "some could not be read",
    USAGE: "wrong arguments, or a history that cannot be written",
}
IMPORT_SHAPE: Shape = {
    "new": "a list of sessions that were entered",
    "known": "a list of sessions that were in the history",
    "refused": [{"folder": "that cannot be read", "why": "the reason"}],
}


def add_import_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "import", help="enter session folders into the history", text=IMPORT, ends=IMPORT_ENDS)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="a session folder, or a folder of session folders")
    add_history(parser)
    add_json(parser, IMPORT_SHAPE)
    parser.set_defaults(run=run_import)


def run_import(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.enter import enter_all, list_folders

    folders = [folder for path in args.folders for folder in list_folders(path)]
    where = find_address(args)
    done = enter_all(folders, where)
    if args.json:
        refused = [{"folder": path, "why": why} for path, why in done.refused.items()]
        print_json({"new": done.new, "known": done.known, "refused": refused})
    else:
        for path, why in done.refused.items():
            print_remark(f"{printable(path)} was not entered: {why}")
        known = f", {len(done.known)} known already" if done.known else ""
        unread = f", {len(done.refused)} that cannot be read" if done.refused else ""
        entered = " and ".join(map(str, done.addresses)) or where
        print(f"dtfperf: {format_count(len(done.new), 'session')} entered in {entered}{known}{unread}.")
    return FAILED if done.refused else DONE


PRUNE = """\
Remove old sessions from the history: all but the latest, or those before a date. The command shows their number and asks for
confirmation. Session folders stay as they are, and `dtfperf history import` enters them again. Changes are then searched in
the remaining sessions.

    dtfperf history prune --keep=400
    dtfperf history prune --before=2025-01-01 --yes            # without a confirmation
"""
PRUNE_ENDS = {
    DONE: "they were removed",
    FAILED: "there are no such sessions, or the answer was no",
    USAGE: "wrong arguments, a history that cannot be written, or no terminal for the question and no --yes",
}
PRUNE_SHAPE = {"removed": "a list of sessions"}


def add_prune_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "prune", help="remove old sessions from the history", text=PRUNE, ends=PRUNE_ENDS)
    parser.add_argument("--keep", metavar="N", type=int, help="keep the latest N")
    parser.add_argument("--before", metavar="DATE", help="remove those that began before this day, as 2025-01-01")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_history(parser)
    add_json(parser, PRUNE_SHAPE)
    parser.set_defaults(run=run_prune)


def run_prune(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store

    if (args.keep is None) == (args.before is None) or (args.keep is not None and args.keep < 1):
        raise UsageError("prune takes --keep=N, with N of at least 1, or --before=DATE")
    if args.before is not None and not _is_day(args.before):
        raise UsageError(f"--before takes a day, as 2025-01-01, not {show_value(args.before)}")
    database = open_history(args)
    with database.reading() as connection:
        names = [row["id"] for row in _select_old(store.read_sessions(connection), args)]
    question = f"{format_count(len(names), 'session')} of {database.address} will be removed from the history. Continue?"
    if names and (args.yes or confirm(question)):
        database.write(lambda connection: store.remove(connection, names))
    else:
        if args.json:
            print_json({"removed": []})
        print_remark("nothing was changed.")
        return FAILED
    if args.json:
        print_json({"removed": names})
    else:
        print(f"dtfperf: {format_count(len(names), 'session')} removed.")
    return DONE


def _is_day(text: str) -> bool:
    """Return whether the text is a day in the form of sessions' times, so that texts sort as days do."""
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat() == text
    return False


def _select_old(sessions: "Sequence[Row]", args: argparse.Namespace) -> "Sequence[Row]":
    if args.keep is not None:
        return sessions[: -args.keep]
    return [row for row in sessions if row["started"] < args.before]


EXPORT = """\
Print all measurements of a history, the oldest first, as CSV, or with --json as a line of JSON for each, with its training,
fingerprint and step breakdown. docs/history.md describes the columns.

    dtfperf history export >rates.csv
    dtfperf history export --json | jq 'select(.model == "alexnet") | .images_per_sec'

--format selects a format of other programs, for a history or a folder: a row for each run, or one session, by default the
latest. docs/exports.md describes the formats.

    dtfperf history export --format=csv --out=runs.csv
    dtfperf history export --format=parquet --out=runs.parquet perf_results
    dtfperf history export --format=pytest-benchmark --out=tonight.json
    dtfperf history export --format=bencher --session=2026-01-31 | bencher run --adapter json --file /dev/stdin
    dtfperf history export --format=openmetrics perf_results/20260131T021503Z-9f3c1a
"""
EXPORT_ENDS = {DONE: "written", FAILED: "there is none", USAGE: "wrong arguments, or a history or a folder that cannot be read"}
EXPORT_SHAPE: Shape = {
    "session": "the id of the session",
    "id": "of the measurement",
    "label": "of the training",
    "images_per_sec": "its rate",
    "fingerprint": "hardware, software and graph, as an object",
    OTHER_KEYS: "all columns of the table of measurements: docs/history.md",
}

MEASUREMENT_COLUMNS = (
    "session", "started", "cluster", "commit", "id", "test", "label", "model", "batch_size", "gpus", "num_ps",
    "variable_update", "system", "hosts", "fingerprint", "program", "verdict", "runs", "images_per_sec", "mean_log", "spread",
    "noise_run", "noise_session", "efficiency", "baseline", "change", "accepted", "in_series",
)  # fmt: skip
NO_TEXT = "parquet is no text: write it with --out=FILE"


def add_export_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands, "export", help="write measurements and runs for other programs", text=EXPORT, ends=EXPORT_ENDS
    )
    text = "with --format: a session folder, or a folder of session folders, instead of the history"
    parser.add_argument("source", nargs="?", metavar="DIR", help=text)
    parser.add_argument("--format", choices=sorted(EXPORT_FORMATS), help="the format")
    text = "with --format: an id, a date, a commit, a version, or `last`"
    set_completer(parser.add_argument("--session", metavar="SESSION", help=text), complete_session_ids)
    parser.add_argument("--out", metavar="FILE", type=Path, help="with --format: write to this file instead of stdout")
    add_history(parser)
    add_json(parser, EXPORT_SHAPE, lines="measurement")
    parser.set_defaults(run=run_export)


def run_export(args: argparse.Namespace) -> int:
    if args.format:
        return _write_format(args)
    given = [name for name in ("source", "session", "out") if getattr(args, name)]
    if given:
        argument = "DIR" if given[0] == "source" else f"--{given[0]}"
        raise UsageError(f"{argument} goes with --format, one of {', '.join(sorted(EXPORT_FORMATS))}")
    return _print_measurements(args)


def _write_format(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history.comparison import LAST
    from pytest_dtfperf.report.sources import load_history_sessions, load_sessions, select_sessions

    if args.json:
        raise UsageError("--json and --format exclude each other: which JSON is meant?")
    if args.format == "parquet" and not args.out and sys.stdout.isatty():
        raise UsageError(NO_TEXT)
    form = EXPORT_FORMATS[args.format]
    one = form.scope == "one session"
    found = load_sessions(args.source, print_remark) if args.source else load_history_sessions(find_address(args))
    sessions = select_sessions(found, args.session or (LAST if one and found else None))[-1 if one else 0 :]
    if not any(stored.records for stored in sessions):
        print_remark("there is no measurement to export.")
        return FAILED
    content = form.write(sessions)
    if one:
        _report_left_out(sessions[-1])
    if args.out:
        write_file(args.out, content)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
    return DONE


def _report_left_out(stored: "StoredSession") -> None:
    left = len(stored.records) - len(stored.comparable)
    if left:
        why = "INVALID, TAINTED, on other hosts than requested, or with an injected slow-down"
        print_remark(f"{format_count(left, 'measurement')} of {stored.id} left out: {why}.")


def _print_measurements(args: argparse.Namespace) -> int:
    from pytest_dtfperf.history import store
    from pytest_dtfperf.report.session_exports import escape_formula

    with open_history(args).reading() as connection:
        rows = store.read_measurements(connection, all_columns=True)
        contents = store.read_fingerprints(connection) if args.json else {}
    if args.json:
        for row in rows:
            print_json({**row, "fingerprint": contents[row["fingerprint"]].to_json()})
    else:
        writer = csv.DictWriter(sys.stdout, MEASUREMENT_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: escape_formula(row[name]) for name in MEASUREMENT_COLUMNS} for row in rows)
    return DONE if rows else FAILED
