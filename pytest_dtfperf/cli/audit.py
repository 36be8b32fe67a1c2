"""`dtfperf baselines audit`: which accepted measurements can no longer be relied upon, and what has none."""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_dtfperf.cli.output import print_json
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_baselines,
    add_command,
    add_json,
    add_results,
    baselines_folder,
    print_table,
    results_folder,
)
from pytest_dtfperf.clusters.file import PERF_TESTS
from pytest_dtfperf.errors import SessionFileError, UsageError, quoted_lines
from pytest_dtfperf.formats import counted
from pytest_dtfperf.node import run_folder
from pytest_dtfperf.node.module_command import project_command

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.audit import Finding, Sighting

MAX_AGE_DAYS, BEATEN = 180, 5
COLLECTED, NOTHING_COLLECTED = 0, 5  # pytest's exit codes
COLLECTION_S = 120.0  # collecting imports test files, and trains nothing
LAST_LINES = 15

AUDIT = """\
Looks through baselines/, the sessions in perf_results/ and the tests in perf_tests/, and measures nothing. Finds

  no baseline  trainings that sessions have compared, or wanted to, and that nothing was accepted of
  no test      baselines of tests that there are no longer
  beaten       baselines that every one of the last sessions exceeded by more than the margin
  too tight    baselines whose rates scatter too much for their margin: more than 10 runs would be needed
  old          baselines that were measured long ago

How many parameters a test has depends on the cluster, so that a test is there if its function is.

    dtfperf baselines audit
    dtfperf baselines audit perf_tests more_tests --max-age=90 --json
"""
ENDS = {
    DONE: "nothing was found",
    FAILED: "something was",
    USAGE: "wrong arguments, a file that cannot be read, tests that cannot be collected",
}
SHAPE: Shape = {
    "findings": [
        {
            "kind": "no baseline, no test, beaten, too tight or old",
            "system": "the hardware",
            "case": "the training",
            "words": "what is the matter, and how to go on",
        }
    ],
    "notes": "a list of what could not be found out, and why",
    "baselines": "how many there are",
    "systems": "likewise",
    "tests": "likewise",
    "sessions": "how many have compared something with baselines",
}


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    audit = add_command(
        commands, "audit", help="which baselines are missing, old, beaten, unowned or too tight", text=AUDIT, ends=ENDS
    )
    audit.add_argument("tests", nargs="*", metavar="TESTS", help=f"files and folders of perf tests; {PERF_TESTS} by default")
    add_baselines(audit)
    add_results(audit)
    audit.add_argument(
        "--max-age", metavar="DAYS", type=int, default=MAX_AGE_DAYS, help=f"what is older is old; {MAX_AGE_DAYS} by default"
    )
    audit.add_argument(
        "--beaten", metavar="N", type=int, default=BEATEN, help=f"by so many sessions in a row; {BEATEN} by default"
    )
    add_json(audit, SHAPE)
    audit.set_defaults(run=_audit)


def _audit(args: argparse.Namespace) -> int:
    for name in ("max_age", "beaten"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(args, name)}")
    folder, results = baselines_folder(args), results_folder(args)
    if not folder.is_dir():
        raise UsageError(f"there is no folder of baselines {folder}; name one with --baselines")

    from pytest_dtfperf.baselines.audit import Known, audit
    from pytest_dtfperf.baselines.store import BaselineStore

    store = BaselineStore(folder)
    store.check()
    sightings, notes = _seen(results)
    tests = _collect(args.tests or [PERF_TESTS])
    known = Known(
        entries={system: entries for system in store.systems() if (entries := store.entries(system))},
        margins={system: margin for system in store.systems() if (margin := store.margin(system)) is not None},
        sightings=sightings,
        tests=tests,
        now=datetime.now(UTC),
        max_age_days=args.max_age,
        beaten=args.beaten,
    )
    found = audit(known)
    counts = {
        "baselines": sum(map(len, known.entries.values())),
        "systems": len(known.entries),
        "tests": len(tests),
        "sessions": len({each.session for each in sightings}),
    }
    if args.json:
        print_json({"findings": [_to_json(each) for each in found], "notes": notes, **counts})
        return FAILED if found else DONE
    _show(found)
    for note in notes:
        print(f"note: {note}")
    of_tests = f"{counted(counts['tests'], 'test')}, {counted(counts['sessions'], 'session')}"
    what = counted(len(found), "finding") if found else "nothing was found"
    print(f"dtfperf: {counted(counts['baselines'], 'baseline')} of {counted(counts['systems'], 'system')}, {of_tests}: {what}.")
    return FAILED if found else DONE


def _to_json(found: "Finding") -> dict[str, str]:
    return {"kind": found.kind, "system": found.system, "case": found.case, "words": found.words}


def _seen(results: Path) -> tuple[list["Sighting"], list[str]]:
    """What the sessions have compared with baselines, and what cannot be known for want of them."""
    from pytest_dtfperf.baselines.audit import Sighting
    from pytest_dtfperf.records.session import each_once, session_folders

    found: list[Sighting] = []
    notes: list[str] = []
    folders = each_once(session_folders(results), notes.append)
    if not folders:
        notes.append(f"{results} has no sessions, so nobody can tell what has no baseline or is beaten (--results)")
    for folder in folders:
        try:
            records = folder.measurements()
        except SessionFileError as error:
            notes.append(f"left out: {error}")
            continue
        found += [
            Sighting(
                session=folder.id,
                test=record.test,
                measurement=record.measurement,
                margin=record.baseline.margin if record.baseline else None,
            )
            for record in records
            if record.is_valid
            and not record.measurement.injected_slowdowns
            and not record.measurement.misplaced
            and any(check.kind == "baseline" for check in record.checks)
        ]
    return found, notes


def _collect(paths: Sequence[str]) -> list[str]:
    """Node ids of all tests, whatever the cluster at hand can hold. Raises `UsageError`."""
    for path in paths:
        if not Path(path).exists():
            raise UsageError(f"there are no tests at {path}; name files or folders of perf tests")
    from pytest_dtfperf.cli.collected import FILE

    with run_folder.temporary() as folder:
        file = Path(folder) / "tests"
        file.touch()
        command = project_command(
            sys.executable, "pytest", "--collect-only", "-q", "-p", "pytest_dtfperf.cli.collected", *paths
        )
        try:
            ended = subprocess.run(
                command,
                env={**os.environ, FILE: str(file)},
                capture_output=True,
                text=True,
                timeout=COLLECTION_S,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise UsageError(f"pytest has not collected {' '.join(paths)} in {COLLECTION_S:.0f} s") from exc
        if ended.returncode not in (COLLECTED, NOTHING_COLLECTED):
            last = (ended.stdout + ended.stderr).strip().splitlines()[-LAST_LINES:]
            raise UsageError(f"pytest cannot collect {' '.join(paths)} (exit code {ended.returncode}):{quoted_lines(last)}")
        return file.read_text(encoding="utf-8").splitlines()


def _show(found: Sequence["Finding"]) -> None:
    """On a terminal a table; in a log a line for each, to be searched."""
    if not sys.stdout.isatty():
        for each in found:
            print(f"{each.kind}: {each.system}: {each.case}: {each.words}")
        return
    if not found:
        return
    headings = ("", "system", "case", "what is the matter")
    print_table(headings, [(each.kind, each.system, each.case, each.words) for each in found])
