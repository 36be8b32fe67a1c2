"""A full disk, simulated for this process and its children: no file may become longer than a number of bytes.

A write across that limit is a partial write, as on a disk that is nearly full.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_behind(path: Path, room: int = 0) -> Iterator[None]:
    """`room`: bytes that a file of this one's size may still take."""
    before, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.stat().st_size if path.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + room, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, most))
