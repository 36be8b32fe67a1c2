"""What an external command prints: into the task's log as it comes, and read line by line."""

import os
import re
from collections import deque
from time import perf_counter

from pytest_dtfperf.training.connection import Connection

PROGRESS_S = 0.25  # at least, from one sign of progress to the next
LAST_LINES = 20
LINE_BYTES = 1 << 16  # nobody writes longer lines for people to read; what draws bars may never end one
STREAM_S = 0.1  # likewise, from one message with lines to the next
STREAM_CHARACTERS = 16_384  # of lines in one message: more than anybody reads, and what a controller of 100 tasks can hear
LINE_CHARACTERS = 4096  # of one of them, and of whatever else is quoted
_END_OF_LINE = re.compile(rb"[\r\n]+")  # bars are drawn with the one alone
_STDOUT = 1


class Output:
    """Fed with what arrives; each of its lines is a sign of life, and may say the rate.

    With `streams`, lines go to the controller as they come: `flush` is to be called ten times a second or oftener. Of what
    comes faster than it is sent, only the number of lines is told.
    """

    def __init__(self, pattern: str, connection: Connection, *, streams: bool = False) -> None:
        self.rate: str | None = None  # what the pattern's first group found last, as it stands there
        self.last_lines: deque[str] = deque(maxlen=LAST_LINES)
        self._pattern = re.compile(pattern)
        self._connection = connection
        self._rest = b""
        self._signs = 0
        self._told_at = self._streamed_at = float("-inf")
        self._streams = streams
        self._waiting: list[str] = []
        self._room = STREAM_CHARACTERS
        self._left_out = 0

    def take(self, data: bytes) -> None:
        os.write(_STDOUT, data)
        *lines, self._rest = _END_OF_LINE.split(self._rest + data)
        if len(self._rest) > LINE_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._read(line.decode(errors="replace"))

    def end(self) -> None:
        """Nothing comes any more."""
        self._read(self._rest.decode(errors="replace"))
        self._rest = b""
        self.flush(now=True)

    def flush(self, *, now: bool = False) -> None:
        """Send what waits to be sent, if the last message is long enough ago."""
        if (self._waiting or self._left_out) and (now or perf_counter() - self._streamed_at >= STREAM_S):
            self._streamed_at = perf_counter()
            self._connection.send("output", lines=self._waiting, left_out=self._left_out)
            self._waiting, self._room, self._left_out = [], STREAM_CHARACTERS, 0

    def _read(self, line: str) -> None:
        if not line.strip():
            return
        self.last_lines.append(line[:LINE_CHARACTERS])
        if (match := self._pattern.search(line)) and match[1] is not None:
            self.rate = match[1][:LINE_CHARACTERS]
        if self._streams:
            self._stream(line[:LINE_CHARACTERS])
        self.sign_of_life()

    def _stream(self, line: str) -> None:
        if self._left_out or len(line) > self._room:
            self._left_out += 1
        else:
            self._waiting.append(line)
            self._room -= len(line) + 1
        self.flush()

    def sign_of_life(self) -> None:
        """A line, or a step that was reported without one."""
        self._signs += 1
        now = perf_counter()
        if now - self._told_at >= PROGRESS_S:
            self._told_at = now
            self._connection.send("progress", step=self._signs, of=0)  # nobody knows how many there will be
