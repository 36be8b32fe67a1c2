"""The limits of a process on its host, and the load of the host besides a run.

Limits are allocated cores, CPU quotas, clocks and ulimits; unlimited resources are left out. The load is CPU time by cause,
memory pressure and clocks: counters are read twice and subtracted.

Reads only /proc and /sys. Values that a kernel or a virtual machine does not report are None, never 0.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from pytest_dtfperf.node import processes, sweep
from pytest_dtfperf.node.owner import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_CPU = "/sys/devices/system/cpu"
_CGROUPS = "/sys/fs/cgroup"
_UNLIMITED = 1 << 60  # bytes: what version 1 of control groups writes for no limit, rounded to pages
_ULIMITS = {
    "open_files": resource.RLIMIT_NOFILE,
    "processes": resource.RLIMIT_NPROC,
    "locked_memory_bytes": resource.RLIMIT_MEMLOCK,  # GPU and InfiniBand drivers pin what they transfer
    "address_space_bytes": resource.RLIMIT_AS,
    "cpu_s": resource.RLIMIT_CPU,
}
_SCHEDULERS = {os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle", os.SCHED_FIFO: "fifo", os.SCHED_RR: "round robin"}


def read_limits() -> dict[str, Any]:
    """Return the limits of this process by name. A smaller number is always a stricter limit."""
    with open("/proc/self/cgroup") as file:
        cgroup = file.read()
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota_cores": read_quota_cores(cgroup, _CGROUPS),
        "memory_bytes": read_memory_limit(cgroup, _CGROUPS),
        "priority": -os.getpriority(os.PRIO_PROCESS, 0) or None,
        "scheduler": _SCHEDULERS.get(os.sched_getscheduler(0)),
        **_read_clock(),
    }
    for name, kind in _ULIMITS.items():
        soft, _ = resource.getrlimit(kind)
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    return {name: value for name, value in found.items() if value is not None}


def _read_clock() -> dict[str, Any]:
    """Return the first core's frequency governor, and its highest clock if that is lowered."""
    folder = f"{_CPU}/cpu{min(os.sched_getaffinity(0))}/cpufreq"
    allowed, possible = (read_file(f"{folder}/{name}") for name in ("scaling_max_freq", "cpuinfo_max_freq"))
    lowered = allowed and possible and int(allowed) < int(possible)
    return {
        "governor": read_file(f"{folder}/scaling_governor"),
        "clock_hz": int(allowed) * 1000 if allowed and lowered else None,
    }


def read_max_clock_hz() -> float | None:
    text = read_file(f"{_CPU}/cpu{min(os.sched_getaffinity(0))}/cpufreq/cpuinfo_max_freq")
    return int(text) * 1000.0 if text else None


def read_clock_hz() -> float | None:
    """Return the mean current clock of the cores that this process may use, at most the first 32."""
    cores = sorted(os.sched_getaffinity(0))[:32]
    found = [int(text) for cpu in cores if (text := read_file(f"{_CPU}/cpu{cpu}/cpufreq/scaling_cur_freq"))]
    return sum(found) / len(found) * 1000 if found else None


def read_quota_cores(cgroup: str, mount: str) -> float | None:
    """Return how many cores the CPU quotas of this process's groups allow, at the strictest level; None without a quota.

    `cgroup` is the text of /proc/self/cgroup.
    """
    found = []
    for version_2, folder in _iterate_groups(cgroup, mount, "cpu"):
        if version_2:
            quota, _, period = (read_file(f"{folder}/cpu.max") or "max").partition(" ")
        else:
            quota, period = (read_file(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdigit():  # else "max", -1, or no such file
            found.append(int(quota) / int(period or 100_000))
    return min(found, default=None)


def read_throttled_s(cgroup: str, mount: str) -> float | None:
    """Return how long CPU quotas throttled this process's groups, summed over cores, at the worst level.

    None if no group has a quota.
    """
    found = []
    for version_2, folder in _iterate_groups(cgroup, mount, "cpu"):
        fields = (read_file(f"{folder}/cpu.stat") or "").split()
        counted = dict(zip(fields[::2], fields[1::2], strict=False))
        if int(counted.get("nr_periods", 0)):  # the group has, or had, a quota
            found.append(int(counted["throttled_usec"]) / 1e6 if version_2 else int(counted["throttled_time"]) / 1e9)
    return max(found, default=None)


def read_memory_limit(cgroup: str, mount: str) -> int | None:
    """Return the bytes that this process and its group may use; None if they are not limited."""
    found = []
    for version_2, folder in _iterate_groups(cgroup, mount, "memory"):
        text = read_file(f"{folder}/memory.max" if version_2 else f"{folder}/memory.limit_in_bytes")
        if text and text.isdigit() and int(text) < _UNLIMITED:
            found.append(int(text))
    return min(found, default=None)


def _iterate_groups(cgroup: str, mount: str, controller: str) -> Iterator[tuple[bool, str]]:
    """Yield each cgroup of this process for a controller, root first: whether it is of version 2, and its folder."""
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if number != "0" and controller not in controllers.split(","):
            continue
        top = mount if number == "0" else f"{mount}/{controller}"
        steps: Sequence[str] = [step for step in path.split("/") if step]
        for depth in range(len(steps) + 1):
            yield number == "0", "/".join([top, *steps[:depth]])


def read_file(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:  # missing on this kernel or machine, or not readable for this user
        return None


# The number of cores with a clock and throttling that are read: all cores of a large host would take too long.
_CORES_SAMPLED = 32
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER, _NICE, _SYSTEM, _STEAL = 0, 1, 2, 7  # columns of /proc/stat


class Core:
    """The CPU times of one core, in seconds."""

    def __init__(self, busy_s: float, steal_s: float) -> None:
        self.busy_s = busy_s  # on behalf of processes
        self.steal_s = steal_s  # used by other virtual machines


class Sample:
    """The counters at one moment. Times are in seconds since an arbitrary moment."""

    def __init__(
        self,
        *,
        at_s: float,
        cores: Mapping[int, Core],
        own_s: float,
        controller_s: float,
        load: float,
        available_bytes: int | None,
        swapped_in_bytes: int | None,
        stalled_s: Mapping[str, float],
        clock_mhz: float | None,
        throttled_s: Sequence[float],
        waited_s: Mapping[int, float] | None = None,
        limited_s: float | None = None,
    ) -> None:
        self.at_s = at_s
        self.cores = cores
        self.own_s = own_s  # of the agent and all its descendants, living or dead
        self.controller_s = controller_s  # of the controller if it runs on this host
        self.load = load
        self.available_bytes = available_bytes
        self.swapped_in_bytes = swapped_in_bytes
        self.stalled_s = stalled_s  # for lack of memory: "some" process, or the "full" host; empty if unknown
        self.clock_mhz = clock_mhz  # mean of the allocated cores
        self.throttled_s = throttled_s  # each allocated core's time with a clock lowered for heat; empty if unknown
        self.waited_s = waited_s  # thread -> time of being runnable without a core, of the agent and its descendants
        self.limited_s = limited_s  # in which a CPU quota throttled the agent and its descendants, summed over cores


class HostCounters:
    """The counters of one host: its allocated cores, its memory, and the processes below the agent."""

    def __init__(self) -> None:
        self.cpus = sorted(os.sched_getaffinity(0))
        self.machine = (read_file("/proc/sys/kernel/random/boot_id") or "")[:8]
        self.has_quota = has_quota(read_file("/proc/self/cgroup") or "", _CGROUPS)
        self._controller = _find_controller(os.environ)
        sampled = self.cpus[:_CORES_SAMPLED]
        self._clocks = _filter_existing(f"{_CPU}/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in sampled)
        self._throttles = _filter_existing(f"{_CPU}/cpu{cpu}/thermal_throttle/core_throttle_total_time_ms" for cpu in sampled)
        highest = read_file(f"{_CPU}/cpu{self.cpus[0]}/cpufreq/cpuinfo_max_freq")
        self.max_clock_mhz = int(highest) // 1000 if highest else None

    def sample(self) -> Sample:
        """Read all counters. Takes one to three milliseconds, or more with thousands of processes."""
        at_s = time.monotonic()
        cores = parse_core_times(read_file("/proc/stat") or "")
        own_s = processes.read_cpu_s(os.getpid())
        controller = processes.inspect(self._controller) if self._controller else None
        clocks = [int(text) / 1000 for path in self._clocks if (text := read_file(path))]
        return Sample(
            at_s=at_s,
            cores=cores,
            own_s=own_s,
            controller_s=controller.cpu_s if controller else 0.0,
            load=round(os.getloadavg()[0], 2),
            available_bytes=parse_available_bytes(read_file("/proc/meminfo") or ""),
            swapped_in_bytes=parse_swapped_in_bytes(read_file("/proc/vmstat") or ""),
            stalled_s=parse_memory_stalls(read_file("/proc/pressure/memory") or ""),
            clock_mhz=sum(clocks) / len(clocks) if clocks else None,
            throttled_s=[int(text) / 1000 for path in self._throttles if (text := read_file(path))],
            waited_s=processes.read_waited_s(os.getpid()),
            limited_s=read_throttled_s(read_file("/proc/self/cgroup") or "", _CGROUPS),
        )

    def account(self, before: Sample, start: Sample, end: Sample, cpus: Collection[int] = ()) -> dict[str, Any]:
        """Return the host's state between `start` and `end` of training, and `before` the run.

        `cpus` are the cores that the run could use; empty: all that are allocated. Work on other cores does not disturb it.
        """
        used = add_siblings(cpus or self.cpus) & start.cores.keys() & end.cores.keys()
        return {
            "machine": self.machine,
            "cpus": format_ranges(used),
            "cores": len(used),
            "quota": self.has_quota,
            "window_s": round(end.at_s - start.at_s, 3),
            "cpu": {
                "busy_s": _compute_growth(
                    sum(start.cores[cpu].busy_s for cpu in used), sum(end.cores[cpu].busy_s for cpu in used)
                ),
                "own_s": _compute_growth(start.own_s, end.own_s),
                "controller_s": _compute_growth(start.controller_s, end.controller_s),
                "steal_s": _compute_growth(
                    sum(start.cores[cpu].steal_s for cpu in used), sum(end.cores[cpu].steal_s for cpu in used)
                ),
                "waited_s": compute_growth_of_threads(start.waited_s, end.waited_s),
                "limited_s": _compute_growth(start.limited_s, end.limited_s),
            },
            "load": {"before": before.load, "after": end.load},
            "memory": {
                "available_mib": {
                    "before": _convert_to_mib(before.available_bytes),
                    "after": _convert_to_mib(end.available_bytes),
                },
                "some_s": _compute_growth(start.stalled_s.get("some"), end.stalled_s.get("some")),
                "full_s": _compute_growth(start.stalled_s.get("full"), end.stalled_s.get("full")),
                "swapped_in_mib": _convert_to_mib(_compute_growth(start.swapped_in_bytes, end.swapped_in_bytes)),
            },
            "clock_mhz": {"before": _round(before.clock_mhz), "after": _round(end.clock_mhz), "most": self.max_clock_mhz},
            "throttled_s": _compute_largest_growth(start.throttled_s, end.throttled_s),
        }


def parse_core_times(stat: str) -> dict[int, Core]:
    """Return the times of each core, parsed from /proc/stat.

    Interrupts are left out: most are the run's own network traffic, and the kernel accounts them to no process.
    """
    found = {}
    for line in stat.splitlines():
        name, *columns = line.split()
        if name.startswith("cpu") and name != "cpu":
            ticks = [int(column) for column in columns] + [0] * 8  # old kernels write fewer columns
            busy = ticks[_USER] + ticks[_NICE] + ticks[_SYSTEM]
            found[int(name[3:])] = Core(busy / processes.TICKS_PER_S, ticks[_STEAL] / processes.TICKS_PER_S)
    return found


def parse_memory_stalls(pressure: str) -> dict[str, float]:
    """Return the `some` and `full` seconds of /proc/pressure/memory; empty if the kernel does not have it."""
    found = {}
    for line in pressure.splitlines():
        kind, *fields = line.split()
        found[kind] = next(int(word.partition("=")[2]) for word in fields if word.startswith("total=")) / 1e6
    return found


def parse_available_bytes(meminfo: str) -> int | None:
    """Return the available bytes, parsed from /proc/meminfo; None for kernels before 3.14."""
    kib = _parse_value(meminfo, "MemAvailable:")
    return None if kib is None else kib * 1024


def parse_swapped_in_bytes(vmstat: str) -> int | None:
    """Return the bytes that were read from swap since boot, parsed from /proc/vmstat."""
    pages = _parse_value(vmstat, "pswpin")
    return None if pages is None else pages * _PAGE_BYTES


def _parse_value(text: str, name: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == name), None)


def has_quota(cgroup: str, mount: str) -> bool:
    """Return whether a CPU quota limits this process, as in many containers. The rest of the time goes to others.

    `cgroup` is the text of /proc/self/cgroup; a quota of any group above counts.
    """
    return read_quota_cores(cgroup, mount) is not None


def add_siblings(cpus: Iterable[int]) -> set[int]:
    """Return the cores and their sibling threads, as work on a sibling slows its core."""
    found = set(cpus)
    for cpu in tuple(found):
        for part in (read_file(f"{_CPU}/cpu{cpu}/topology/thread_siblings_list") or "").split(","):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1)) if first else set()
    return found


def format_ranges(cpus: Iterable[int]) -> str:
    """Format cores as the kernel does: `0-3,8`."""
    found: list[list[int]] = []
    for cpu in sorted(cpus):
        if found and cpu == found[-1][1] + 1:
            found[-1][1] = cpu
        else:
            found.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _find_controller(environment: Mapping[str, str]) -> int | None:
    """Return the controller's process id if it runs on this host."""
    owner = Owner.parse(environment.get(sweep.OWNER, ""))
    return owner.pid if owner and owner.is_local else None


def _filter_existing(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if os.path.exists(path)]


def _compute_growth(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else round(max(0.0, end - start), 3)


def compute_growth_of_threads(start: Mapping[int, float] | None, end: Mapping[int, float] | None) -> float | None:
    """Return the growth of all counters that exist at the end. Ended threads are not counted."""
    if start is None or end is None:
        return None
    return round(sum(max(0.0, after - start.get(each, 0.0)) for each, after in end.items()), 3)


def _compute_largest_growth(start: Sequence[float], end: Sequence[float]) -> float | None:
    return max((round(after - before, 3) for before, after in zip(start, end, strict=False)), default=None)


def _round(value: float | None) -> int | None:
    return None if value is None else round(value)


def _convert_to_mib(size_bytes: float | None) -> int | None:
    return None if size_bytes is None else round(size_bytes / (1 << 20))
