"""The messages between controller, agent and tasks: JSON objects, one per line. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping

from pytest_dtfperf.node import probes
from pytest_dtfperf.node.probes import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


VERSION = 2


class WireError(ValueError):
    """The line is not a message of this version."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as a line without its end, in Python's JSON: a loss may be NaN."""
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode()


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line, without its version. Raises `WireError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:  # the latter for very deep nesting
        raise WireError(f"not JSON: {line[:80]!r}") from exc
    if not isinstance(message, dict) or message.pop("v", None) != VERSION:
        raise WireError(f"not a message of version {VERSION}: {line[:80]!r}")
    return message


class Lines:
    """Splits data that arrives in pieces into complete lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line for line in whole if line]


class Outbox:
    """Lines that wait for a pipe which may be full. The writer never blocks, so that it keeps watching its heartbeat."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._pending = bytearray()

    def __bool__(self) -> bool:
        """Return whether data is waiting."""
        return bool(self._pending)

    def put(self, line: bytes) -> None:
        """Send a line, as far as the pipe takes it. Raises `BrokenPipeError` if the reader has ended."""
        self._pending += line + b"\n"
        self.flush()

    def flush(self) -> None:
        while self._pending:
            try:
                written = os.write(self._fd, self._pending)
            except BlockingIOError:
                return
            del self._pending[:written]


class Connection:
    """A task's connection to its agent: sends progress, and waits for orders."""

    def __init__(self, to_agent: socket.socket) -> None:
        self._socket = to_agent
        self._incoming = to_agent.makefile("rb")

    def send(self, kind: str, **data: Any) -> None:
        """Send "ready" (its port is bound), "progress", "output", "timestamps", "trace", "report", or "failed" (`reason`)."""
        self._socket.sendall(encode({**data, "kind": kind}) + b"\n")

    def wait(self) -> str:
        """Wait for the controller's next order, "go" or "leave", and return it."""
        return str(self._read_next()["word"])

    def counters(self) -> Counters:
        """Return the counters of this host's interfaces and this process.

        Called at the start and at the end of measuring, so that the agent reads the host's counters at the same time.
        """
        self.send("counting")
        return probes.read_counters()

    def order(self) -> dict[str, Any]:
        """Return this task's order, which is always its first message."""
        order: dict[str, Any] = self._read_next()["order"]
        return order

    def _read_next(self) -> dict[str, Any]:
        line = self._incoming.readline()
        if not line:
            raise ConnectionError("the agent is gone")
        return decode(line)
