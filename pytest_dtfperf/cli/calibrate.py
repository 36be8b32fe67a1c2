"""`dtfperf baselines calibrate`: measure the noise of rates, and store it with the baselines."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from pytest_dtfperf.cli.options import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_baselines,
    add_command,
    add_json,
    add_results,
    complete_session_folders,
    find_baselines_folder,
    find_clusters_file,
    find_results_folder,
    print_table,
    set_completer,
)
from pytest_dtfperf.cli.output import print_json, print_remark
from pytest_dtfperf.clusters.file import PERF_TESTS
from pytest_dtfperf.errors import DtfPerfError, InvalidMeasurement, UsageError
from pytest_dtfperf.formats import format_count, percent
from pytest_dtfperf.node.module_command import make_project_command

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.calibrate import CalibrationResult, SessionMeasurement
    from pytest_dtfperf.records.session import SessionFolder
    from pytest_dtfperf.session.session import Session
    from pytest_dtfperf.spec import Spec

SESSIONS, REPEATS = 5, 4
LEAST_REPEATS = 2  # a single run of a session does not show how much its runs vary
COULD_MEASURE = (0, 1)  # pytest's exit codes: success; a test has failed, most likely by its verdict
WRONG_ARGUMENTS = (4, 5)  # invalid arguments; no test selected
OWN = ("--sessions", "--repeats", "--allow-noisy", "--from", "--like", "--baselines", "--results")
NOT_NOW = {
    "--update-baselines": "calibrating accepts no rates",
    "--dry-run": "only real runs show the noise",
}

CALIBRATE = """\
Measure the noise of rates: run the same perf tests in several sessions, one after the other, without any change between them.
The noise from run to run and from session to session is stored in the baselines, which must exist (pytest
--update-baselines). No verdict then assumes less noise.

    dtfperf baselines calibrate                                  # 5 sessions of 4 runs of everything in perf_tests/
    dtfperf baselines calibrate --sessions=10 perf_tests --cluster=daint --gpus=8 -k inception3
    dtfperf baselines calibrate --like perf_results/20260131T021503Z-9f3c1a  # the trainings of a session, without tests
    dtfperf baselines calibrate --from perf_results/20260131T0*  # from existing sessions

pytest runs the tests again in each session, and arguments after the tests go to pytest. With --like, the trainings of a
session are measured on the same cluster without any test. Each session allocates its hosts again. Disturbed runs do not
count.

A margin is detectable if ten runs are enough to find a loss of twice the margin. If not even a margin of 30 % is detectable,
the noise is only stored with --allow-noisy, because all verdicts would be INCONCLUSIVE.
"""
ENDS = {
    DONE: "noise was stored",
    FAILED: "no noise was stored, or some was too large",
    USAGE: "wrong arguments, too few sessions, a file that cannot be read",
}
SHAPE: Shape = {
    "sessions": "a list of the sessions",
    "copies": "number of copied folders, which were left out",
    "written": "number of baselines with stored noise",
    "folder": "of the baselines",
    "cases": [
        {
            "what": "calibrated, not written or too noisy",
            "system": "the hardware",
            "case": "the training",
            "runs": "runs that count",
            "sessions": "sessions of these runs",
            "left_out": "runs that were disturbed or invalid",
            "rare": "clearly slower runs, which were left out of the noise",
            "noise_run": "spread of runs, as a fraction; null, as the next fields: unknown",
            "noise_session": "spread of sessions, as a fraction",
            "margin": "the smallest margin that ten runs can detect, as a fraction",
            "wanted_margin": "margin of its verdicts",
            "message": "why no noise is stored, or empty",
            "conditions": "a list of conditions of the stated error rates that the sessions do not meet",
            "changes": "a list of differences between the sessions, which count as noise",
        }
    ],
}


def add_calibrate_parser(commands: "Commands[argparse.ArgumentParser]") -> None:
    text = "measure the noise of rates, and store it in the baselines"
    parser = add_command(commands, "calibrate", help=text, text=CALIBRATE, ends=ENDS)
    parser.add_argument("--sessions", metavar="N", type=int, help=f"how many to run; {SESSIONS} by default")
    parser.add_argument("--repeats", metavar="R", type=int, help=f"runs of each spec in each of them; {REPEATS} by default")
    parser.add_argument("--allow-noisy", action="store_true", help="also store noise that is too large for any margin")
    text = "use these sessions instead of new ones"
    set_completer(
        parser.add_argument("--from", metavar="SESSION_DIR", dest="stored", nargs="+", help=text), complete_session_folders
    )
    text = "measure what this session measured, instead of running tests"
    set_completer(parser.add_argument("--like", metavar="SESSION_DIR", help=text), complete_session_folders)
    parser.add_argument("--clusters-file", metavar="FILE", help="the cluster file for --like; by default as for pytest")
    add_baselines(parser)
    add_results(parser)
    add_json(parser, SHAPE)
    parser.add_argument(
        "pytest", nargs=argparse.REMAINDER, metavar="TESTS ...", help=f"tests, then options of pytest; {PERF_TESTS} by default"
    )
    parser.set_defaults(run=run_calibrate)


def run_calibrate(args: argparse.Namespace) -> int:
    _check_arguments(args)
    folder = find_baselines_folder(args)
    if not folder.is_dir():
        raise UsageError(
            f"there is no folder of baselines {folder} to store noise in: accept baselines first "
            "(pytest --update-baselines), or name another folder with --baselines"
        )
    from pytest_dtfperf.baselines.calibrate import calibrate, group_cases
    from pytest_dtfperf.baselines.store import BaselineStore
    from pytest_dtfperf.records.session import SessionFolder, drop_copies

    store = BaselineStore(folder)
    store.check()
    sessions = [SessionFolder.open(Path(path)) for path in args.stored] if args.stored else _find_new_sessions(args, folder)
    named = list({session.path.resolve(): session for session in sessions}.values())  # a shell's patterns may match one twice
    sessions = drop_copies(named, print_remark)
    copies = len(named) - len(sessions)
    cases = group_cases([seen for session in sessions for seen in _load_measured(session)])
    found = calibrate(cases, store.entries, store.margin)
    written = 0
    for system in dict.fromkeys(each.case.system for each in found):
        of_system = [each for each in found if each.case.system == system and not _is_refused(each, args)]
        noises = [(each.entry, each.calibrated) for each in of_system if each.entry and each.calibrated]
        if noises:
            written += len(store.calibrate(system, noises))
    if args.json:
        shown = [_make_json(each, args) for each in found]
        names = [each.id for each in sessions]
        print_json({"sessions": names, "copies": copies, "written": written, "folder": str(folder), "cases": shown})
    else:
        _print_noise(found, args)
        for each in found:
            if each.case.changes:
                changes = ", ".join(each.case.changes)
                print(f"note: {each.case.spec.label}: between these sessions: {changes}; it counts as noise")
            for condition in each.case.broken_conditions:
                print(f"note: {each.case.spec.label}: {condition}")
        of = format_count(len(sessions), "session")
        of += f" ({format_count(copies, 'copied folder')} left out)" if copies else ""
        print(f"dtfperf: {of}: noise of {format_count(written, 'baseline')} written to {folder}.")
    return DONE if written and not any(_is_refused(each, args) for each in found) else FAILED


def _is_refused(found: "CalibrationResult", args: argparse.Namespace) -> bool:
    return found.is_too_noisy and found.entry is not None and not args.allow_noisy


def _check_arguments(args: argparse.Namespace) -> None:
    """Check the arguments before anything is measured."""
    from pytest_dtfperf.baselines.calibrate import LEAST_SESSIONS
    from pytest_dtfperf.session import resolve

    args.pytest = args.pytest[1:] if args.pytest[:1] == ["--"] else args.pytest
    if args.stored and (args.sessions is not None or args.repeats is not None):
        raise UsageError("--from takes sessions as they are: --sessions and --repeats are for new ones")
    if args.like and (args.stored or args.pytest):
        raise UsageError("--like defines what is measured: leave out --from, tests and options of pytest")
    if args.clusters_file and not args.like:
        raise UsageError("--clusters-file is for --like; for tests, put it after them")
    args.sessions = SESSIONS if args.sessions is None else args.sessions
    args.repeats = REPEATS if args.repeats is None else args.repeats
    for name, least in (("sessions", LEAST_SESSIONS), ("repeats", LEAST_REPEATS)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name} must be {least} or more, not {getattr(args, name)}: fewer do not show the noise")
    for word in args.pytest:
        name = word.partition("=")[0].replace("--dtfperf-", "--")
        if name in OWN:
            raise UsageError(f"{word} is after the tests, where arguments are for pytest; put it before them")
        if name in NOT_NOW:
            raise UsageError(f"{word}: {NOT_NOW[name]}; leave it out")
    if os.environ.get(resolve.SLOWDOWN_VARIABLE):
        raise UsageError(f"{resolve.SLOWDOWN_VARIABLE} is set, so that training is slowed down on purpose; unset it")


def _find_new_sessions(args: argparse.Namespace, baselines: Path) -> list["SessionFolder"]:
    if not args.like:
        return _run_sessions(args, baselines)
    from pytest_dtfperf.records.session import SessionFolder

    return measure_again(
        SessionFolder.open(Path(args.like)),
        sessions=args.sessions,
        repeats=args.repeats,
        clusters_file=find_clusters_file(args),
        baselines=baselines,
        results=find_results_folder(args),
    )


def _run_sessions(args: argparse.Namespace, baselines: Path) -> list["SessionFolder"]:
    tests = args.pytest if args.pytest and not args.pytest[0].startswith("-") else [PERF_TESTS, *args.pytest]
    results = find_results_folder(args).absolute()
    options = [
        f"--dtfperf-repeats={args.repeats}",
        "--dtfperf-all-repeats",
        f"--dtfperf-baselines={baselines.absolute()}",
        f"--dtfperf-perf-results={results}",
    ]
    found = []
    for number in range(1, args.sessions + 1):
        print(f"dtfperf: session {number} of {args.sessions}: pytest {shlex.join(tests)}", flush=True)
        found.append(_run_session([*tests, *options], results, number, sys.stderr if args.json else None))
    return found


def _run_session(arguments: Sequence[str], results: Path, number: int, output: TextIO | None) -> "SessionFolder":
    from pytest_dtfperf.records.session import ID_VARIABLE, find_session, new_session_id

    session_id = new_session_id()
    code = _run_pytest(arguments, output, {ID_VARIABLE: session_id})
    if code in WRONG_ARGUMENTS:
        raise UsageError(f"pytest found no test that could be run, or a wrong option (its exit code is {code}; see above)")
    if code not in COULD_MEASURE:
        raise DtfPerfError(
            f"session {number} ended early (pytest's exit code is {code}; see above). The measurements of earlier sessions are "
            f"in {results}: use them with --from"
        )
    if (found := find_session(results, session_id)) is None:
        raise DtfPerfError(f"session {number} has measured nothing (pytest's exit code is {code}; see above)")
    return found


def _run_pytest(arguments: Sequence[str], output: TextIO | None, variables: Mapping[str, str]) -> int:
    """Run pytest, and return its exit code. After Ctrl-C, which it also receives, wait: it releases its hosts first.

    `output`: where it prints; by default stdout. `variables`: added to its environment.
    """
    command, env = make_project_command(sys.executable, "pytest", *arguments), {**os.environ, **variables}
    with subprocess.Popen(command, stdout=output, env=env) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.wait()
            raise


def _load_measured(session: "SessionFolder") -> list["SessionMeasurement"]:
    from pytest_dtfperf.baselines.calibrate import SessionMeasurement

    started = session.session.started
    return [
        SessionMeasurement(
            session=session.id,
            started=started,
            measurement=record.measurement,
            margin=record.comparison.margin if record.comparison else None,
            is_valid=record.verdict is None or record.verdict.row.numbers != "void",
        )
        for record in session.measurements()
    ]


def _print_noise(found: Sequence["CalibrationResult"], args: argparse.Namespace) -> None:
    """Print a table on a terminal, or a line for each case in a log."""
    headings = ("", "system", "case", "runs", "noise of runs", "of sessions", "detectable margin", "")
    rows = [_make_row(each, args) for each in found]
    if not sys.stdout.isatty():
        for what, system, case, runs, of_runs, of_sessions, margin, message in rows:
            numbers = f"{runs}; noise of runs {of_runs}, of sessions {of_sessions}; detectable margin: {margin}"
            print(f"{what}: {system}: {case}: {numbers}{f'; {message}' if message else ''}")
        return
    print_table(headings, rows)


def _make_row(found: "CalibrationResult", args: argparse.Namespace) -> tuple[str, ...]:
    """Return `calibrated`, system, case, `20 in 5 sessions (2 left out)`, `1.2%`, `0.4%`, `3.1%`, and what prevents it."""
    case = found.case
    runs = f"{format_count(case.runs, 'run')} in {format_count(len(case.rates), 'session')}"
    if case.left_out:
        runs += f" ({case.left_out} left out as disturbed or invalid)"
    if case.rare:
        runs += f" ({case.rare} slower than the others and left out as rare)"
    of_runs, of_sessions, margin = "unknown", "unknown", "unknown"
    if found.calibrated:
        noise = found.calibrated
        of_runs, of_sessions = f"{100 * noise.run:.2f} %", f"{100 * noise.session:.2f} %"
        margin = percent(found.margin) if found.margin else "none"
    refused = _is_refused(found, args)
    what = "too noisy" if refused else "calibrated" if found.entry else "not written"
    return (
        what,
        case.system,
        case.spec.label,
        runs,
        of_runs,
        of_sessions,
        margin,
        found.message or _describe_margin(found, refused),
    )


def _make_json(found: "CalibrationResult", args: argparse.Namespace) -> dict[str, Any]:
    case, noise = found.case, found.calibrated
    what, *_, message = _make_row(found, args)
    return {
        "what": what,
        "system": case.system,
        "case": case.spec.label,
        "runs": case.runs,
        "sessions": len(case.rates),
        "left_out": case.left_out,
        "rare": case.rare,
        "noise_run": noise.run if noise else None,
        "noise_session": noise.session if noise else None,
        "margin": found.margin,
        "wanted_margin": found.required,
        "message": message,
        "conditions": case.broken_conditions,
        "changes": list(case.changes),
    }


def _describe_margin(found: "CalibrationResult", refused: bool) -> str:
    """Return a remark on a case with too much noise for its margin."""
    from pytest_dtfperf.baselines.calibrate import MARGINS, MOST_RUNS

    if refused:
        return (
            f"{MOST_RUNS} runs could not even detect a loss of {200 * MARGINS[-1]:g} %: with that noise all verdicts would be "
            "INCONCLUSIVE, so it was not written. Measure longer (--steps), on a quiet machine, in more sessions; or write "
            "it with --allow-noisy"
        )
    if found.margin is None or found.margin <= found.required:
        return ""
    return (
        f"its margin is {percent(found.required)}, so that many verdicts will be INCONCLUSIVE: allow {percent(found.margin)}, "
        "measure longer (--steps), or accept a baseline of more runs"
    )


def measure_again(
    original: "SessionFolder", *, sessions: int, repeats: int, clusters_file: str | Path | None, baselines: Path, results: Path
) -> list["SessionFolder"]:
    """Repeat the measurements of a session in new sessions, each with its own hosts. Raises `DtfPerfError`."""
    from pytest_dtfperf.session.session import Session
    from pytest_dtfperf.session.settings import Settings

    specs = list(dict.fromkeys(record.spec for record in original.measurements()))
    if not specs:
        raise UsageError(f"{original.path} has no measurements to repeat")
    found = []
    for number in range(1, sessions + 1):
        print(f"dtfperf: session {number} of {sessions}: as {original.id}", flush=True)
        with Session.open(
            original.session.cluster,
            clusters_file=clusters_file,
            baselines=baselines,
            results=results,
            settings=Settings(repeats=repeats, all_repeats=True),
            specs=specs,
            tests=len(specs),
        ) as session:
            try:
                for spec in specs:
                    _measure_spec(session, spec)
            except DtfPerfError as error:
                raise DtfPerfError(
                    f"session {number} ended early. The measurements of earlier sessions are in {results}: use them with "
                    f"--from. {error}"
                ) from error
        found.append(session.folder)
    return found


def _measure_spec(session: "Session", spec: "Spec") -> None:
    """Measure a spec and judge it, so that its margin is known. An INVALID measurement is recorded and skipped."""
    try:
        session.check(session.measure(spec))
    except InvalidMeasurement as error:
        print(f"dtfperf: {spec.label}: {error}", flush=True)
