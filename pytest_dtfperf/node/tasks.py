"""The agent's view of a zygote and its tasks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pytest_dtfperf.node import wire, zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any

_LAST_LINES = 20
_LAST_BYTES = 8192  # enough for that many lines of a traceback
LOG_BYTES = 256 * 1024  # of a log that is sent to the controller: its beginning and its end
_READ_BYTES = 1 << 16


class Log:
    """A file without a name, which leaves nothing on disk after any kill."""

    def __init__(self) -> None:
        self.file = _open_unnamed_file()

    def fileno(self) -> int:
        return self.file.fileno()

    def read_last_lines(self) -> list[str]:
        size = self._size()
        return self._read_range(max(0, size - _LAST_BYTES), size).splitlines()[-_LAST_LINES:]

    def read_text(self) -> str:
        """Return the log; if it is too long, its beginning and its end."""
        size, half = self._size(), LOG_BYTES // 2
        if size <= LOG_BYTES:
            return self._read_range(0, size)
        return f"{self._read_range(0, half)}\n... {size - LOG_BYTES} bytes left out ...\n{self._read_range(size - half, size)}"

    def _size(self) -> int:
        return os.fstat(self.fileno()).st_size

    def _read_range(self, start: int, end: int) -> str:
        return os.pread(self.fileno(), end - start, start).decode(errors="replace")


def _open_unnamed_file() -> IO[bytes]:
    try:
        return open(os.open(os.environ.get("TMPDIR") or "/tmp", os.O_TMPFILE | os.O_RDWR, 0o600), "w+b")
    except OSError:  # the file system has no such files, or the folder does not exist
        import tempfile

        return tempfile.TemporaryFile(prefix="dtfperf-")


class Zygote:
    """A zygote process, forked from this one, and the socket to it."""

    def __init__(self, entry: str, env: Mapping[str, str]) -> None:
        self.log = Log()
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent = os.getpid()
        with theirs:
            self.pid = os.fork()
            if self.pid == 0:
                zygote.run_zygote(entry, env, agent, theirs, self.log.fileno())

    def fork(self, task: Task, network: Sequence[int] = ()) -> None:
        """Request a task. `network` are the namespace files for the task to enter (node/isolation.py)."""
        request = wire.encode({"task": task.id, "env": task.env, "cpus": task.cpus})
        with task.theirs:
            socket.send_fds(self.line, [request], [task.theirs.fileno(), task.log.fileno(), *network])

    def read_message(self) -> dict[str, Any] | None:
        """Return the next message; None if the zygote has ended."""
        try:
            message = self.line.recv(zygote.MESSAGE_BYTES)
        except ConnectionResetError:  # it was killed before it read a request
            return None
        return wire.decode(message) if message else None


class Task:
    """A task, from the order to start it until the end of its run."""

    def __init__(self, run: str, name: str, env: Mapping[str, str], cpus: Sequence[int]) -> None:
        self.run = run
        self.name = name
        self.env = env
        self.cpus = cpus
        self.id = f"{run}/{name}"
        self.pid: int | None = None  # once it is forked
        self.exited = False
        self.reason: list[str] = []  # why it failed, if it has reported that itself
        self.log = Log()
        self.line, self.theirs = socket.socketpair()
        self.line.setblocking(False)
        self._lines = wire.Lines()

    @property
    def last_lines(self) -> list[str]:
        return self.reason or self.log.read_last_lines()

    def send(self, message: Mapping[str, Any]) -> None:
        # It has ended, or is stopped with a full buffer: its exit or its state will show it.
        with suppress(OSError):
            self.line.sendall(wire.encode(message) + b"\n")

    def read_lines(self) -> tuple[list[bytes], bool]:
        """Return the lines since the last call, and whether more may come."""
        lines: list[bytes] = []
        while True:
            try:
                data = self.line.recv(_READ_BYTES)
            except BlockingIOError:
                return lines, True
            except ConnectionResetError:  # it ended before it read a message
                return lines, False
            if not data:
                return lines, False
            lines += self._lines.feed(data)
