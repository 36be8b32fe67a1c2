"""`dtfperf baselines remove` and `uncalibrate`: forget accepted measurements, or only how much they scatter."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_dtfperf.cli.output import confirmed, print_json
from pytest_dtfperf.cli.terms import (
    DONE,
    FAILED,
    USAGE,
    Commands,
    Shape,
    add_baselines,
    add_command,
    add_json,
    baselines_folder,
    completed_by,
    patterns,
)
from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import counted

if TYPE_CHECKING:
    from pytest_dtfperf.baselines.entry import Entry
    from pytest_dtfperf.baselines.store import BaselineStore

PATTERNS = """\
Which ones is said by fields of their training, all of which must hold. Values may have *, ? and [...], quoted where the shell
would take them; fields that are not named may be anything. model=* is all of them.
"""

REMOVE = f"""\
Removes accepted measurements, after it has shown them and asked. Their tests have no baseline then (NO_BASELINE).

    dtfperf baselines remove model=alexnet                              # of every system
    dtfperf baselines remove model=resnet50 'gpus=[48]' --system='8x-*'
    dtfperf baselines remove variable_update=horovod --yes              # where nobody can be asked

{PATTERNS}
Published results, thresholds and notes are never removed: they are no measurements that somebody accepted. A file that holds
nothing else goes with its last baseline. To measure one anew it need not be removed: pytest --update-baselines.
"""

UNCALIBRATE = f"""\
Forgets the noise that `dtfperf baselines calibrate` has found of accepted measurements, after it has shown them and asked: for
a machine that has changed, or a calibration on a bad day. Verdicts estimate noise from the runs themselves then. Rates stay.

    dtfperf baselines uncalibrate model=inception3 gpus=8
    dtfperf baselines uncalibrate 'model=*' --system=cpu-amd-epyc-9b45-2c --yes

{PATTERNS}"""
ENDS = {
    DONE: "done",
    FAILED: "none is there, or the answer was no",
    USAGE: "wrong arguments, a file that cannot be read, or there is nobody to ask and no --yes",
}
BASELINE: Shape = {
    "system": "the hardware",
    "case": "the training",
    "images_per_sec": "that was accepted",
    "runs": "that it is of",
    "hosts": "that they were on",
    "accepted": "when, UTC",
    "session": "that measured it",
    "calibrated": "when, UTC; null: it was not",
}
SHAPE: Shape = {"done": [BASELINE], "left": "how many were left as they are, having changed meanwhile"}

Found = list[tuple[str, "Entry"]]  # each with its system


def add(commands: "Commands[argparse.ArgumentParser]") -> None:
    _add(commands, "remove", "remove accepted measurements", REMOVE, _remove)
    _add(commands, "uncalibrate", "forget how much rates scatter, and keep the rates", UNCALIBRATE, _uncalibrate)


def _add(
    commands: "Commands[argparse.ArgumentParser]", name: str, what: str, text: str, run: Callable[[argparse.Namespace], int]
) -> None:
    parser = add_command(commands, name, help=what, text=text, ends=ENDS)
    text = "of the training: model, gpus, num_ps, ..."
    completed_by(parser.add_argument("pattern", nargs="+", metavar="FIELD=VALUE", help=text), patterns)
    parser.add_argument("--system", metavar="NAME", default="*", help="of these systems alone: names of files without .json")
    add_baselines(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser, SHAPE)
    parser.set_defaults(run=run)


def _remove(args: argparse.Namespace) -> int:
    store, found = _selected(args)
    return _forget(args, store.folder, found, "baseline", "removed", store.remove)


def _uncalibrate(args: argparse.Namespace) -> int:
    store, found = _selected(args)
    calibrated = [(system, entry) for system, entry in found if entry.calibrated]
    return _forget(args, store.folder, calibrated, "calibrated baseline", "uncalibrated", store.uncalibrate)


def _selected(args: argparse.Namespace) -> tuple["BaselineStore", Found]:
    """Raises `UsageError`."""
    from fnmatch import fnmatchcase

    from pytest_dtfperf.baselines.store import BaselinePattern, BaselineStore

    pattern, folder = BaselinePattern.of(args.pattern), baselines_folder(args)
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
    found: Found,
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
        print(_line(system, entry))
    if not args.yes and not confirmed(f"{counted(len(found), what)} of {folder} will be {done}. Go on?"):
        if args.json:
            print_json({"done": [], "left": 0})
        print("dtfperf: nothing was changed.")
        return FAILED
    gone = [
        (system, entry)
        for system in dict.fromkeys(system for system, _ in found)
        for entry in forget(system, [entry for of, entry in found if of == system])
    ]
    left = len(found) - len(gone)
    if args.json:
        print_json({"done": [_to_json(system, entry) for system, entry in gone], "left": left})
    changed = f" Left as it is, having changed meanwhile: {counted(left, what)}." if left else ""
    print(f"dtfperf: {counted(len(gone), what)} {done}.{changed}")
    return FAILED if left else DONE


def _to_json(system: str, entry: "Entry") -> dict[str, Any]:
    from pytest_dtfperf.baselines.audit import label_of

    return {
        "system": system,
        "case": label_of(entry.key),
        "images_per_sec": entry.images_per_sec,
        "runs": len(entry.samples),
        "hosts": entry.hosts,
        "accepted": entry.provenance.date,
        "session": entry.provenance.session,
        "calibrated": entry.calibrated.date if entry.calibrated else None,
    }


def _line(system: str, entry: "Entry") -> str:
    from pytest_dtfperf.baselines.audit import label_of

    noise = f", calibrated on {entry.calibrated.date[:10]}" if entry.calibrated else ""
    where = f", {entry.hosts} hosts" if entry.hosts > 1 else ""
    accepted = f"accepted on {entry.provenance.date[:10]} of session {entry.provenance.session}"
    rate = f"{entry.images_per_sec:.6g} images/sec in {counted(len(entry.samples), 'run')}"
    return f"{system}: {label_of(entry.key)}: {rate}{where}, {accepted}{noise}"
