"""One run's part on one host: its tasks, the ports and the firewall they have, and what the host saw of itself meanwhile."""

from __future__ import annotations

from pytest_dtfperf.node import guard, ports
from pytest_dtfperf.node.run_monitor import RunMonitor
from pytest_dtfperf.node.tasks import Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RunHere:
    def __init__(self, run_id: str, monitor: RunMonitor) -> None:
        self.id = run_id
        self.monitor = monitor
        self.tasks: dict[str, Task] = {}
        self.reservations: list[ports.Reservation] = []
        self.guards: list[guard.Guard] = []
        self.over = False  # only its logs are still of interest

    def account(self) -> dict[str, Any] | None:
        """What this host saw of itself meanwhile. None where nothing of the run took place, or not to its end."""
        cpus = [task.cpus for task in self.tasks.values()]
        everywhere = not all(cpus)  # a task that was given no cores of its own may use all
        return self.monitor.account(() if everywhere else {cpu for each in cpus for cpu in each}) if cpus else None

    def free_ports(self) -> None:
        for reservation in self.reservations:
            reservation.release()

    def lift_guards(self) -> None:
        while self.guards:
            self.guards.pop().close()
