"""What a host sees of itself before, during and after one run: the agent reports the run, and asks for the account at its end.

The window is that of training: from the first moment that a task of this host calls its start to the last that one calls its
end. Where no task does (a host of parameter servers, another kind of task), from the word "go" to the report or to "leave".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from pytest_dtfperf.node import guard, ports, run_folder
from pytest_dtfperf.node.tasks import Task
from pytest_dtfperf.node.tunnel import HostEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pytest_dtfperf.node.gpu_state import Reading
    from pytest_dtfperf.node.host_state import HostState, Sample

    Seen = tuple[float, list[Reading]]

    from pytest_dtfperf.node.gpu_state import Reading


# For so long after a run, a GPU's reported use is about that run: it covers up to a second that has passed.
_AFTERGLOW_S = 2.0
_MOST_READINGS = 20_000  # more than five hours of them; a longer run is known by its beginning and its end


class RunMonitor:
    """Over one run."""

    def __init__(
        self, host: HostState, *, gpus: Sequence[str] = (), last: Seen | None = None, free_since_s: float = 0.0
    ) -> None:
        """`last` is what was last seen of the GPUs, `free_since_s` when this agent's run before this one ended."""
        self._host = host
        self._before = host.sample()
        self._start: Sample | None = None
        self._end: Sample | None = None
        self._calls: Counter[str] = Counter()
        self._gpus = gpus
        self._first = last
        self._seen: list[Seen] = []
        self._free_since_s = free_since_s

    def hear(self, word: str) -> None:
        """Note the controller's "go" to all hosts, and its "leave" when the workers of all are done."""
        if word == "go":
            self._start = self._start or self._host.sample()
        elif word == "leave":
            self._end = self._end or self._host.sample()

    def call(self, task: str) -> None:
        """Read the counters when a task asks: when it starts to measure, when it has measured, and so on."""
        if _is_server(task):
            return
        if not self._calls:
            self._start = self._host.sample()
        elif self._calls[task] % 2:
            self._end = self._host.sample()
        self._calls[task] += 1

    def report(self, task: str) -> None:
        """Note that a task is done."""
        if not self._calls and not _is_server(task):
            self._end = self._host.sample()

    def see(self, seen: Sequence[Seen]) -> None:
        """Note that the GPUs were read."""
        if len(self._seen) < _MOST_READINGS:
            self._seen += seen
        elif seen:
            self._seen[-1] = seen[-1]

    def account(self, cpus: Collection[int] = ()) -> dict[str, Any] | None:
        """Return the account; None where no training took place. `cpus` are the tasks' cores; empty: all that are allocated."""
        if self._start is None or self._end is None:
            return None
        found = self._host.account(self._before, self._start, self._end, cpus)
        if self._gpus:
            within = [readings for at_s, readings in self._seen if self._start.at_s <= at_s <= self._end.at_s]
            last = self._seen[-1][1] if self._seen else []
            found["gpus"] = [self._gpu(index, within, last) for index in self._gpus]
        return found

    def _gpu(self, index: str, within: Sequence[Sequence[Reading]], last: Sequence[Reading]) -> dict[str, Any]:
        at_s, first = self._first or (0.0, [])
        before = dict(_of(index, first) or {})
        others = before.pop("processes", []) if at_s > self._free_since_s else []  # else they may be those of the last run
        if at_s < self._free_since_s + _AFTERGLOW_S and self._free_since_s:
            before["utilisation"] = None
        after = {name: value for name, value in (_of(index, last) or {}).items() if name != "processes"}
        during = [reading for readings in within if (reading := _of(index, readings))]
        known = [reading["reasons"] for reading in during if reading["reasons"] is not None]
        return {
            "index": index,
            "before": before or None,
            "after": after or None,
            "others": others,
            "during": {
                "samples": len(known),
                "reasons": dict(sorted(Counter(reason for each in known for reason in each).items())),
                "sm_mhz": _span(during, "sm_mhz"),
                "memory_mhz": _span(during, "memory_mhz"),
                "temperature_c": _span(during, "temperature_c"),
                "power_w": _span(during, "power_w"),
            },
        }


def _is_server(task: str) -> bool:
    """Return whether a task is a parameter server, which ends after all others, and starts to measure with no other."""
    return task.startswith("ps:")


def _of(index: str, readings: Sequence[Reading]) -> Reading | None:
    return next((reading for reading in readings if reading["index"] == index), None)


def _span(readings: Sequence[Mapping[str, Any]], name: str) -> list[float] | None:
    """Return the least and the greatest value."""
    known = [reading[name] for reading in readings if reading[name] is not None]
    return [min(known), max(known)] if known else None


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
        """Return what this host saw of itself during the run. None where nothing of the run took place, or not to its end."""
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
