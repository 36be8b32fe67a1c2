"""The host's own measurements before, during and after one run. The agent reports events of the run, and reads the result.

The window is that of training: from the first task's call at the start of measuring to the last task's call at its end. If no
task calls (a host of parameter servers, an external command), it is from the order "go" to the report or to "leave".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pytest_dtfperf.node import isolation, ports, sweep
from pytest_dtfperf.node.tasks import Task
from pytest_dtfperf.node.tunnel import HostEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pytest_dtfperf.node.gpu_state import Reading
    from pytest_dtfperf.node.host_state import HostCounters, Sample

    Seen = tuple[float, list[Reading]]

# The utilisation that a GPU reports covers up to a second before, so that just after a run it is that of the run.
_AFTERGLOW_S = 2.0
_MOST_READINGS = 20_000  # more than five hours; of a longer run only the last sample is added


class RunMonitor:
    """The monitor of one run on one host."""

    def __init__(
        self, host: HostCounters, *, gpus: Sequence[str] = (), last: Seen | None = None, free_since_s: float = 0.0
    ) -> None:
        """Read the counters before the run.

        Args:
            host: The host.
            gpus: nvidia-smi's indices of the GPUs.
            last: The last sample of the GPUs before the run.
            free_since_s: The monotonic time at which this agent's previous run ended; 0 if there was none.
        """
        self._host = host
        self._before = host.sample()
        self._start: Sample | None = None
        self._end: Sample | None = None
        self._calls: Counter[str] = Counter()
        self._gpus = gpus
        self._first = last
        self._seen: list[Seen] = []
        self._free_since_s = free_since_s

    def note_order(self, order: str) -> None:
        """Note that the controller ordered all hosts to "go", or, once all workers are done, to "leave"."""
        if order == "go":
            self._start = self._start or self._host.sample()
        elif order == "leave":
            self._end = self._end or self._host.sample()

    def note_measuring(self, task: str) -> None:
        """Read the counters at a task's call: at the start of its measurement, at its end, and so on."""
        if _is_parameter_server(task):
            return
        if not self._calls:
            self._start = self._host.sample()
        elif self._calls[task] % 2:
            self._end = self._host.sample()
        self._calls[task] += 1

    def note_done(self, task: str) -> None:
        if not self._calls and not _is_parameter_server(task):
            self._end = self._host.sample()

    def add_samples(self, seen: Sequence[Seen]) -> None:
        if len(self._seen) < _MOST_READINGS:
            self._seen += seen
        elif seen:
            self._seen[-1] = seen[-1]

    def account(self, cpus: Collection[int] = ()) -> dict[str, Any] | None:
        """Return the host's state during the run; None if no training took place.

        Args:
            cpus: The tasks' cores; empty: all that are allocated.
        """
        if self._start is None or self._end is None:
            return None
        found = self._host.account(self._before, self._start, self._end, cpus)
        if self._gpus:
            within = [readings for at_s, readings in self._seen if self._start.at_s <= at_s <= self._end.at_s]
            last = self._seen[-1][1] if self._seen else []
            found["gpus"] = [self._gpu(index, within, last) for index in self._gpus]
        return found

    def _gpu(self, index: str, samples: Sequence[Sequence[Reading]], last: Sequence[Reading]) -> dict[str, Any]:
        at_s, first = self._first or (0.0, [])
        before = dict(_find_reading(index, first) or {})
        others = before.pop("processes", []) if at_s > self._free_since_s else []  # earlier, they may be the last run's own
        if at_s < self._free_since_s + _AFTERGLOW_S and self._free_since_s:
            before["utilisation"] = None
        after = {name: value for name, value in (_find_reading(index, last) or {}).items() if name != "processes"}
        during = [reading for readings in samples if (reading := _find_reading(index, readings))]
        known = [reading["reasons"] for reading in during if reading["reasons"] is not None]
        return {
            "index": index,
            "before": before or None,
            "after": after or None,
            "others": others,
            "during": {
                "samples": len(known),
                "reasons": dict(sorted(Counter(reason for each in known for reason in each).items())),
                "sm_mhz": _find_range(during, "sm_mhz"),
                "memory_mhz": _find_range(during, "memory_mhz"),
                "temperature_c": _find_range(during, "temperature_c"),
                "power_w": _find_range(during, "power_w"),
            },
        }


def _is_parameter_server(task: str) -> bool:
    """Return whether a task is a parameter server: it ends after all others, and does not start measuring with the workers."""
    return task.startswith("ps:")


def _find_reading(index: str, readings: Sequence[Reading]) -> Reading | None:
    return next((reading for reading in readings if reading["index"] == index), None)


def _find_range(readings: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """Return the minimum and the maximum of a value; None if it is unknown."""
    known = [reading[name] for reading in readings if reading[name] is not None]
    return [min(known), max(known)] if known else None


class HostRun:
    """The tasks, ports and monitor of one run on this host."""

    def __init__(self, run_id: str, monitor: RunMonitor) -> None:
        self.id = run_id
        self.monitor = monitor
        self.tasks: dict[str, Task] = {}
        self.reservations: list[ports.Reservation] = []
        self.firewalls: list[isolation.Firewall] = []
        self.folder: str | None = None  # only with a tunnel
        self.tunnel: HostEnd | None = None
        self.is_over = False  # then only its logs may still be requested

    def account(self) -> dict[str, Any] | None:
        """Return the host's state during the run; None if the run did not take place here, or did not end."""
        cpus = [task.cpus for task in self.tasks.values()]
        uses_all = not all(cpus)  # a task without its own cores may use all
        return self.monitor.account(() if uses_all else {cpu for each in cpus for cpu in each}) if cpus else None

    def free_ports(self) -> None:
        for reservation in self.reservations:
            reservation.release()

    def close_firewalls(self) -> None:
        while self.firewalls:
            self.firewalls.pop().close()

    def close_tunnel(self) -> None:
        if self.tunnel:
            self.tunnel.close()
            self.tunnel = None
        if self.folder:
            sweep.remove_folder(self.folder)
            self.folder = None
