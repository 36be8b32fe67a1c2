"""Control groups of machines, of version 1 or 2: how many cores the processes of each use, and how fast they read a disk."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.machines.machine import Machine

_PERIOD_US = 100_000
_TOP = Path("/sys/fs/cgroup")
_QUOTA = {"cpu.max": _TOP, "cpu.cfs_quota_us": _TOP / "cpu"}  # file of a limit -> the folder of groups that have it
_READING = {"io.max": _TOP, "blkio.throttle.read_bps_device": _TOP / "blkio"}
_EMPTY_S = 10.0  # until the kernel has removed the last process of a group


@contextmanager
def limit_cpu(machine: Machine, cores: float) -> Iterator[Path]:
    """Limit all processes of a running machine to so many cores together, and yield the control group."""
    quota_us = round(cores * _PERIOD_US)
    with _limit(machine, _QUOTA, {"cpu.max": f"{quota_us} {_PERIOD_US}", "cpu.cfs_quota_us": str(quota_us)}) as group:
        yield group


@contextmanager
def limit_disk(machine: Machine, folder: Path, bytes_per_s: float) -> Iterator[Path]:
    """Limit how fast all processes of a running machine together read the disk of a folder, and yield the control group."""
    disk = _find_disk(folder)
    values = {"io.max": f"{disk} rbps={bytes_per_s:.0f}", "blkio.throttle.read_bps_device": f"{disk} {bytes_per_s:.0f}"}
    with _limit(machine, _READING, values) as group:
        yield group


def why_no_quota() -> str | None:
    """Return why this machine has no CPU quotas for tests, or None."""
    return None if _find_root(_QUOTA) else "no control group with a CPU quota can be made"


def why_no_disk_limit(folder: Path) -> str | None:
    """Return why the disk of a folder cannot be slowed for tests, or None."""
    if not _find_disk(folder):
        return f"{folder} is on no disk of its own, but for example in an overlay"
    return None if _find_root(_READING) else "no control group with a limit of reading can be made"


@contextmanager
def _limit(machine: Machine, roots: Mapping[str, Path], values: Mapping[str, str]) -> Iterator[Path]:
    """Make a control group with these values of its files for the processes of a machine."""
    found = _find_root(roots)
    assert found
    name, root = found
    group = root / f"dtfperf-test-{os.getpid()}-{machine.name}"
    group.mkdir()
    try:
        (group / name).write_text(values[name])
        for pid in (machine.first, *machine.processes()):  # their children are in the same group
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        _remove(group)


def _find_root(roots: Mapping[str, Path]) -> tuple[str, Path] | None:
    """Return the first of these files that new control groups have, and the folder of the groups."""
    for name, root in roots.items():
        group = root / f"dtfperf-try-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                if (group / name).exists():
                    return name, root
            finally:
                group.rmdir()
    return None


def _find_disk(folder: Path) -> str:
    """Return the number of a folder's disk, as in `254:0`; empty if it has none."""
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not device.exists():
        return ""
    disk = device.resolve()
    return ((disk.parent if (disk / "partition").exists() else disk) / "dev").read_text().strip()


def _remove(group: Path) -> None:
    """Remove a group. Its processes go back to the group above."""
    for pid in (group / "cgroup.procs").read_text().split():
        with suppress(OSError):
            (group.parent / "cgroup.procs").write_text(pid)
    deadline = time.monotonic() + _EMPTY_S
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
