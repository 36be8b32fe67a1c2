"""A lock file that is gone when nobody needs it, and keeps nobody out when its holder was killed."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_POLL_S = 0.1


@contextmanager
def locked(path: Path, *, within_s: float = math.inf) -> Iterator[None]:
    """Nobody else is in such a block of this path. Raises `BlockingIOError` where somebody still is after so long; 0: at once.

    filelock, which other files are locked with, leaves its file behind for ever.
    """
    handle = _lock_within(path, within_s)
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(handle)


def _lock_within(path: Path, within_s: float) -> int:
    if math.isinf(within_s):
        return _lock(path, fcntl.LOCK_EX)
    deadline = time.monotonic() + within_s
    while True:
        try:
            return _lock(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_POLL_S)


def _lock(path: Path, how: int) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, how)
            if os.fstat(handle).st_nlink:
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # its holder took it away while we waited: others lock the file that is there now
