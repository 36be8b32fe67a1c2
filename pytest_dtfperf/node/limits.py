"""The limits of a process on its host: allocated cores, CPU quotas, clocks, ulimits. Unlimited resources are left out.

Reads only /proc and /sys. Values that a kernel does not report are left out.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Sequence

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
