"""CPU quotas of machines: a control group for the processes of each, of version 1 or 2."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.machines.machine import Machine

_PERIOD_US = 100_000
_ROOTS = (Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup"))
_EMPTY_S = 10.0  # until the kernel has removed the last process of a group


@contextmanager
def limit_cpu(machine: Machine, cores: float) -> Iterator[Path]:
    """Limit all processes of a running machine to so many cores together, and yield the control group."""
    root = _find_root()
    assert root
    group = root / f"dtfperf-test-{os.getpid()}-{machine.name}"
    group.mkdir()
    try:
        quota_us = round(cores * _PERIOD_US)
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        for pid in (machine.first, *machine.processes()):  # their children are in the same group
            with suppress(ProcessLookupError):
                (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        _remove(group)


def why_no_quota() -> str | None:
    """Return why this machine has no CPU quotas for tests, or None."""
    return None if _find_root() else "no control group with a CPU quota can be made"


def _find_root() -> Path | None:
    for root in _ROOTS:
        group = root / f"dtfperf-try-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            try:
                if (group / "cpu.max").exists() or (group / "cpu.cfs_quota_us").exists():
                    return root
            finally:
                group.rmdir()
    return None


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
