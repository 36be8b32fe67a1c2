"""dtfperf explain: where the time of a training step went, offline."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.terms import DONE, FAILED, Commands, add_command, colour, columns
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.printable import printable

if TYPE_CHECKING:
    from pytest_dtfperf.explain.anatomy import Anatomy
    from pytest_dtfperf.explain.difference import Change
    from pytest_dtfperf.measurement import Run
    from pytest_dtfperf.records.record import Record

TEXT = """\
Shows where the time of a step went in each measurement of a session whose steps were traced, from its folder alone: nothing is
trained, no cluster is asked.

    dtfperf explain perf_results/20260131T021503Z-9f3c1a
    dtfperf explain perf_results/20260131T021503Z-9f3c1a 1a2b3c     # one measurement, by its id
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --json     # a line of JSON for each
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --against perf_results/20260130T021503Z-a81b22

--against shows what has become longer since another session, for what both have traced: the changes of the critical path by
kind of work, which add up to the change of the step. What two measurements of the same differ by says nothing.

Of several runs it is the last one that was traced. All events of it are in trace.json.gz beside the run's logs, for
https://ui.perfetto.dev. docs/explaining.md says what the kinds of work are, and how sure all of it is.

Exit codes: 0 shown; 1 nothing of it was traced, or nothing of what --against has traced; 2 wrong arguments, or a file that
cannot be read.
"""


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "explain", help="where the time of a step went in a stored session, offline", text=TEXT)
    parser.add_argument("session", type=Path, metavar="SESSION_DIR", help="the session's own folder, below perf_results/")
    parser.add_argument("measurement", nargs="?", metavar="MEASUREMENT", help="the id of one measurement; by default all")
    parser.add_argument(
        "--against", type=Path, metavar="SESSION_DIR", help="the folder of a session that was faster: what has become longer?"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.records.session import SessionFolder

    records = _asked(SessionFolder.open(args.session).measurements(), args.measurement)
    others = SessionFolder.open(args.against).measurements() if args.against else None
    told = [Told(record, _run_of(record), _against(record, others)) for record in records]
    for each in told:
        print(json.dumps(_to_json(each)) if args.json else "\n".join([*_lines(each), ""]))
    return DONE if any(each.anatomy and (others is None or each.before) for each in told) else FAILED


def _asked(records: "Sequence[Record]", measurement: str | None) -> "Sequence[Record]":
    if measurement is None:
        return records
    found = [record for record in records if record.id == measurement]
    if not found:
        known = ", ".join(printable(record.id) for record in records) or "none"
        raise UsageError(f"there is no measurement {printable(measurement)} in this session: it has {known}")
    return found


def _run_of(record: "Record") -> "Run | None":
    """The last run with an anatomy, else the last that says why it has none."""
    last_first = list(reversed(record.measurement.runs))
    with_anatomy = [run for run in last_first if run.anatomy]
    with_reason = [run for run in last_first if run.unexplained]
    return next(iter([*with_anatomy, *with_reason]), None)


def _against(record: "Record", others: "Sequence[Record] | None") -> "Record | None":
    """The other session's last measurement of the same spec that has an anatomy."""
    same = [other for other in others or () if other.spec == record.spec]
    return next((other for other in reversed(same) if (run := _run_of(other)) and run.anatomy), None)


@dataclass(frozen=True)
class Told:
    """What is known of one measurement."""

    record: "Record"
    run: "Run | None"
    before: "Record | None"  # what it is held against

    @property
    def anatomy(self) -> "Anatomy | None":
        return _anatomy_of(self.run)

    @property
    def changes(self) -> "Sequence[Change] | None":
        """None where one of the two has no anatomy."""
        from pytest_dtfperf.explain.difference import difference

        now, then = self.anatomy, _anatomy_of(_run_of(self.before)) if self.before else None
        return difference(then, now) if then and now else None


def _anatomy_of(run: "Run | None") -> "Anatomy | None":
    from pytest_dtfperf.explain.anatomy import Anatomy

    return Anatomy.from_json(run.anatomy) if run and run.anatomy else None


def _to_json(told: Told) -> dict[str, Any]:
    anatomy, why_not = (told.run.anatomy, told.run.unexplained) if told.run else (None, "")
    found = {"id": told.record.id, "anatomy": anatomy, "unexplained": why_not}
    if told.before and told.changes is not None:
        changes = [{**change.to_json(), "change_s": change.seconds} for change in told.changes]
        found["against"] = {"id": told.before.id, "changes": changes}
    return found


def _lines(told: Told) -> Iterator[str]:
    from pytest_dtfperf.report import anatomy

    width, coloured = columns(sys.stdout), colour(sys.stdout)
    yield f"{printable(told.record.id)}: {told.record.spec.label}"
    if told.anatomy:
        if told.before and told.changes is not None:
            yield anatomy.compared(told.changes, printable(told.before.id), width=width, colour=coloured)
        yield anatomy.described(told.anatomy, width=width, colour=coloured)
    elif told.run:
        yield f"cannot be explained: {printable(told.run.unexplained)}"
    else:
        yield "no step of it was traced"
