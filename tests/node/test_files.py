"""Files that are there whole or not at all."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import files


def write(path: Path, content: bytes) -> None:
    with files.replacing(path) as file:
        file.write(content)


def test_a_file_is_replaced_once_the_block_has_ended(tmp_path: Path) -> None:
    """Within the block readers find the old file, after it the new one, with the rights of any new file; nothing else."""
    path = tmp_path / "x"
    write(path, b"old")
    with files.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    assert set(tmp_path.iterdir()) == {path, plain}


def test_a_block_that_fails_leaves_what_stood(tmp_path: Path) -> None:
    """Whatever ends the block before its time, Ctrl-C too, leaves the old file and nothing else."""
    path = tmp_path / "x"
    write(path, b"old")
    with pytest.raises(KeyboardInterrupt), files.replacing(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_disk_without_room_leaves_what_stood(tmp_path: Path) -> None:
    """Where the last bytes do not fit, that is an `OSError`, and the old file stands."""
    path = tmp_path / "x"
    write(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, b"n" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_is_replaced_by_the_file(tmp_path: Path) -> None:
    """What a link points to is never written: it may be somebody else's."""
    other, path = tmp_path / "other", tmp_path / "x"
    other.write_bytes(b"theirs")
    path.symlink_to(other)
    write(path, b"ours")
    assert (path.read_bytes(), path.is_symlink(), other.read_bytes()) == (b"ours", False, b"theirs")


def test_what_killed_ones_have_left_goes_with_a_later_one(tmp_path: Path) -> None:
    """A writer that SIGKILL has hit leaves a part, which is gone an hour later; that of somebody who writes now stays."""
    path = tmp_path / "x"
    code = (
        "import os, signal, sys; from pytest_dtfperf.node import files\n"
        "with files.replacing(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL
    (part,) = tmp_path.iterdir()
    write(path, b"1")
    assert part.exists()
    os.utime(part, (0, 0))
    write(path, b"2")
    assert list(tmp_path.iterdir()) == [path]
