"""dtfperf judge: judge a stored session again, offline."""

import argparse
import math
import sys
from pathlib import Path

from pytest_dtfperf.baselines.verdict import MOST_EFFICIENT
from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    RECORD,
    Commands,
    add_command,
    add_json,
    colour,
    columns,
    completed_by,
    sessions,
)
from pytest_dtfperf.errors import SessionFileError, UsageError

TEXT = """\
Judges again what a session has measured, from its folder alone: nothing is trained, no cluster is asked.

Without options the verdicts are those of then, word for word: each rests on the runs, the baselines and the budget of false
alarms that there were, and these are kept in the folder. An option puts something else in their place.

    dtfperf judge perf_results/20260131T021503Z-9f3c1a
    dtfperf judge perf_results/20260131T021503Z-9f3c1a --margin 0.02
    dtfperf judge perf_results/20260131T021503Z-9f3c1a --baselines baselines
"""
ENDS = {DONE: "no verdict fails its test", FAILED: "some verdict does"}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    parser = add_command(commands, "judge", help="judge a stored session again, offline", text=TEXT, ends=ENDS)
    text = "the session's own folder, below perf_results/"
    completed_by(parser.add_argument("session", type=Path, metavar="SESSION_DIR", help=text), sessions)
    parser.add_argument("--margin", type=_fraction, metavar="FRACTION", help="how much slower a rate may be: 0.05 is 5 %%")
    parser.add_argument("--min-efficiency", type=_efficiency, metavar="FRACTION", help="least scaling efficiency: 0.9 is 90 %%")
    parser.add_argument(
        "--baselines", type=Path, metavar="DIR", help="compare with what is in this folder, not with the baselines of then"
    )
    parser.add_argument(
        "--strict-verdicts", action="store_true", help="verdicts that decide nothing (INCONCLUSIVE, NO_BASELINE, ...) fail, too"
    )
    add_json(parser, RECORD, lines="measurement, as measurements.jsonl would have it now")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pytest_dtfperf.baselines.store import BaselineStore
    from pytest_dtfperf.records.again import Otherwise, judge_again
    from pytest_dtfperf.records.session import SessionFolder
    from pytest_dtfperf.report import terminal

    folder = SessionFolder.open(args.session)
    store = BaselineStore(args.baselines) if args.baselines else None
    if store:
        if not args.baselines.is_dir():
            raise UsageError(f"--baselines: {args.baselines} is no folder")
        store.check()
    before = folder.measurements()
    otherwise = Otherwise(margin=args.margin, min_efficiency=args.min_efficiency, baseline_of=store.find_for if store else None)
    kept: list[str] = []
    try:
        after = judge_again(before, otherwise, kept.append)
    except SessionFileError as error:
        raise SessionFileError(f"{folder.path}: {error}") from error
    if args.json:
        for record in after:
            print_json(record.to_json())
    else:
        changed = [
            f"{now.spec.label}: {then.verdict} then, {now.verdict} now: {now.reason}"
            for then, now in zip(before, after, strict=True)
            if then.verdict != now.verdict
        ]
        remarks = [*(changed or ["All verdicts are those of then."]), *kept]
        budget = folder.session.get("budget", {})
        text = terminal.format_summary(
            after, width=columns(sys.stdout), colour=colour(sys.stdout), folder=folder.path, remarks=remarks, budget=budget
        )
        print(text or "Nothing was measured in this session.")
    verdicts = [record.verdict for record in after if record.verdict]
    return FAILED if any(verdict.fails(args.strict_verdicts) for verdict in verdicts) else DONE


def _fraction(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"takes a fraction, as 0.05 for 5 %, not {text!r}")
    return value


def _efficiency(text: str) -> float:
    value = _number(text)
    if not 0 < value <= MOST_EFFICIENT:
        raise argparse.ArgumentTypeError(f"takes an efficiency, as 0.9 for 90 %, not {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
