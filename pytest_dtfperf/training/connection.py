"""The connection between a task and the agent that started it, as a task sees it."""

from typing import Any, Protocol, Self


class Counters(Protocol):
    """What the host and this process have used so far."""

    @property
    def bytes_sent(self) -> int:
        """By the host, over all its interfaces."""

    @property
    def bytes_received(self) -> int:
        """By the host, over all its interfaces."""

    @property
    def cpu_s(self) -> float:
        """User and system time of this process."""

    @property
    def peak_rss_bytes(self) -> int:
        """Of this process."""

    def since(self, before: Self) -> Self:
        """Return what was used after `before`, never less than nothing; the peak is the whole process's."""


class AgentConnection(Protocol):
    """The connection to the agent that started this task."""

    def send(self, kind: str, **data: Any) -> None:
        """Send "ready" (the port is bound), "progress", "stamps", "trace", or "report"; or, and end, "missing": a module that
        the mode needs, or "failed": the reason, in lines that are shown in the place of the log's last.
        """

    def wait(self) -> str:
        """Block for the next word: "go" or "leave"."""

    def counters(self) -> Counters:
        """Read the counters now."""
