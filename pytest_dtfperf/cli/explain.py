"""dtfperf explain: where the time of a training step went, offline."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command, colour, columns
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.printable import printable

if TYPE_CHECKING:
    from pytest_dtfperf.measurement import Run
    from pytest_dtfperf.report.record import Record

TEXT = """\
Shows where the time of a step went in each measurement of a session whose steps were traced, from its folder alone: nothing is
trained, no cluster is asked.

    dtfperf explain perf_results/20260131T021503Z-9f3c1a
    dtfperf explain perf_results/20260131T021503Z-9f3c1a 1a2b3c     # one measurement, by its id
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --json     # a line of JSON for each

Of several runs it is the last one that was traced. All events of it are in trace.json.gz beside the run's logs, for
https://ui.perfetto.dev. docs/explaining.md says what the kinds of work are, and how sure all of it is.

Exit codes: 0 shown; 1 nothing of it was traced; 2 wrong arguments, or a file that cannot be read.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "explain", help="where the time of a step went in a stored session, offline", text=TEXT)
    parser.add_argument("session", type=Path, metavar="SESSION_DIR", help="the session's own folder, below perf_results/")
    parser.add_argument("measurement", nargs="?", metavar="MEASUREMENT", help="the id of one measurement; by default all")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.report.session import SessionFolder

    records = _asked(SessionFolder.open(args.session).measurements(), args.measurement)
    told = [(record, _told(record)) for record in records]
    for record, run in told:
        if args.json:
            explained = {
                "id": record.id,
                "anatomy": run.anatomy if run else None,
                "unexplained": run.unexplained if run else "",
            }
            print(json.dumps(explained))
        else:
            print("\n".join([f"{printable(record.id)}: {record.spec.label}", *_lines(run), ""]))
    return DONE if any(run and run.anatomy for _, run in told) else FAILED


def _asked(records: "Sequence[Record]", measurement: str | None) -> "Sequence[Record]":
    if measurement is None:
        return records
    found = [record for record in records if record.id == measurement]
    if not found:
        known = ", ".join(printable(record.id) for record in records) or "none"
        raise UsageError(f"there is no measurement {printable(measurement)} in this session: it has {known}")
    return found


def _told(record: "Record") -> "Run | None":
    """The last run with an anatomy, else the last that says why it has none."""
    last_first = list(reversed(record.measurement.runs))
    with_anatomy = [run for run in last_first if run.anatomy]
    with_reason = [run for run in last_first if run.unexplained]
    return next(iter([*with_anatomy, *with_reason]), None)


def _lines(run: "Run | None") -> Iterator[str]:
    from pytest_dtfperf.explain.anatomy import Anatomy
    from pytest_dtfperf.report.anatomy import described

    if run is None:
        yield "no step of it was traced"
    elif run.anatomy is None:
        yield f"cannot be explained: {printable(run.unexplained)}"
    else:
        yield described(Anatomy.from_json(run.anatomy), width=columns(sys.stdout), colour=colour(sys.stdout))
