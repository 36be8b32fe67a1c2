"""Check before a session starts that its folders are writable and have room, and that its programs exist."""

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.locks import find_lock_folder
from pytest_dtfperf.clusters.named import BACKENDS, ClusterConfig
from pytest_dtfperf.errors import AllocationError, UsageError, find_nearest, show_value
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import names_in

MIB = 2**20


@dataclass(frozen=True)
class Need:
    """A folder that the session writes to."""

    folder: Path
    subject: str  # as the beginning of a message
    instead: str  # option that selects another folder
    bytes: int
    files: int


def results(folder: Path) -> Need:
    """Return the requirements of a session folder: some megabytes for a long session, in three files for each run."""
    return Need(folder, "results", "choose another folder with --perf-results (pytest) or --results (dtfperf)", 16 * MIB, 1000)


def logs(folder: Path) -> Need:
    """Return the requirements of the logs of a launch or a notebook: at most 256 KiB for each task, usually much less."""
    return Need(folder, "logs", "--logs names another folder", MIB, 16)


def baselines(folder: Path) -> Need:
    return Need(folder, "baselines", "--baselines names another folder", MIB, 4)


def runtime() -> Need:
    """Return the requirements of the folder where sessions of one user find each other."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return Need(Path(folder or _temporary()), "runtime files", "set XDG_RUNTIME_DIR to another folder", MIB // 16, 8)


def temporary() -> Need:
    return Need(Path(_temporary()), "temporary files", "set TMPDIR to another folder", MIB, 20)


def check_folders(needs: Iterable[Need]) -> None:
    """Raise `UsageError` with the first requirement that is not met, or with an error of the folder of locks."""
    for need in needs:
        if why := _find_obstacle(need):
            raise UsageError(f"{need.subject} cannot be written to {need.folder}: {why}; {need.instead}")
    try:
        find_lock_folder()
    except AllocationError as exc:
        raise UsageError(str(exc)) from exc


def _temporary() -> str:
    """Return the temporary folder as it is set, even if it is not writable."""
    try:
        return os.environ.get("TMPDIR") or tempfile.gettempdir()
    except FileNotFoundError as exc:
        raise UsageError(f"there is no temporary folder that can be written to: set TMPDIR to one ({exc})") from exc


def _find_obstacle(need: Need) -> str | None:
    try:
        there = next(folder for folder in (need.folder, *need.folder.absolute().parents) if os.path.lexists(folder))
        if not there.is_dir():
            return f"{there} is no folder"
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\n" * 4096)
            file.flush()
        free = os.statvfs(there)
    except OSError as exc:
        return exc.strerror or str(exc)
    left = free.f_bavail * free.f_frsize
    if left < need.bytes:
        return f"{left // 1024:,} KiB are free there, and {need.bytes // 1024:,} KiB are needed"
    if free.f_files and free.f_favail < need.files:  # some file systems count no files
        return f"the file system has room for {free.f_favail:,} more files, and {need.files:,} are needed"
    return None


_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z|k)?sh")
_WITH_VALUE = ("-W", "-X", "-O", "-o")  # options of interpreters that take the next argument as their value


def check_program(spec: Spec, config: ClusterConfig) -> None:
    """Raise `UsageError` if a program or its script does not exist; only this machine can be checked."""
    if not spec.command or not BACKENDS[config.backend].is_local:
        return
    folder = spec.command_dir or os.getcwd()
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder} for the command to run in: command_dir")
    program, script = spec.command[0], _script(spec.command)
    if os.sep in program:
        _check_file(program, folder)
    elif not names_in([program]):
        own = os.path.dirname(sys.executable)
        if not shutil.which(program, path=os.pathsep.join([own, os.environ.get("PATH", os.defpath)])):
            raise UsageError(f"cannot start {program}: there is no such program on this machine's PATH. {_HOW}")
    if script is not None:
        _check_file(script, folder)


_HOW = "A program in the folder itself is ./NAME; one that ends in .py is run by Python"


def _script(command: Sequence[str]) -> str | None:
    """Return the script of an interpreter; None if there is none, or the interpreter is unknown."""
    if not _INTERPRETER.fullmatch(os.path.basename(command[0])):
        return None
    arguments = iter(command[1:])
    for word in arguments:
        if word in _WITH_VALUE:
            next(arguments, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or "c" in word[1:2] or "m" in word[1:2] or word == "-s":
            return None
    return None


def _check_file(name: str, folder: str) -> None:
    if names_in([name]) or os.path.exists(os.path.join(folder, name)):
        return
    where = os.path.dirname(os.path.join(folder, name))
    there = sorted(os.listdir(where)) if os.path.isdir(where) else []
    found = find_nearest(os.path.basename(name), there)
    hint = f" Did you mean {show_value(os.path.join(os.path.dirname(name), found))}?" if found else ""
    raise UsageError(f"there is no file {name} in {folder}.{hint}")
