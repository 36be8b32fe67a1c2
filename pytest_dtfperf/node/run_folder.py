"""Folders for what a process of this package keeps while it lasts: sockets, a profile, a page for a browser.

Each is this user's alone, and gone with its owner. If the owner is killed, the next sweep of this host, the agent's at its end
for one, finds the folder by its prefix and by the name of its owner in it, which is no more.
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
_UNSIGNED_S = 3600.0  # a folder without an owner's name after so long: its owner was killed before it had written that
_OWNER = "owner"  # in it: its owner, as `Owner.text` writes it
_MOST_BYTES = 4096  # of an owner's name
_LONGEST = 32  # characters of the folder around it: a socket's path has 107 at most, and of Jupyter's kernels 50 within this


def make(parent: str | None = None) -> str:
    """Make a new one of this process's; without `parent` where a socket's path is short enough. Raises `OSError`."""
    import tempfile

    path = tempfile.mkdtemp(prefix=PREFIX, dir=parent or around())
    try:
        sign(path)
    except OSError:
        remove(path)
        raise
    return path


def sign(path: str) -> None:
    """Let the folder be this process's, and go with it. Raises `OSError`."""
    with open(os.path.join(path, _OWNER), "w") as file:
        file.write(Owner.me().text)


@contextmanager
def temporary() -> Iterator[str]:
    """Have a folder among this user's temporary files for the length of the block. Raises `OSError`."""
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
    """Remove all of this user's folders with an owner that is surely gone."""
    for folder in {around(), os.environ.get("TMPDIR") or "/tmp"}:
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(PREFIX) and _is_abandoned(entry):
                    remove(entry.path)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        owner = Owner.parse(read_file(os.path.join(entry.path, _OWNER), _MOST_BYTES).decode())
    except FileNotFoundError:  # it goes this very moment, has just been made, or never got further
        with suppress(OSError):
            return time.time() - entry.stat(follow_symlinks=False).st_mtime > _UNSIGNED_S
        return False
    except (OSError, ValueError):
        return False
    return owner is not None and owner.fate is Fate.GONE


def around() -> str:
    """Return the folder that those with sockets are in."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    return folder if len(folder) <= _LONGEST and os.path.isdir(folder) else "/tmp"
