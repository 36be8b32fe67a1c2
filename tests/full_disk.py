"""A disk that is full, as far as this process and its children can tell: no file may become any longer than so many bytes.

What is written across that limit is written in part, as on a disk that is nearly full.
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
