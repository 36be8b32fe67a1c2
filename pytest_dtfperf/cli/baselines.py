"""`dtfperf baselines ...`: audit, remove and uncalibrate accepted measurements.

Also the plugin with which the audit collects tests: pytest loads this module with `-p` and calls `pytest_itemcollected`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.calibrate import add_calibrate_parser
from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_baselines,
    add_command,
    add_group,
    add_json,
    add_results,
    complete_patterns,
    find_baselines_folder,
    find_results_folder,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import confirm, print_json
from pytest_dtfperf.clusters.file import PERF_TESTS
from pytest_dtfperf.errors import SessionFileError, UsageError, quote_lines
from pytest_dtfperf.formats import format_count
from pytest_dtfperf.node import sweep
from pytest_dtfperf.node.module_command import make_project_command

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.audit import AuditFinding, Sighting
    from pytest_dtfperf.baselines.entry import Entry
    from pytest_dtfperf.baselines.store import BaselineStore


BASELINES_TEXT = """\
Audit, calibrate and remove baselines. A baseline is an accepted measurement (pytest perf_tests --update-baselines). Later
measurements of the same training on the same hardware are compared with it. baselines/ has a file for each kind of hardware.

    dtfperf baselines audit
    dtfperf baselines calibrate --sessions=10 perf_tests --cluster=daint
    dtfperf baselines remove model=alexnet
"""


def add_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "audit, calibrate and remove accepted measurements"
    baselines = add_group(commands, "baselines", help=text, text=BASELINES_TEXT)
    for add in (add_audit_parser, add_calibrate_parser, add_remove_parsers):
        add(baselines)


MAX_AGE_DAYS, BEATEN = 180, 5
COLLECTED, NOTHING_COLLECTED = 0, 5  # pytest's exit codes
COLLECTION_S = 120.0  # collecting imports test files, and trains nothing
LAST_LINES = 15

AUDIT = """\
Find problems of baselines from the baselines, the sessions in perf_results/ and the tests in perf_tests/. Nothing is
measured.

  no baseline  trainings that sessions compared, or tried to compare, without an accepted measurement
  no test      baselines of tests that no longer exist
  beaten       baselines that all of the last sessions exceeded by more than the margin
  too tight    baselines with too much noise for their margin: a decision would need more than 10 runs
  old          baselines that were measured long ago

The parameters of a test depend on the cluster, so only its function must exist.

    dtfperf baselines audit
    dtfperf baselines audit perf_tests more_tests --max-age=90 --json
"""
AUDIT_ENDS = {
    DONE: "no problem was found",
    FAILED: "a problem was found",
    USAGE: "wrong arguments, a file that cannot be read, tests that cannot be collected",
}
AUDIT_SHAPE: Shape = {
    "findings": [
        {
            "kind": "no baseline, no test, beaten, too tight or old",
            "system": "the hardware",
            "case": "the training",
            "message": "the problem, and what to do",
        }
    ],
    "notes": "a list of checks that were not possible, with the reason",
    "baselines": "how many there are",
    "systems": "likewise",
    "tests": "likewise",
    "sessions": "number of sessions that compared something with baselines",
}


def add_audit_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    audit = add_command(
        commands,
        "audit",
        help="find baselines that are missing, old, beaten, too tight or without a test",
        text=AUDIT,
        ends=AUDIT_ENDS,
    )
    audit.add_argument("tests", nargs="*", metavar="TESTS", help=f"files and folders of perf tests; {PERF_TESTS} by default")
    add_baselines(audit)
    add_results(audit)
    audit.add_argument(
        "--max-age", metavar="DAYS", type=int, default=MAX_AGE_DAYS, help=f"age of old baselines; {MAX_AGE_DAYS} by default"
    )
    audit.add_argument(
        "--beaten", metavar="N", type=int, default=BEATEN, help=f"by so many sessions in a row; {BEATEN} by default"
    )
    add_json(audit, AUDIT_SHAPE)
    audit.set_defaults(run=run_audit)


def run_audit(args: argparse.Namespace) -> int:
    for name in ("max_age", "beaten"):
        if getattr(args, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {getattr(args, name)}")
    folder, results = find_baselines_folder(args), find_results_folder(args)
    if not folder.is_dir():
        raise UsageError(f"there is no folder of baselines {folder}; name one with --baselines")

    from pytest_dtfperf.baselines.audit import AuditInputs, audit
    from pytest_dtfperf.baselines.store import BaselineStore

    store = BaselineStore(folder)
    store.check()
    sightings, notes = _load_sightings(results)
    tests = _collect_tests(args.tests or [PERF_TESTS])
    known = AuditInputs(
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
        print_json({"findings": [_make_finding_json(each) for each in found], "notes": notes, **counts})
        return FAILED if found else DONE
    _print_findings(found)
    for note in notes:
        print(f"note: {note}")
    of_tests = f"{format_count(counts['tests'], 'test')}, {format_count(counts['sessions'], 'session')}"
    what = format_count(len(found), "finding") if found else "no problem was found"
    print(
        f"dtfperf: {format_count(counts['baselines'], 'baseline')} of "
        f"{format_count(counts['systems'], 'system')}, {of_tests}: {what}."
    )
    return FAILED if found else DONE


def _make_finding_json(found: "AuditFinding") -> dict[str, str]:
    return {"kind": found.kind, "system": found.system, "case": found.case, "message": found.message}


def _load_sightings(results: Path) -> tuple[list["Sighting"], list[str]]:
    """Return the sessions' comparisons with baselines, and notes on missing data."""
    from pytest_dtfperf.baselines.audit import Sighting
    from pytest_dtfperf.records.session import drop_copies, session_folders

    found: list[Sighting] = []
    notes: list[str] = []
    folders = drop_copies(session_folders(results), notes.append)
    if not folders:
        notes.append(f"{results} has no sessions, so cases without a baseline and beaten baselines are not known (--results)")
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
                margin=record.comparison.margin if record.comparison else None,
            )
            for record in records
            if record.is_valid
            and not record.measurement.injected_slowdowns
            and not record.measurement.misplaced
            and any(check.kind == "baseline" for check in record.checks)
        ]
    return found, notes


def _collect_tests(paths: Sequence[str]) -> list[str]:
    """Return the node ids of all tests, independent of the cluster's size. Raises `UsageError`."""
    for path in paths:
        if not Path(path).exists():
            raise UsageError(f"there are no tests at {path}; name files or folders of perf tests")

    with sweep.make_temporary_folder() as folder:
        file = Path(folder) / "tests"
        file.touch()
        command = make_project_command(
            sys.executable, "pytest", "--collect-only", "-q", "-p", "pytest_dtfperf.cli.baselines", *paths
        )
        try:
            ended = subprocess.run(
                command,
                env={**os.environ, COLLECTED_FILE: str(file)},
                capture_output=True,
                text=True,
                timeout=COLLECTION_S,
                check=False,
            )
        except subprocess.TimeoutExpired as exc:
            raise UsageError(f"pytest has not collected {' '.join(paths)} in {COLLECTION_S:.0f} s") from exc
        if ended.returncode not in (COLLECTED, NOTHING_COLLECTED):
            last = (ended.stdout + ended.stderr).strip().splitlines()[-LAST_LINES:]
            raise UsageError(f"pytest cannot collect {' '.join(paths)} (exit code {ended.returncode}):{quote_lines(last)}")
        return file.read_text(encoding="utf-8").splitlines()


def _print_findings(found: Sequence["AuditFinding"]) -> None:
    """Print a table on a terminal, or a line for each finding in a log."""
    if not sys.stdout.isatty():
        for each in found:
            print(f"{each.kind}: {each.system}: {each.case}: {each.message}")
        return
    if not found:
        return
    headings = ("", "system", "case", "problem")
    print_table(headings, [(each.kind, each.system, each.case, each.message) for each in found])


PATTERNS = """\
Fields of the training select the measurements: all must match. Values may contain *, ? and [...], quoted for the shell.
model=* selects all.
"""

REMOVE = f"""\
Remove accepted measurements. The command shows them and asks for confirmation. Their tests then have no baseline
(NO_BASELINE).

    dtfperf baselines remove model=alexnet                              # of every system
    dtfperf baselines remove model=resnet50 'gpus=[48]' --system='8x-*'
    dtfperf baselines remove variable_update=horovod --yes              # without a confirmation

{PATTERNS}
Published results, thresholds and notes are never removed. A file without any of these is removed with its last
baseline. To replace a baseline, use pytest --update-baselines instead.
"""

UNCALIBRATE = f"""\
Remove the noise that `dtfperf baselines calibrate` stored with accepted measurements, after a change of the machine or a
disturbed calibration. The command shows the measurements and asks for confirmation. Verdicts then estimate the noise from the
runs. Rates stay.

    dtfperf baselines uncalibrate model=inception3 gpus=8
    dtfperf baselines uncalibrate 'model=*' --system=cpu-amd-epyc-9b45-2c --yes

{PATTERNS}"""
REMOVE_ENDS = {
    DONE: "done",
    FAILED: "there is none, or the answer was no",
    USAGE: "wrong arguments, a file that cannot be read, or no terminal for the question and no --yes",
}
BASELINE_SHAPE: Shape = {
    "system": "the hardware",
    "case": "the training",
    "images_per_sec": "the accepted rate",
    "runs": "number of its runs",
    "hosts": "number of the hosts of these runs",
    "accepted": "its time, UTC",
    "session": "the session that measured it",
    "calibrated": "the time of the calibration, UTC; null: not calibrated",
}
REMOVE_SHAPE: Shape = {
    "done": [BASELINE_SHAPE],
    "left": "number of baselines that were kept, because other sessions have changed them",
}

FoundEntries = list[tuple[str, "Entry"]]  # each with its system


def add_remove_parsers(commands: "Commands[argparse.ArgumentParser]") -> None:
    _add_remove_parser(commands, "remove", "remove accepted measurements", REMOVE, run_remove)
    _add_remove_parser(commands, "uncalibrate", "remove the calibrated noise, and keep the rates", UNCALIBRATE, run_uncalibrate)


def _add_remove_parser(
    commands: "Commands[argparse.ArgumentParser]", name: str, what: str, text: str, run: Callable[[argparse.Namespace], int]
) -> None:
    parser = add_command(commands, name, help=what, text=text, ends=REMOVE_ENDS)
    text = "fields of the training: model, gpus, num_ps, ..."
    set_completer(parser.add_argument("pattern", nargs="+", metavar="FIELD=VALUE", help=text), complete_patterns)
    parser.add_argument("--system", metavar="NAME", default="*", help="only of these systems: names of files without .json")
    add_baselines(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser, REMOVE_SHAPE)
    parser.set_defaults(run=run)


def run_remove(args: argparse.Namespace) -> int:
    store, found = _select_entries(args)
    return _forget(args, store.folder, found, "baseline", "removed", store.remove)


def run_uncalibrate(args: argparse.Namespace) -> int:
    store, found = _select_entries(args)
    calibrated = [(system, entry) for system, entry in found if entry.noise]
    return _forget(args, store.folder, calibrated, "calibrated baseline", "uncalibrated", store.uncalibrate)


def _select_entries(args: argparse.Namespace) -> tuple["BaselineStore", FoundEntries]:
    """Return the entries that match the pattern. Raises `UsageError`."""
    from fnmatch import fnmatchcase

    from pytest_dtfperf.baselines.store import BaselinePattern, BaselineStore

    pattern, folder = BaselinePattern.parse(args.pattern), find_baselines_folder(args)
    if not folder.is_dir():
        raise UsageError(f"there is no folder of baselines {folder}; name one with --baselines")
    store = BaselineStore(folder)
    store.check()
    systems = [system for system in store.systems() if fnmatchcase(system, args.system)]
    if not systems:
        raise UsageError(f"--system: {folder} has none like {args.system!r}. There are: {', '.join(store.systems()) or 'none'}")
    return store, [(system, entry) for system in systems for entry in store.entries(system) if pattern.matches(entry.key)]


def _forget(
    args: argparse.Namespace,
    folder: Path,
    found: FoundEntries,
    what: str,
    done: str,
    forget: Callable[[str, "Iterable[Entry]"], "list[Entry]"],
) -> int:
    if not found:
        if args.json:
            print_json({"done": [], "left": 0})
        print(f"dtfperf: no {what} in {folder} is like {' '.join(args.pattern)}; nothing was changed.")
        return FAILED
    for system, entry in found:
        print(_format_entry(system, entry))
    if not args.yes and not confirm(f"{format_count(len(found), what)} of {folder} will be {done}. Continue?"):
        if args.json:
            print_json({"done": [], "left": 0})
        print("dtfperf: nothing was changed.")
        return FAILED
    gone = [
        (system, entry)
        for system in dict.fromkeys(system for system, _ in found)
        for entry in forget(system, [entry for owner, entry in found if owner == system])
    ]
    left = len(found) - len(gone)
    if args.json:
        print_json({"done": [_make_entry_json(system, entry) for system, entry in gone], "left": left})
    changed = f" Kept, because another session has changed it: {format_count(left, what)}." if left else ""
    print(f"dtfperf: {format_count(len(gone), what)} {done}.{changed}")
    return FAILED if left else DONE


def _make_entry_json(system: str, entry: "Entry") -> dict[str, Any]:
    from pytest_dtfperf.baselines.audit import label_of

    return {
        "system": system,
        "case": label_of(entry.key),
        "images_per_sec": entry.images_per_sec,
        "runs": len(entry.samples),
        "hosts": entry.hosts,
        "accepted": entry.provenance.date,
        "session": entry.provenance.session,
        "calibrated": entry.noise.date if entry.noise else None,
    }


def _format_entry(system: str, entry: "Entry") -> str:
    from pytest_dtfperf.baselines.audit import label_of

    noise = f", calibrated on {entry.noise.date[:10]}" if entry.noise else ""
    where = f", {entry.hosts} hosts" if entry.hosts > 1 else ""
    accepted = f"accepted on {entry.provenance.date[:10]} of session {entry.provenance.session}"
    rate = f"{entry.images_per_sec:.6g} images/sec in {format_count(len(entry.samples), 'run')}"
    return f"{system}: {label_of(entry.key)}: {rate}{where}, {accepted}{noise}"


COLLECTED_FILE = "DTFPERF_COLLECTED"  # names the output file for the subprocess


def pytest_itemcollected(item: Any) -> None:
    with open(os.environ[COLLECTED_FILE], "a", encoding="utf-8") as file:
        file.write(f"{item.nodeid}\n")
