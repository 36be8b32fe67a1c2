"""Write files that exist completely or not at all, despite concurrent access and kills; read files that users name safely."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO

_MARK = ".unfinished"
_ABANDONED_S = 3600.0  # writing one file never takes so long
MOST_BYTES = 64 << 20  # of a file that people write, or that is kept for years: a thousand times what such files have
_PASSED_BY_SHELL = ("/dev/fd/", "/proc/self/fd/")  # --clusters-file=<(...)
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def read_file(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, without waiting for another process, and without filling the memory.

    A pipe is read only if the shell has passed it as one of this process's open files, as bash does for `<(...)`.

    Raises:
        OSError: The file cannot be opened, is no regular file, or has more than `most_bytes` bytes. `strerror` has the reason.
    """
    _check_kind(os.stat(path), path)  # before it is opened: a device may act on that
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        _check_kind(found, path)
        if stat.S_ISFIFO(found.st_mode):
            os.set_blocking(handle, True)
        if found.st_size > most_bytes:
            raise _too_large(most_bytes, path)
        with open(handle, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)  # it may grow during the read, and files of /proc have no size
        if len(content) > most_bytes:
            raise _too_large(most_bytes, path)
        return content
    finally:
        os.close(handle)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file, as `read_file` does. Raises `OSError`, also where it is no UTF-8."""
    content = read_file(path, most_bytes)
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as exc:
        message = f"it is no text in UTF-8: byte {exc.start + 1} is 0x{content[exc.start]:02x}"
        raise OSError(errno.EILSEQ, message, os.fspath(path)) from exc


def is_regular_or_new(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may take this name: nothing is there, a regular file, or a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def kind_of(mode: int) -> str:
    """Return what a file is by its mode, as people call it: "a pipe"."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def _check_kind(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    by_shell = stat.S_ISFIFO(found.st_mode) and os.fspath(path).startswith(_PASSED_BY_SHELL)
    if not stat.S_ISREG(found.st_mode) and not by_shell:
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"it is {kind_of(found.st_mode)}, and no regular file", os.fspath(path))


def _too_large(most_bytes: int, path: str | os.PathLike[str]) -> OSError:
    return OSError(
        errno.EFBIG, f"it has more than {most_bytes >> 20} MiB, the most that is read of such a file", os.fspath(path)
    )


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Write a file that takes the place of `path`, or of the link there, once the block has ended well; outlives a power cut.

    Raises `OSError` where it cannot be written, a full disk included, or where a pipe, a device or a folder has the name; what
    was there is there still. Two that write at once need no lock: one of both is found afterwards. What a killed one has
    left goes with a later one.
    """
    if not is_regular_or_new(path):
        raise OSError(errno.EINVAL, f"it is {kind_of(os.stat(path).st_mode)}, which is not replaced", os.fspath(path))
    folder, name = os.path.split(os.path.abspath(path))
    _sweep(folder, f".{name}.")
    unfinished = os.path.join(folder, f".{name}.{secrets.token_hex(4)}{_MARK}")
    try:
        with open(unfinished, "xb") as file:
            yield file
        put(unfinished, path)
    finally:
        with suppress(OSError):
            os.unlink(unfinished)


def put(finished: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Give a file of the same disk its name, once all of it is on the disk. Raises `OSError`."""
    _sync(finished)
    os.replace(finished, path)
    with suppress(OSError):  # not every file system can; where it can, the name, too, outlives a power cut
        _sync(os.path.dirname(os.path.abspath(path)))


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: str, begin: str) -> None:
    with suppress(OSError):  # another's sweep was faster
        for each in os.scandir(folder):
            if each.name.startswith(begin) and each.name.endswith(_MARK) and time.time() - each.stat().st_mtime > _ABANDONED_S:
                os.unlink(each)
