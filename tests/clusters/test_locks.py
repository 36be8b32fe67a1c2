"""File locks: one holder at a time, and no file left."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_dtfperf.clusters.locks import lock_file

DIE_INSIDE = """
import os, signal, sys
from pathlib import Path
from pytest_dtfperf.clusters.locks import lock_file
with lock_file(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """Threads that hold the lock in turn lose no update, though the lock's file is deleted and made again."""
    counter = tmp_path / "counter"
    counter.write_text("0")

    def count(_: int) -> None:
        with lock_file(tmp_path / "lock"):
            counter.write_text(str(int(counter.read_text()) + 1))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(200)))
    assert counter.read_text() == "200"
    assert [each.name for each in tmp_path.iterdir()] == ["counter"]


def test_lock_without_waiting_fails_if_held(tmp_path: Path) -> None:
    """A process that does not wait gets an error if the lock is held."""
    with lock_file(tmp_path / "lock"), pytest.raises(BlockingIOError), lock_file(tmp_path / "lock", within_s=0.0):
        pass
    with lock_file(tmp_path / "lock", within_s=0.0):
        pass


def test_lock_of_a_killed_holder_is_free(tmp_path: Path) -> None:
    """The file of a dead holder blocks no process, and is deleted by the next one."""
    lock = tmp_path / "lock"
    assert subprocess.run([sys.executable, "-c", DIE_INSIDE, str(lock)], check=False).returncode == -9
    assert lock.exists()
    with lock_file(lock, within_s=0.0):
        pass
    assert not lock.exists()
