"""One run's part on one host: its tasks, the ports, the firewall and the tunnel they have, and what the host saw of itself."""

from __future__ import annotations

from pytest_dtfperf.node import guard, ports, run_folder
from pytest_dtfperf.node.run_monitor import RunMonitor
from pytest_dtfperf.node.tasks import Task
from pytest_dtfperf.node.tunnel import HostEnd

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
        self.folder: str | None = None  # of this run, where it has a tunnel
        self.tunnel: HostEnd | None = None
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

    def close_tunnel(self) -> None:
        if self.tunnel:
            self.tunnel.close()
            self.tunnel = None
        if self.folder:
            run_folder.remove(self.folder)
            self.folder = None
