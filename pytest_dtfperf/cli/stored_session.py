"""`dtfperf judge` and `dtfperf explain`: judge a stored session again, and explain its measurements, offline."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.baselines.verdict import MOST_EFFICIENT
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    RECORD_SHAPE,
    Commands,
    Shape,
    add_command,
    add_json,
    complete_session_folders,
    count_columns,
    find_results_folder,
    is_colour_wanted,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.errors import SessionFileError, UsageError
from pytest_dtfperf.formats import parse_number, printable

if TYPE_CHECKING:
    from pytest_dtfperf.datamodel.explanation import Explanation
    from pytest_dtfperf.datamodel.measurement import Run
    from pytest_dtfperf.datamodel.step_times import StepBreakdown
    from pytest_dtfperf.explain.causes import Change
    from pytest_dtfperf.records.record import Record
    from pytest_dtfperf.session.explanation import ComparisonSource


JUDGE = """\
Judge the measurements of a stored session again. Only its folder is read: nothing is trained, and no cluster is contacted.

Without options the verdicts and reasons are the same as in the session, because its folder has the runs, the baselines and
the budget of false alarms. Options replace some of these.

    dtfperf judge perf_results/20260131T021503Z-9f3c1a
    dtfperf judge perf_results/20260131T021503Z-9f3c1a --margin 0.02
    dtfperf judge perf_results/20260131T021503Z-9f3c1a --baselines baselines
"""
JUDGE_ENDS = {DONE: "no verdict fails its test", FAILED: "a verdict fails its test"}


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    add_judge_parser(commands)
    add_explain_parser(commands)


def add_judge_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "judge", help="judge a stored session again, offline", text=JUDGE, ends=JUDGE_ENDS)
    text = "the folder of the session, in perf_results/"
    set_completer(parser.add_argument("session", type=Path, metavar="SESSION_DIR", help=text), complete_session_folders)
    parser.add_argument("--margin", type=_parse_fraction, metavar="FRACTION", help="largest allowed loss of rate: 0.05 is 5 %%")
    parser.add_argument(
        "--min-efficiency", type=_parse_efficiency, metavar="FRACTION", help="smallest allowed scaling efficiency: 0.9 is 90 %%"
    )
    parser.add_argument(
        "--baselines",
        type=Path,
        metavar="DIR",
        help="compare with the baselines of this folder, instead of those of the session",
    )
    parser.add_argument(
        "--strict-verdicts", action="store_true", help="undecided verdicts (INCONCLUSIVE, NO_BASELINE, ...) fail, too"
    )
    add_json(parser, RECORD_SHAPE, lines="measurement, as in measurements.jsonl")
    parser.set_defaults(run=run_judge)


def run_judge(args: argparse.Namespace) -> int:
    from pytest_dtfperf.baselines.store import BaselineStore
    from pytest_dtfperf.records.again import JudgementChanges, judge_again
    from pytest_dtfperf.records.session import SessionFolder
    from pytest_dtfperf.report import terminal

    folder = SessionFolder.open(args.session)
    store = BaselineStore(args.baselines) if args.baselines else None
    if store:
        if not args.baselines.is_dir():
            raise UsageError(f"--baselines: {args.baselines} is no folder")
        store.check()
    before = folder.measurements()
    baseline_of = store.find_for if store else None
    changes = JudgementChanges(margin=args.margin, min_efficiency=args.min_efficiency, baseline_of=baseline_of)
    kept: list[str] = []
    try:
        after = judge_again(before, changes, kept.append)
    except SessionFileError as error:
        raise SessionFileError(f"{folder.path}: {error}") from error
    if args.json:
        for record in after:
            print_json(record.to_json())
    else:
        changed = [
            f"{new.spec.label}: {old.verdict} before, {new.verdict} after: {new.reason}"
            for old, new in zip(before, after, strict=True)
            if old.verdict != new.verdict
        ]
        remarks = [*(changed or ["All verdicts are the same as in the session."]), *kept]
        budget = folder.session.budget
        text = terminal.format_summary(
            after,
            width=count_columns(sys.stdout),
            colour=is_colour_wanted(sys.stdout),
            folder=folder.path,
            remarks=remarks,
            budget=budget,
        )
        print(text or "Nothing was measured in this session.")
    verdicts = [record.verdict for record in after if record.verdict]
    return FAILED if any(verdict.fails(args.strict_verdicts) for verdict in verdicts) else DONE


def _parse_fraction(text: str) -> float:
    value = parse_number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"takes a fraction, as 0.05 for 5 %, not {text!r}")
    return value


def _parse_efficiency(text: str) -> float:
    value = parse_number(text)
    if not 0 < value <= MOST_EFFICIENT:
        raise argparse.ArgumentTypeError(f"takes an efficiency, as 0.9 for 90 %, not {text!r}")
    return value


EXPLAIN = """\
Show why a measurement is slower than its baseline, and the breakdown of its steps. Only stored files are read: nothing is
trained, and no cluster is contacted.

    dtfperf explain perf_results/20260131T021503Z-9f3c1a
    dtfperf explain perf_results/20260131T021503Z-9f3c1a 1a2b3c     # one measurement, by its id
    dtfperf explain 1a2b3c                                          # the same, from the folder of sessions
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --json     # for programs
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --against perf_results/20260130T021503Z-a81b22
    dtfperf explain perf_results/20260131T021503Z-9f3c1a --against baselines

Without --against it shows the explanation of the session. --against compares each measurement with the last one of the same
spec in another session, or with a baseline (a file, or the folder of baselines). The causes and the unexplained rest add up
to the increase of the step's time, and so do the changes of the critical path by kind of work. If nothing changed, the
differences are noise.

The breakdown is that of the last traced run. Its events are in trace.json.gz beside the run's logs, for
https://ui.perfetto.dev. docs/explaining.md describes the kinds of work, and docs/causes.md the causes with their accuracy.
"""
EXPLAIN_ENDS = {DONE: "shown", FAILED: "no measurement was traced or explained, or none is in --against"}
EXPLAIN_SHAPE: Shape = {
    "measurements": [
        {
            "id": "of the measurement",
            "step_breakdown": "the breakdown of a step, as in measurements.jsonl; null: not traced",
            "unexplained": "why there is no step breakdown; empty: there is one, or none was requested",
            "explanation": "the causes, as in measurements.jsonl; null: not explained",
            "against": "with --against: id of the other one, and changes of a step by kind of work; null: there is none",
        }
    ]
}


def add_explain_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(
        commands,
        "explain",
        help="show why a stored measurement is slower, and the breakdown of its steps",
        text=EXPLAIN,
        ends=EXPLAIN_ENDS,
    )
    session = parser.add_argument(
        "session",
        metavar="SESSION_DIR|MEASUREMENT",
        help="the folder of a session, in perf_results/, or the id of a measurement",
    )
    set_completer(session, complete_session_folders)
    parser.add_argument("measurement", nargs="?", metavar="MEASUREMENT", help="id of a measurement; by default all")
    against = parser.add_argument(
        "--against",
        type=Path,
        metavar="SESSION_DIR|BASELINE",
        help="a session or baselines to compare with",
    )
    set_completer(against, complete_session_folders)
    add_json(parser, EXPLAIN_SHAPE)
    parser.set_defaults(run=run_explain)


def run_explain(args: argparse.Namespace) -> int:
    from pytest_dtfperf.session.explanation import ComparisonSource, find_records

    records = find_records(args.session, args.measurement, find_results_folder(args))
    other = ComparisonSource.read_path(args.against) if args.against else None
    explained = [_make_explanation(record, other) for record in records]
    if args.json:
        print_json({"measurements": [_make_explained_json(each) for each in explained]})
    else:
        for each in explained:
            print("\n".join([*_list_lines(each), ""]))
    return DONE if any(each.is_known and (other is None or each.is_compared) for each in explained) else FAILED


def _make_explanation(record: "Record", other: "ComparisonSource | None") -> "StoredExplanation":
    from pytest_dtfperf.session.explanation import explain_record

    return StoredExplanation(
        record, record.measurement.traced_run, other.record_like(record) if other else None, explain_record(record, other)
    )


@dataclass(frozen=True)
class StoredExplanation:
    """One measurement and its explanation."""

    record: "Record"
    run: "Run | None"
    before: "Record | None"  # the other measurement that it is compared with, if there is one
    explanation: "Explanation | None"  # why it is slower than that, or than its baseline

    @property
    def is_compared(self) -> bool:
        return self.changes is not None or bool(self.explanation and self.explanation.causes)

    @property
    def is_known(self) -> bool:
        return self.step_breakdown is not None or self.explanation is not None

    @property
    def step_breakdown(self) -> "StepBreakdown | None":
        return self.run.step_breakdown if self.run else None

    @property
    def changes(self) -> "Sequence[Change] | None":
        """Return the changes of a step; None if one of the two has no breakdown."""
        from pytest_dtfperf.explain.causes import compute_changes

        traced = self.before.measurement.traced_run if self.before else None
        before, after = traced.step_breakdown if traced else None, self.step_breakdown
        return compute_changes(before, after) if before and after else None


def _make_explained_json(stored: StoredExplanation) -> dict[str, Any]:
    steps = stored.step_breakdown
    found: dict[str, Any] = {
        "id": stored.record.id,
        "step_breakdown": steps.to_json() if steps else None,
        "unexplained": stored.run.unexplained if stored.run else "",
    }
    found |= {"explanation": stored.explanation.to_json() if stored.explanation else None, "against": None}
    if stored.before and stored.changes is not None:
        changes = [{**change.to_json(), "change_s": change.seconds} for change in stored.changes]
        found["against"] = {"id": stored.before.id, "changes": changes}
    return found


def _list_lines(stored: StoredExplanation) -> Iterator[str]:
    from pytest_dtfperf.report import explanations

    width, coloured = count_columns(sys.stdout), is_colour_wanted(sys.stdout)
    yield f"{printable(stored.record.id)}: {stored.record.spec.label}"
    if stored.explanation:
        yield "\n".join(
            ["", *explanations.describe_explanation(stored.explanation), *explanations.list_experiments(stored.record), ""]
        )
    if stored.step_breakdown:
        if stored.before and stored.changes is not None:
            path = bool(stored.step_breakdown.path)
            yield explanations.compare_breakdowns(
                stored.changes, printable(stored.before.id), path=path, width=width, colour=coloured
            )
        yield explanations.describe_breakdown(stored.step_breakdown, width=width, colour=coloured)
    elif stored.run:
        yield f"cannot be explained: {printable(stored.run.unexplained)}"
    else:
        yield "no step of it was traced"
