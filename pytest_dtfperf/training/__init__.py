"""Train in the tasks of a run, on TensorFlow or by an external command, and measure the steps."""

from typing import Any, Protocol

from pytest_dtfperf.node.probes import Counters

PROGRESS_S = 0.25  # at least, from one sign of progress to the next


class AgentConnection(Protocol):
    """The connection to the agent that started this task."""

    def send(self, kind: str, **data: Any) -> None:
        """Send a message of one kind.

        The kinds are "ready" (the port is bound), "progress", "timestamps", "trace" and "report". Two more are a task's last
        message: "missing", a module that the mode needs, and "failed", the reason in lines that replace the last lines of the
        log.
        """

    def wait(self) -> str:
        """Block until the next order, "go" or "leave", and return it."""

    def counters(self) -> Counters:
        """Read the counters now."""
