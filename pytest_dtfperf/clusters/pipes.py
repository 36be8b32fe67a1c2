"""Writing to a process that may have stopped reading."""

import os
import select
import time


def write_all(fd: int, data: bytes, within_s: float) -> bool:
    """Write to a non-blocking pipe; False if it was closed at the other end, or stayed full for longer than that."""
    rest = memoryview(data)
    deadline = time.monotonic() + within_s
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            if not select.select([], [fd], [], max(0.0, deadline - time.monotonic()))[1]:
                return False
        except BrokenPipeError:
            return False
    return True
