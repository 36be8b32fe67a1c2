"""One night at a time on each cluster: a file that is locked, and says by whom."""

import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.formats import minute
from pytest_dtfperf.node.files import kind_of


@contextmanager
def locked(path: Path) -> Iterator[tuple[int | None, str]]:
    """Hold a lock for the night: (descriptor, ""); or, if another has it, (None, who that is).

    pytest inherits the descriptor, so that a night whose own program was killed is not over before its pytest is.
    Raises `UsageError` where there can be no such file, or none that can be locked.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    except OSError as exc:
        raise UsageError(
            f"the night's lock {path} cannot be opened: {exc.strerror}: --results must be a folder of yours"
        ) from exc
    if not stat.S_ISREG(mode := os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UsageError(f"the night's lock {path} is {kind_of(mode)}, and no regular file: remove it, or name other --results")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield None, os.pread(descriptor, 1000, 0).decode().strip() or "a night that has just begun"
        return
    except OSError as exc:
        raise UsageError(
            f"the night's lock {path} cannot be locked: {exc.strerror}: --results must be on a file system with locks, or one "
            "night could not tell that another goes on"
        ) from exc
    else:
        os.ftruncate(descriptor, 0)
        os.pwrite(
            descriptor,
            f"process {os.getpid()} on {socket.gethostname()} since {minute(datetime.now(UTC).isoformat())} UTC\n".encode(),
            0,
        )
        yield descriptor, ""
    finally:
        os.close(descriptor)
