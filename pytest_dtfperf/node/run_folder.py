"""A folder for what a run keeps on a host while it lasts, sockets for one. It is this user's alone, and gone with the run.

Should its agent be killed, whoever sweeps this host finds the folder by its owner, who is no more.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress

from pytest_dtfperf.node.owner import Fate, Owner

_PREFIX = "dtfperf-run-"
_OWNER = "owner"  # in it: whose it is, as `Owner.text` writes it
_LONGEST = 32  # characters of the folder around it: a socket's path has 107 at most, and of Jupyter's kernels 50 within this


def make() -> str:
    """A new one of this process's. Raises `OSError`."""
    import tempfile

    path = tempfile.mkdtemp(prefix=_PREFIX, dir=around())
    try:
        with open(os.path.join(path, _OWNER), "w") as file:
            file.write(Owner.me().text)
    except OSError:
        remove(path)
        raise
    return path


def remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)


def remove_abandoned() -> None:
    """All of this user's whose owner is surely gone."""
    with suppress(OSError), os.scandir(around()) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and _is_abandoned(entry):
                remove(entry.path)


def _is_abandoned(entry: os.DirEntry[str]) -> bool:
    try:
        if not entry.is_dir(follow_symlinks=False) or entry.stat(follow_symlinks=False).st_uid != os.getuid():
            return False
        with open(os.path.join(entry.path, _OWNER)) as file:
            owner = Owner.read(file.read())
    except (OSError, ValueError):  # it goes this very moment, or has just been made
        return False
    return owner is not None and owner.fate is Fate.GONE


def around() -> str:
    """The folder that they are in."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    return folder if len(folder) <= _LONGEST and os.path.isdir(folder) else "/tmp"
