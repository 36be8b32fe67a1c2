"""A lock file that is gone when nobody needs it, and keeps nobody out when its holder was killed."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Nobody else is in such a block of this path. Without `wait`, raises `BlockingIOError` where somebody is.

    filelock, which other files are locked with, leaves its file behind for ever.
    """
    handle = _lock(path, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        with suppress(OSError):
            os.unlink(path)
        os.close(handle)


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
