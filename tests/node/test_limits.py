"""Limits of a process below the resources of its host."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import host_state

V2 = "0::/a/b\n"
V1 = "7:memory:/m\n3:cpuacct,cpu:/a\n"


def group(root: Path, path: str, **files: str) -> None:
    folder = root / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_quota_of_version_2(tmp_path: Path) -> None:
    """The tightest quota of all groups above counts, in cores."""
    group(tmp_path, "a", cpu__max="400000 100000")
    group(tmp_path, "a/b", cpu__max="max 100000")
    assert host_state.read_quota_cores(V2, str(tmp_path)) == 4.0
    group(tmp_path, "a/b", cpu__max="75000 50000")
    assert host_state.read_quota_cores(V2, str(tmp_path)) == 1.5


def test_quota_of_version_1(tmp_path: Path) -> None:
    """The value -1 is no limit in version 1, and the period is a file of its own."""
    group(tmp_path, "cpu/a", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert host_state.read_quota_cores(V1, str(tmp_path)) is None
    group(tmp_path, "cpu/a", cpu__cfs_quota_us="50000", cpu__cfs_period_us="100000")
    assert host_state.read_quota_cores(V1, str(tmp_path)) == 0.5


def test_time_of_throttling_by_a_quota(tmp_path: Path) -> None:
    """The time is that of the most throttled group, in seconds, for both versions; None without a quota."""
    group(tmp_path, "a", cpu__stat="usage_usec 9\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0")
    assert host_state.read_throttled_s(V2, str(tmp_path)) is None
    group(tmp_path, "a/b", cpu__stat="usage_usec 9\nnr_periods 12\nnr_throttled 3\nthrottled_usec 1500000")
    assert host_state.read_throttled_s(V2, str(tmp_path)) == 1.5
    group(tmp_path, "cpu/a", cpu__stat="nr_periods 12\nnr_throttled 3\nthrottled_time 2500000000")
    assert host_state.read_throttled_s(V1, str(tmp_path)) == 2.5


@pytest.mark.parametrize(
    "cgroup, files, expected",
    [
        (V2, {"path": "a", "memory__max": "1073741824"}, 1 << 30),
        (V2, {"path": "a", "memory__max": "max"}, None),
        (V1, {"path": "memory/m", "memory__limit_in_bytes": "9223372036854771712"}, None),
        (V1, {"path": "memory/m", "memory__limit_in_bytes": "2048"}, 2048),
        ("", {"path": "a"}, None),
    ],
)
def test_memory(cgroup: str, files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    """The memory limit of a group is read, and the number for no limit is None."""
    group(tmp_path, **files)
    assert host_state.read_memory_limit(cgroup, str(tmp_path)) == expected


def test_limits_of_a_process() -> None:
    """A process with fewer cores, fewer open files and less priority reports so; what is as usual is left out."""
    code = "import json; from pytest_dtfperf.node import host_state; print(json.dumps(host_state.read_limits()))"
    shell = f"ulimit -n 100; exec nice -n 5 taskset -c {os.sched_getaffinity(0).pop()} {sys.executable} -c '{code}'"
    found = json.loads(subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True).stdout)
    assert (found["cores"], found["open_files"]) == (1, 100)
    assert found["priority"] < 0
    assert "scheduler" not in found
