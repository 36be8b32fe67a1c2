"""Write files whole or not at all, despite concurrent access and kills; read files that users name safely."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

_MARK = ".unfinished"
_ABANDONED_S = 3600.0  # writing one file never takes so long
MOST_BYTES = 64 << 20  # a thousand times the size of files that people write or that are kept for years
_PASSED_BY_SHELL = ("/dev/fd/", "/proc/self/fd/")  # --clusters-file=<(...)
_KINDS = {
    stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip


def read_file(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file, without waiting for another process and without exhausting the memory.

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
            raise _make_size_error(most_bytes, path)
        with open(handle, "rb", closefd=False) as file:
            content = file.read(most_bytes + 1)  # it may grow during the read, and files of /proc have no size
        if len(content) > most_bytes:
            raise _make_size_error(most_bytes, path)
        return content
    finally:
        os.close(handle)


def read_text(path: str | os.PathLike[str], encoding: str = "utf-8", most_bytes: int = MOST_BYTES) -> str:
    """Return the text of a regular file, as `read_file` does. Raises `OSError`, also if it is not UTF-8."""
    content = read_file(path, most_bytes)
    try:
        return content.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as exc:
        message = f"it is not a UTF-8 text: byte {exc.start + 1} is 0x{content[exc.start]:02x}"
        raise OSError(errno.EILSEQ, message, os.fspath(path)) from exc


def is_regular_or_new(path: str | os.PathLike[str]) -> bool:
    """Return whether a file may be written there: nothing exists, or a regular file, or a link to one."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:
        return True


def format_kind(mode: int) -> str:
    """Return the kind of a file by its mode, for messages: "a pipe"."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def _check_kind(found: os.stat_result, path: str | os.PathLike[str]) -> None:
    by_shell = stat.S_ISFIFO(found.st_mode) and os.fspath(path).startswith(_PASSED_BY_SHELL)
    if not stat.S_ISREG(found.st_mode) and not by_shell:
        code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
        raise OSError(code, f"it is {format_kind(found.st_mode)}, not a regular file", os.fspath(path))


def _make_size_error(most_bytes: int, path: str | os.PathLike[str]) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most_bytes >> 20} MiB, the limit for such a file", os.fspath(path))


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a file that replaces `path`, or the target of the link there, when the block ends; durable after a power cut.

    If several processes write at once, one of the files remains. A later call removes the files of killed processes.

    Raises:
        OSError: The file cannot be written, or `path` is a pipe, a device or a folder. `path` is unchanged.
    """
    if not is_regular_or_new(path):
        raise OSError(errno.EINVAL, f"it is {format_kind(os.stat(path).st_mode)}, which is not replaced", os.fspath(path))
    folder, name = os.path.split(os.path.abspath(path))
    _sweep(folder, f".{name}.")
    unfinished = os.path.join(folder, f".{name}.{os.urandom(4).hex()}{_MARK}")
    try:
        with open(unfinished, "xb") as file:
            yield file
        rename_durably(unfinished, path)
    finally:
        with suppress(OSError):
            os.unlink(unfinished)


def rename_durably(finished: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Flush a finished file to disk, and rename it on the same file system. Raises `OSError`."""
    _sync(finished)
    os.replace(finished, path)
    with suppress(OSError):  # makes the name durable, too, on file systems that can
        _sync(os.path.dirname(os.path.abspath(path)))


def _sync(path: str | os.PathLike[str]) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sweep(folder: str, begin: str) -> None:
    with suppress(OSError):  # another process was faster
        for each in os.scandir(folder):
            if each.name.startswith(begin) and each.name.endswith(_MARK) and time.time() - each.stat().st_mtime > _ABANDONED_S:
                os.unlink(each)
