"""Who may use a place now: a lock per slot, held by one process at a time across pytest-xdist workers and whole sessions.

The lock is the kernel's (flock): it falls when its holder ends, however it ends. Beside it lies a note that says who holds it.
"""

import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from filelock import FileLock, Timeout

from pytest_dtfperf.errors import AllocationError

_POLL_S = 0.1
NOTICE_S = 5.0  # how often whoever waits is told so


@dataclass(frozen=True)
class Owner:
    """Who holds a slot, and what for."""

    pid: int
    session: str
    what: str
    since: float  # seconds since 1970

    @classmethod
    def me(cls, session: str, what: str) -> Self:
        """This process, from now on."""
        return cls(pid=os.getpid(), session=session, what=what, since=time.time())

    def __str__(self) -> str:
        return f"process {self.pid} ({self.what}, since {time.strftime('%H:%M:%S', time.localtime(self.since))})"


OnWait = Callable[[Owner, float], object]  # who holds a slot, and for how many seconds we have waited


@contextmanager
def lease(name: str, slots: int, owner: Owner, on_wait: OnWait, *, folder: Path | None = None) -> Iterator[int]:
    """Hold one of a place's `slots` for the length of a `with` block, whose number it gives; wait until one is free.

    `on_wait` is called at once when there is none, and every few seconds while that lasts.
    """
    folder = folder or runtime_folder()
    slot, lock = _wait_for_one(folder / _file_name(name), slots, on_wait)
    note = _note(folder / _file_name(name), slot)
    try:
        _write(note, replace(owner, since=time.time()))  # not since it began to wait
        yield slot
    finally:
        note.unlink(missing_ok=True)
        lock.release()


def runtime_folder() -> Path:
    """This user's own folder, gone after a restart of the machine."""
    parent = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(parent, "dtfperf") if parent else Path(tempfile.gettempdir(), f"dtfperf-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():  # /tmp is open to everybody
        raise AllocationError(f"{folder} is not a folder of this user: set XDG_RUNTIME_DIR to one that is")
    return folder


def _wait_for_one(place: Path, slots: int, on_wait: OnWait) -> tuple[int, FileLock]:
    began = time.monotonic()
    told = -NOTICE_S
    while True:
        for slot in range(slots):
            lock = FileLock(f"{place}.{slot}.lock")
            try:
                lock.acquire(blocking=False)
            except Timeout:
                continue
            return slot, lock
        waited_s = time.monotonic() - began
        if waited_s - told >= NOTICE_S and (holder := _read(_note(place, 0))):
            on_wait(holder, waited_s)
            told = waited_s
        time.sleep(_POLL_S)


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "_", name)


def _note(place: Path, slot: int) -> Path:
    return place.with_name(f"{place.name}.{slot}.owner")


def _write(note: Path, owner: Owner) -> None:
    fresh = note.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(asdict(owner)))
    fresh.replace(note)


def _read(note: Path) -> Owner | None:
    try:
        return Owner(**json.loads(note.read_text()))
    except FileNotFoundError:  # it is just coming or going
        return None
