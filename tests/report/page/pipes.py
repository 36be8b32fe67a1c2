"""Messages of JSON through two pipes, each terminated by NUL, as Chromium's --remote-debugging-pipe has them."""

import json
import os
import select
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self


@dataclass(eq=False)
class Pipe:
    """Our ends of the pipes."""

    reading: int
    writing: int
    _buffer: bytearray = field(default_factory=bytearray)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.reading)
        os.close(self.writing)

    def send(self, message: dict[str, Any]) -> None:
        rest = memoryview(json.dumps(message).encode() + b"\0")
        while rest:
            rest = rest[os.write(self.writing, rest) :]

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """Return the next message. Raises `TimeoutError`, or `EOFError` if the other side has ended."""
        deadline_s = time.monotonic() + timeout_s
        while (end := self._buffer.find(b"\0")) < 0:
            ready, _, _ = select.select([self.reading], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no message within {timeout_s:.0f} s")
            received = os.read(self.reading, 1 << 20)
            if not received:
                raise EOFError("the browser has ended")
            self._buffer += received
        message: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        return message


def make_pipes() -> tuple[Pipe, tuple[int, int]]:
    """Return our ends, and the descriptors that the other side reads from and writes to."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    return Pipe(ours_in, ours_out), (theirs_in, theirs_out)
