"""Whether what a session writes can be written, asked before anything starts: what cannot be kept is not worth measuring."""

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.clusters.host_lock import lock_folder
from pytest_dtfperf.errors import AllocationError, UsageError

MIB = 2**20


@dataclass(frozen=True)
class Need:
    """A folder that will be written to."""

    folder: Path
    what: str  # as a message begins
    instead: str  # how to name another folder
    bytes: int
    files: int


def results(folder: Path) -> Need:
    """Measurements, figures, and logs: of a long session some megabytes, in three files for each run."""
    return Need(folder, "results", "--perf-results names another folder", 16 * MIB, 1000)


def logs(folder: Path) -> Need:
    """Of a launch or a notebook: at most 256 KiB for each task, and nobody knows yet how many print so much."""
    return Need(folder, "logs", "--logs names another folder", MIB, 16)


def baselines(folder: Path) -> Need:
    return Need(folder, "baselines", "--baselines names another folder", MIB, 4)


def runtime() -> Need:
    """Where sessions of one user find each other."""
    folder = os.environ.get("XDG_RUNTIME_DIR")
    return Need(Path(folder or _temporary()), "runtime files", "set XDG_RUNTIME_DIR to another folder", MIB // 16, 8)


def temporary() -> Need:
    return Need(Path(_temporary()), "temporary files", "set TMPDIR to another folder", MIB, 20)


def check(needs: Iterable[Need]) -> None:
    """Raise `UsageError` with the first need that cannot be met, or what is wrong with the folder of locks."""
    for need in needs:
        if why := _why_not(need):
            raise UsageError(f"{need.what} cannot be written to {need.folder}: {why}; {need.instead}")
    try:
        lock_folder()
    except AllocationError as exc:
        raise UsageError(str(exc)) from exc


def _temporary() -> str:
    """As processes find it that are told where: not elsewhere, because it cannot be written to."""
    try:
        return os.environ.get("TMPDIR") or tempfile.gettempdir()
    except FileNotFoundError as exc:
        raise UsageError(f"there is no temporary folder that can be written to: set TMPDIR to one ({exc})") from exc


def _why_not(need: Need) -> str | None:
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
        return f"{left // 1024:,} KiB are left there, and {need.bytes // 1024:,} KiB should be"
    if free.f_files and free.f_favail < need.files:  # some file systems count no files
        return f"{free.f_favail:,} more files may be made there, and {need.files:,} should be"
    return None
