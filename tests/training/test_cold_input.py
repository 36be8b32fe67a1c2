"""Files that are dropped from the page cache, so that reading them measures the disk."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_dtfperf.training.probe_readings import drop_cached_files

MIB = 1 << 20
LIMIT = 4 * MIB  # bytes per second of the slow disk
BLKIO = Path("/sys/fs/cgroup/blkio")


def count_cached_bytes(path: Path) -> int:
    found = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output=RES", path], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """The folder of a file system of its own, on a loop device."""
    if os.geteuid() or not all(map(shutil.which, ("fincore", "mkfs.ext4", "mount", "findmnt"))):
        pytest.skip("needs root, e2fsprogs and util-linux")
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    if subprocess.run(["mount", "-o", "loop", image, folder], check=False).returncode:
        pytest.skip("this machine has no loop devices")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_files_of_a_data_set_are_dropped_from_the_page_cache(disk: Path) -> None:
    """After the call, no file below the folder is in the page cache, also if it was just written, and all can still be read."""
    (disk / "train").mkdir()
    files = [disk / "first", disk / "train" / "second"]
    for file in files:
        file.write_bytes(bytes(MIB))
    os.mkfifo(disk / "pipe")
    assert [count_cached_bytes(file) for file in files] == [MIB, MIB]
    drop_cached_files(str(disk))
    assert [count_cached_bytes(file) for file in files] == [0, 0]
    assert [file.read_bytes() for file in files] == [bytes(MIB)] * 2


@pytest.fixture
def limit(disk: Path) -> Iterator[Callable[[], None]]:
    """A function that limits the rate at which its process reads the disk."""
    if not (BLKIO / "blkio.throttle.read_bps_device").exists() and not BLKIO.is_dir():
        pytest.skip("this machine has no cgroups of version 1 that limit the reading of disks")
    device = os.stat(
        subprocess.run(["findmnt", "-no", "SOURCE", disk], capture_output=True, text=True, check=True).stdout.strip()
    )
    group = BLKIO / f"dtfperf-test-{os.getpid()}"
    group.mkdir()
    number = f"{os.major(device.st_rdev)}:{os.minor(device.st_rdev)}"
    (group / "blkio.throttle.read_bps_device").write_text(f"{number} {LIMIT}")

    def enter() -> None:
        (group / "cgroup.procs").write_text(str(os.getpid()))

    try:
        yield enter
    finally:
        (BLKIO / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


@pytest.mark.campaign(only=True)
def test_slow_disk_shows_only_in_files_that_are_not_cached(disk: Path, limit: Callable[[], None]) -> None:
    """On a disk that a cgroup limits to 4 MiB/s, cached files are read faster, and dropped ones at the limit."""
    file = disk / "file"
    file.write_bytes(os.urandom(16 * MIB))
    limit()

    def read() -> float:
        began_s = time.monotonic()
        return len(file.read_bytes()) / (time.monotonic() - began_s)

    assert read() > 2 * LIMIT
    drop_cached_files(str(disk))
    assert read() < 1.5 * LIMIT
