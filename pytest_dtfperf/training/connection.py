"""The connection between a task and the agent that started it, as a task sees it."""

from typing import Any, Protocol, Self


class Counters(Protocol):
    """The resources that a host and this process have used since they started."""

    @property
    def bytes_sent(self) -> int:
        """Return the bytes that the host has sent over all its interfaces."""

    @property
    def bytes_received(self) -> int:
        """Return the bytes that the host has received over all its interfaces."""

    @property
    def cpu_s(self) -> float:
        """Return the user and system time of this process, in seconds."""

    @property
    def peak_rss_bytes(self) -> int:
        """Return the highest resident memory of this process."""

    def since(self, before: Self) -> Self:
        """Return the resources used after `before`, never negative. The peak stays that of the whole process."""


class AgentConnection(Protocol):
    """The connection to the agent that started this task."""

    def send(self, kind: str, **data: Any) -> None:
        """Send a message of one kind.

        The kinds are "ready" (the port is bound), "progress", "stamps", "trace" and "report". Two more are a task's last
        message: "missing", a module that the mode needs, and "failed", the reason in lines that replace the last lines of the
        log.
        """

    def wait(self) -> str:
        """Block until the next order, "go" or "leave", and return it."""

    def counters(self) -> Counters:
        """Read the counters now."""
