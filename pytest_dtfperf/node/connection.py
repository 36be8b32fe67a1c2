"""The task's end of its line to the agent."""

from __future__ import annotations

import socket

from pytest_dtfperf.node import probes, wire
from pytest_dtfperf.node.probes import Counters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Connection:
    """Says how the task is getting on, and waits for the controller's word."""

    def __init__(self, to_agent: socket.socket) -> None:
        self._socket = to_agent
        self._incoming = to_agent.makefile("rb")

    def send(self, kind: str, **data: Any) -> None:
        """Tell the controller: "ready" (the port is bound), "progress", "output", "stamps", "trace", "report"; or "failed"
        (reason: lines).
        """
        self._socket.sendall(wire.encode({**data, "kind": kind}) + b"\n")

    def wait(self) -> str:
        """Block until the controller's next word: "go" or "leave"."""
        return str(self._next()["word"])

    def counters(self) -> Counters:
        """What this host's interfaces and this process have used up to now.

        Called when measuring starts and when it ends, so that the agent is told: it looks at what the host does meanwhile.
        """
        self.send("counting")
        return probes.counters()

    def order(self) -> dict[str, Any]:
        """What this task is to do: always the first thing it is told."""
        order: dict[str, Any] = self._next()["order"]
        return order

    def _next(self) -> dict[str, Any]:
        line = self._incoming.readline()
        if not line:
            raise ConnectionError("the agent is gone")
        return wire.decode(line)
