"""Files that are replaced completely or not at all, and limited reads."""

import contextlib
import os
import resource
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_dtfperf.node import files


def write(path: Path, content: bytes) -> None:
    with files.replace_file(path) as file:
        file.write(content)


def test_a_file_is_replaced_once_the_block_has_ended(tmp_path: Path) -> None:
    """Within the block readers find the old file, after it the new one, with the rights of any new file; nothing else."""
    path = tmp_path / "x"
    write(path, b"old")
    with files.replace_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    plain = tmp_path / "plain"
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    assert set(tmp_path.iterdir()) == {path, plain}


def test_failed_block_keeps_the_old_file(tmp_path: Path) -> None:
    """A block that ends with an exception, also Ctrl-C, leaves the old file and nothing else."""
    path = tmp_path / "x"
    write(path, b"old")
    with pytest.raises(KeyboardInterrupt), files.replace_file(path):
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """A write that does not fit on the disk is an `OSError`, and the old file stays."""
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


def test_link_is_replaced_by_the_file(tmp_path: Path) -> None:
    """A link is replaced, and its target stays unchanged."""
    other, path = tmp_path / "other", tmp_path / "x"
    other.write_bytes(b"theirs")
    path.symlink_to(other)
    write(path, b"ours")
    assert (path.read_bytes(), path.is_symlink(), other.read_bytes()) == (b"ours", False, b"theirs")


def test_partial_files_of_killed_writers_are_removed_later(tmp_path: Path) -> None:
    """A writer killed by SIGKILL leaves a part, which is gone an hour later; that of a current writer stays."""
    path = tmp_path / "x"
    code = (
        "import os, signal, sys; from pytest_dtfperf.node import files\n"
        "with files.replace_file(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL
    (part,) = tmp_path.iterdir()
    write(path, b"1")
    assert part.exists()
    os.utime(part, (0, 0))
    write(path, b"2")
    assert list(tmp_path.iterdir()) == [path]


def make_strange(path: Path, kind: str) -> None:
    """Put what is no file to be read there."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening, contextlib.chdir(path.parent):
                listening.bind(path.name)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path.name)
        case "large":
            with path.open("w") as file:
                file.truncate(5 << 30)
        case "binary":
            path.write_bytes(b"a\xff\n")


WORDS = {
    "pipe": "it is a pipe, not a regular file",
    "folder": "it is a folder, not a regular file",
    "socket": "it is a socket, not a regular file",
    "device": "it is a device, not a regular file",
    "loop": "Too many levels of symbolic links",
    "large": "it has more than 64 MiB, the limit for such a file",
    "binary": "it is not a UTF-8 text: byte 2 is 0xff",
}


@pytest.mark.parametrize("kind", WORDS)
def test_other_kinds_of_files_are_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A path that is no readable text file is refused at once, with a message instead of the system's number."""
    make_strange(tmp_path / "x", kind)
    with pytest.raises(OSError, match=r"^\[Errno") as refused:
        files.read_text(tmp_path / "x")
    assert refused.value.strerror == WORDS[kind]


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """No more is read than is allowed, though the file's size was smaller: files of /proc have size 0."""
    assert files.read_file("/proc/self/maps")
    with pytest.raises(OSError, match="more than 0 MiB"):
        files.read_file("/proc/self/maps", 100)


def test_a_pipe_that_the_shell_has_passed(tmp_path: Path) -> None:
    """`<(...)` of bash is read to its end, though its writer is slow, and no further than is allowed."""
    code = "import sys; from pytest_dtfperf.node import files; print(files.read_text(sys.argv[1], most_bytes=1000))"
    command = f"{sys.executable} -c {shlex.quote(code)} <(sleep 0.2; echo first; sleep 0.2; echo second)"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert ended.stdout == "first\nsecond\n\n"
    endless = subprocess.run(
        ["bash", "-c", command.replace("(sleep", "(yes; sleep")], capture_output=True, text=True, check=False
    )
    assert "it has more than 0 MiB" in endless.stderr


@pytest.mark.parametrize("kind", ["pipe", "folder", "socket", "device"])
def test_pipes_and_devices_are_not_replaced(tmp_path: Path, kind: str) -> None:
    """A pipe, folder, socket or device is not replaced by a file."""
    make_strange(tmp_path / "x", kind)
    with pytest.raises(OSError, match=f"it is a {kind}, which is not replaced"):
        write(tmp_path / "x", b"new")
    assert os.listdir(tmp_path) == ["x"]
