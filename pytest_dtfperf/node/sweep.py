"""End the processes that a session left on this host, and remove its folders.

    python -m pytest_dtfperf.node.sweep [--abandoned] [--grace S] [SESSION ...]

An agent that ends by itself leaves nothing behind. If it is killed, daemons of its tasks remain. They are found by the id of
their session, which is in the environment of every descendant of an agent. `--abandoned` searches for processes with an owner
that can be seen from here and has ended: the owner of an agent, or of a batch system's client that connects to hosts. A session
that may be alive is never touched.

Private folders are for files that a process needs while it runs: sockets, a profile, a page for a browser. A folder is removed
by its owner. If the owner is killed, a later sweep of this host, such as that of an agent at its end, finds the folder by its
prefix, and in it the name of its owner, which has ended.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress

from pytest_dtfperf.node import processes
from pytest_dtfperf.node.files import read_file
from pytest_dtfperf.node.owner import Fate, Owner

FOLDER_PREFIX = "dtfperf-run-"
_UNSIGNED_S = 3600.0  # after this time, the owner of a folder without an owner's name was killed before it wrote that
_OWNER_FILE = "owner"  # a file in it with its owner, as `Owner.text` writes it
_MOST_BYTES = 4096  # of an owner's name
_LONGEST_PARENT = 32  # characters: a socket's path has at most 107, and those of Jupyter's kernels need 50 below the parent


def make_run_folder(parent: str | None = None) -> str:
    """Create a folder that this process owns, by default where the paths of sockets are short enough. Raises `OSError`."""
    import tempfile

    path = tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent or get_socket_parent())
    try:
        set_folder_owner(path)
    except OSError:
        remove_folder(path)
        raise
    return path


def set_folder_owner(path: str) -> None:
    """Make this process the owner of the folder, which is removed after it has ended. Raises `OSError`."""
    with open(os.path.join(path, _OWNER_FILE), "w") as file:
        file.write(Owner.read_own().text)


@contextmanager
def make_temporary_folder() -> Iterator[str]:
    """Yield a folder in this user's temporary folder, and remove it afterwards. Raises `OSError`."""
    import tempfile

    remove_abandoned_folders()
    path = make_run_folder(tempfile.gettempdir())
    try:
        yield path
    finally:
        remove_folder(path)


def remove_folder(path: str) -> None:
    import shutil

    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned_folders() -> None:
    """Remove all of this user's folders with an owner that has certainly ended."""
    for folder in {get_socket_parent(), os.environ.get("TMPDIR") or "/tmp"}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(FOLDER_PREFIX) and _is_abandoned_folder(entry):
                    remove_folder(entry.path)


def _is_abandoned_folder(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        owner = Owner.parse(read_file(os.path.join(entry.path, _OWNER_FILE), _MOST_BYTES).decode())
    except FileNotFoundError:  # it is being removed, or its owner has not written its name
        with suppress(OSError):
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNSIGNED_S
        return False
    except (OSError, ValueError):
        return False
    return owner is not None and owner.fate is Fate.GONE


def get_socket_parent() -> str:
    """Return the parent of folders with sockets."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    return folder if len(folder) <= _LONGEST_PARENT and os.path.isdir(folder) else "/tmp"


SESSION = "DTFPERF_SESSION"
OWNER = "DTFPERF_OWNER"  # as `Owner.text` writes it


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sessions", nargs="*", metavar="SESSION")
    parser.add_argument("--abandoned", action="store_true", help="also end this user's processes with an owner that has ended")
    parser.add_argument("--grace", type=float, default=0.0, metavar="S", help="seconds between SIGTERM and SIGKILL")
    options = parser.parse_args()
    if survivors := sweep(options.sessions, abandoned=options.abandoned, grace_s=options.grace):
        raise SystemExit(f"processes survived SIGKILL: {survivors}")


def sweep(sessions: Collection[str] = (), *, abandoned: bool = False, grace_s: float = 0.0) -> list[int]:
    """End the processes and remove the folders of these sessions. Returns the ids of processes that survived SIGKILL."""
    survivors = processes.end_processes(lambda: find_left_processes(sessions, abandoned=abandoned), grace_s=grace_s)
    remove_abandoned_folders()
    return survivors


def find_left_processes(sessions: Collection[str], *, abandoned: bool = False) -> list[int]:
    """Return this user's processes that belong to one of these sessions, or to an owner that has ended."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        seen = {} if pid == os.getpid() else read_environment(pid)  # that of the dead is empty
        if seen.get(SESSION) in sessions or (abandoned and is_abandoned(seen)):
            found.append(pid)
    return found


def is_abandoned(environment: Mapping[str, str]) -> bool:
    """Return whether the owner in this environment has certainly ended."""
    owner = Owner.parse(environment.get(OWNER, ""))
    return owner is not None and owner.fate is Fate.GONE


def read_environment(pid: int) -> dict[str, str]:
    """Return the environment that a process of this user was started with; empty if it is another user's, or has ended."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            return {}
        with open(f"/proc/{pid}/environ", "rb") as file:
            entries = file.read().decode(errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


if __name__ == "__main__":
    main()
