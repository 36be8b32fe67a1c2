"""Files that are there whole or not at all, whoever reads, writes or dies meanwhile."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_MARK = ".unfinished"
_ABANDONED_S = 3600.0  # nobody writes one file for so long


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file that takes the place of `path`, or of the link there, once the block has ended well; outlives a power cut.

    Raises `OSError` where it cannot be written, a full disk included; what stood there stands there still. Two that write at
    once need no lock: one of both is found afterwards. What a killed one has left goes with a later one.
    """
    folder, name = os.path.split(os.path.abspath(path))
    _sweep(folder, f".{name}.")
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{_MARK}")
    try:
        with open(unfinished, "xb") as file:
            yield file
        put(unfinished, path)
    finally:
        with suppress(OSError):
            os.unlink(unfinished)


def put(finished: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Give a file of the same disk its name, once all of it is on the disk. Raises `OSError`."""
    _sync(finished)
    os.replace(finished, path)
    with suppress(OSError):  # not every file system can; where it can, the name, too, outlives a power cut
        _sync(os.path.dirname(os.path.abspath(path)))


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: str, begin: str) -> None:
    with suppress(OSError):  # another's sweep was faster
        for each in os.scandir(folder):
            if each.name.startswith(begin) and each.name.endswith(_MARK) and time.time() - each.stat().st_mtime > _ABANDONED_S:
                os.unlink(each)
