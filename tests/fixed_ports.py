"""The ports of the fixed scheme (2220, 2221, 2230, ...) are the same in all tests: one test at a time uses them."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fixed_ports_held() -> Iterator[None]:
    """Hold a lock of this user's tests, in whichever process they run, while the block uses these ports."""
    path = Path(tempfile.gettempdir()) / f"dtfperf-tests-fixed-ports-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
