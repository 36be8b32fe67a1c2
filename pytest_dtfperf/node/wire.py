"""Whole JSON objects, one per line: how controller, agent and tasks talk. Nothing is ever unpickled."""

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
    """A line that is not a message of this version."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return one line, without its end. A loss may be NaN, so this is JSON as Python speaks it."""
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode()


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line, without its version. Raises `WireError`."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as exc:  # the latter: brackets within brackets within brackets
        raise WireError(f"not JSON: {line[:80]!r}") from exc
    if not isinstance(message, dict) or message.pop("v", None) != VERSION:
        raise WireError(f"not a message of version {VERSION}: {line[:80]!r}")
    return message


class Lines:
    """Cuts what arrives in pieces into whole lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + data).split(b"\n")
        return [line for line in whole if line]


class Outbox:
    """Lines on their way out of a pipe that may be full: the writer never blocks, and goes on watching its heartbeat."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self._fd = fd
        self._pending = bytearray()

    def __bool__(self) -> bool:
        """Return whether something is still waiting."""
        return bool(self._pending)

    def put(self, line: bytes) -> None:
        """Write what the pipe takes. Raises `BrokenPipeError` when no process listens any more."""
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
    """Reports the task's progress, and waits for the controller's orders."""

    def __init__(self, to_agent: socket.socket) -> None:
        self._socket = to_agent
        self._incoming = to_agent.makefile("rb")

    def send(self, kind: str, **data: Any) -> None:
        """Send the controller "ready" (the port is bound), "progress", "output", "timestamps", "trace", "report"; or "failed"
        (reason: lines).
        """
        self._socket.sendall(encode({**data, "kind": kind}) + b"\n")

    def wait(self) -> str:
        """Block until the controller's next word: "go" or "leave"."""
        return str(self._next()["word"])

    def counters(self) -> Counters:
        """Return what this host's interfaces and this process have used up to now.

        Called when measuring starts and when it ends, so that the agent knows: it observes the host in between.
        """
        self.send("counting")
        return probes.counters()

    def order(self) -> dict[str, Any]:
        """Return this task's order: always the first message it gets."""
        order: dict[str, Any] = self._next()["order"]
        return order

    def _next(self) -> dict[str, Any]:
        line = self._incoming.readline()
        if not line:
            raise ConnectionError("the agent is gone")
        return decode(line)
