"""A file system without locks, as some network file systems are, simulated for this process."""

import errno
import fcntl
import os

import pytest


def without_locks(monkeypatch: pytest.MonkeyPatch, code: int = errno.ENOLCK) -> None:
    """Let the kernel refuse every lock with this error."""

    def refuse(file: object, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
