"""dtfperf explain: why a training is slower, and where the time of its steps went, offline."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    Commands,
    Shape,
    add_command,
    add_json,
    colour,
    columns,
    completed_by,
    results_folder,
    sessions,
)
from pytest_dtfperf.formats import printable

if TYPE_CHECKING:
    from pytest_dtfperf.explain.anatomy import Anatomy
    from pytest_dtfperf.explain.causes import Explanation
    from pytest_dtfperf.explain.difference import Change
    from pytest_dtfperf.measurement import Run
    from pytest_dtfperf.records.record import Record
    from pytest_dtfperf.session.explanation import Reference

TEXT = """\
Shows why a measurement is slower than what it was compared with, and where the time of its steps went, from what is stored
alone: nothing is trained, no cluster is asked.

    dtfperf explain perf_results/20260131T021503Z-9f3c1a
    dtfperf explain perf_results/20260131T021503Z-9f3c1a 1a2b3c     # one measurement, by its id
    dtfperf explain 1a2b3c                                          # the same, looked for where sessions are kept
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --json     # for programs
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --against perf_results/20260130T021503Z-a81b22
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --against baselines

Without --against it is what was said when the measurement was judged. --against holds each against another session's last one
of the same spec, or against a baseline: a file, or the folder of them. The causes add up to what a step takes longer, with what
nothing explains; the changes of the critical path by kind of work do, too. What two measurements of the same differ by says
nothing.

Of several runs it is the last one that was traced. All events of it are in trace.json.gz beside the run's logs, for
https://ui.perfetto.dev. docs/explaining.md says what the kinds of work are, docs/causes.md what causes there are, and how sure
all of it is.
"""
ENDS = {DONE: "shown", FAILED: "nothing of it was traced or explained, or nothing of what --against has"}
SHAPE: Shape = {
    "measurements": [
        {
            "id": "of the measurement",
            "anatomy": "where a step's time went, as its run has it in measurements.jsonl; null: it was not traced",
            "unexplained": "why there is no anatomy; empty: there is one, or nobody wanted one",
            "explanation": "why it is slower, as its record has it in measurements.jsonl; null: nobody has asked",
            "against": "with --against: its id, and changes of a step by kind of work; null: nothing to hold it against",
        }
    ]
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands, "explain", help="why a stored measurement is slower, and where a step's time went", text=TEXT, ends=ENDS
    )
    session = parser.add_argument(
        "session",
        metavar="SESSION_DIR|MEASUREMENT",
        help="the session's own folder, below perf_results/, or a measurement's id",
    )
    completed_by(session, sessions)
    parser.add_argument("measurement", nargs="?", metavar="MEASUREMENT", help="the id of one measurement; by default all")
    against = parser.add_argument(
        "--against",
        type=Path,
        metavar="SESSION_DIR|BASELINE",
        help="a session or baselines that were faster: what has become longer?",
    )
    completed_by(against, sessions)
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.session.explanation import Reference, find_records

    records = find_records(args.session, args.measurement, results_folder(args))
    other = Reference.at(args.against) if args.against else None
    told = [_told(record, other) for record in records]
    if args.json:
        print_json({"measurements": [_to_json(each) for each in told]})
    else:
        for each in told:
            print("\n".join([*_lines(each), ""]))
    return DONE if any(each.is_known and (other is None or each.is_compared) for each in told) else FAILED


def _told(record: "Record", other: "Reference | None") -> "Told":
    from pytest_dtfperf.session.explanation import explain_record

    return Told(
        record, record.measurement.traced_run, other.record_like(record) if other else None, explain_record(record, other)
    )


@dataclass(frozen=True)
class Told:
    """What is known of one measurement."""

    record: "Record"
    run: "Run | None"
    before: "Record | None"  # what it is held against, if that is another measurement
    explanation: "Explanation | None"  # why it is slower than that, or than what it was judged by

    @property
    def is_compared(self) -> bool:
        return self.changes is not None or bool(self.explanation and self.explanation.causes)

    @property
    def is_known(self) -> bool:
        return self.anatomy is not None or self.explanation is not None

    @property
    def anatomy(self) -> "Anatomy | None":
        return _anatomy_of(self.run)

    @property
    def changes(self) -> "Sequence[Change] | None":
        """None where one of the two has no anatomy."""
        from pytest_dtfperf.explain.difference import difference

        now, then = self.anatomy, _anatomy_of(self.before.measurement.traced_run) if self.before else None
        return difference(then, now) if then and now else None


def _anatomy_of(run: "Run | None") -> "Anatomy | None":
    from pytest_dtfperf.explain.anatomy import Anatomy

    return Anatomy.from_json(run.anatomy) if run and run.anatomy else None


def _to_json(told: Told) -> dict[str, Any]:
    anatomy, why_not = (told.run.anatomy, told.run.unexplained) if told.run else (None, "")
    found: dict[str, Any] = {"id": told.record.id, "anatomy": anatomy, "unexplained": why_not}
    found |= {"explanation": told.explanation.to_json() if told.explanation else None, "against": None}
    if told.before and told.changes is not None:
        changes = [{**change.to_json(), "change_s": change.seconds} for change in told.changes]
        found["against"] = {"id": told.before.id, "changes": changes}
    return found


def _lines(told: Told) -> Iterator[str]:
    from pytest_dtfperf.report import explanations

    width, coloured = columns(sys.stdout), colour(sys.stdout)
    yield f"{printable(told.record.id)}: {told.record.spec.label}"
    if told.explanation:
        yield "\n".join(
            ["", *explanations.describe_explanation(told.explanation), *explanations.list_experiments(told.record), ""]
        )
    if told.anatomy:
        if told.before and told.changes is not None:
            path = bool(told.anatomy.path)
            yield explanations.compare_anatomies(
                told.changes, printable(told.before.id), path=path, width=width, colour=coloured
            )
        yield explanations.describe_anatomy(told.anatomy, width=width, colour=coloured)
    elif told.run:
        yield f"cannot be explained: {printable(told.run.unexplained)}"
    else:
        yield "no step of it was traced"
