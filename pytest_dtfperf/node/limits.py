"""What keeps a process from all that its host has: cores not allocated, quotas, clocks, ulimits. What is usual is left out.

Reads /proc and /sys alone. What a kernel does not report is left out.
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


def limits() -> dict[str, Any]:
    """Return the limits of this process, by name; numbers are smaller where it may do less."""
    with open("/proc/self/cgroup") as file:
        cgroup = file.read()
    found = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu_quota_cores": quota_cores(cgroup, _CGROUPS),
        "memory_bytes": memory_limit(cgroup, _CGROUPS),
        "priority": -os.getpriority(os.PRIO_PROCESS, 0) or None,
        "scheduler": _SCHEDULERS.get(os.sched_getscheduler(0)),
        **_clock(),
    }
    for name, kind in _ULIMITS.items():
        soft, _ = resource.getrlimit(kind)
        found[name] = None if soft == resource.RLIM_INFINITY else soft
    return {name: value for name, value in found.items() if value is not None}


def _clock() -> dict[str, Any]:
    """Return how the first core chooses its clock, and how high it may where that is less than it could."""
    folder = f"{_CPU}/cpu{min(os.sched_getaffinity(0))}/cpufreq"
    allowed, possible = (read_file(f"{folder}/{name}") for name in ("scaling_max_freq", "cpuinfo_max_freq"))
    lowered = allowed and possible and int(allowed) < int(possible)
    return {
        "governor": read_file(f"{folder}/scaling_governor"),
        "clock_hz": int(allowed) * 1000 if allowed and lowered else None,
    }


def most_clock_hz() -> float | None:
    text = read_file(f"{_CPU}/cpu{min(os.sched_getaffinity(0))}/cpufreq/cpuinfo_max_freq")
    return int(text) * 1000.0 if text else None


def clock_hz() -> float | None:
    """Mean of the cores that this process may use, now; of many, of the first 32."""
    cores = sorted(os.sched_getaffinity(0))[:32]
    found = [int(text) for cpu in cores if (text := read_file(f"{_CPU}/cpu{cpu}/cpufreq/scaling_cur_freq"))]
    return sum(found) / len(found) * 1000 if found else None


def quota_cores(cgroup: str, mount: str) -> float | None:
    """Return how many cores' time this process and its group may use, the least of all groups above; None: no quota.

    `cgroup` is the text of /proc/self/cgroup.
    """
    found = []
    for version_2, folder in _groups(cgroup, mount, "cpu"):
        if version_2:
            quota, _, period = (read_file(f"{folder}/cpu.max") or "max").partition(" ")
        else:
            quota, period = (read_file(f"{folder}/cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        if quota.isdigit():  # else "max", -1, or no such file
            found.append(int(quota) / int(period or 100_000))
    return min(found, default=None)


def limited_s(cgroup: str, mount: str) -> float | None:
    """Return how long quotas kept this process's groups from their cores, summed over cores; the most of all groups.

    None: no group has a quota.
    """
    found = []
    for version_2, folder in _groups(cgroup, mount, "cpu"):
        fields = (read_file(f"{folder}/cpu.stat") or "").split()
        counted = dict(zip(fields[::2], fields[1::2], strict=False))
        if int(counted.get("nr_periods", 0)):  # of groups that have, or had, a quota
            found.append(int(counted["throttled_usec"]) / 1e6 if version_2 else int(counted["throttled_time"]) / 1e9)
    return max(found, default=None)


def memory_limit(cgroup: str, mount: str) -> int | None:
    """Return bytes that this process and its group may use; None: as many as there are."""
    found = []
    for version_2, folder in _groups(cgroup, mount, "memory"):
        text = read_file(f"{folder}/memory.max" if version_2 else f"{folder}/memory.limit_in_bytes")
        if text and text.isdigit() and int(text) < _UNLIMITED:
            found.append(int(text))
    return min(found, default=None)


def _groups(cgroup: str, mount: str, controller: str) -> Iterator[tuple[bool, str]]:
    """The folders of all groups that this process is in, for a controller, from the top; and whether they are of version 2."""
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
    except OSError:  # not this kernel, not this machine, not for this user
        return None
