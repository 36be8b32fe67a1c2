"""Private folders for files that a process needs while it runs: sockets, a profile, a page for a browser.

A folder is removed by its owner. If the owner is killed, a later sweep of this host, such as that of an agent at its end, finds
the folder by its prefix, and in it the name of its owner, which has ended.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pytest_dtfperf.node.files import read_file
from pytest_dtfperf.node.owner import Fate, Owner

PREFIX = "dtfperf-run-"
_UNSIGNED_S = 3600.0  # after this time, the owner of a folder without an owner's name was killed before it wrote that
_OWNER = "owner"  # a file in it with its owner, as `Owner.text` writes it
_MOST_BYTES = 4096  # of an owner's name
_LONGEST = 32  # characters of the parent: a socket's path has at most 107, and those of Jupyter's kernels need 50 below it


def make(parent: str | None = None) -> str:
    """Create a folder that this process owns, by default where the paths of sockets are short enough. Raises `OSError`."""
    import tempfile

    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent or get_socket_parent())
    try:
        set_owner(path)
    except OSError:
        remove(path)
        raise
    return path


def set_owner(path: str) -> None:
    """Make this process the owner of the folder, which is removed after it has ended. Raises `OSError`."""
    with open(os.path.join(path, _OWNER), "w") as file:
        file.write(Owner.me().text)


@contextmanager
def temporary() -> Iterator[str]:
    """Yield a folder in this user's temporary folder, and remove it afterwards. Raises `OSError`."""
    import tempfile

    remove_abandoned()
    path = make(tempfile.gettempdir())
    try:
        yield path
    finally:
        remove(path)


def remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """Remove all of this user's folders with an owner that has certainly ended."""
    for folder in {get_socket_parent(), os.environ.get("TMPDIR") or "/tmp"}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and _is_abandoned(entry):
                    remove(entry.path)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        owner = Owner.parse(read_file(os.path.join(entry.path, _OWNER), _MOST_BYTES).decode())
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
    return folder if len(folder) <= _LONGEST and os.path.isdir(folder) else "/tmp"
