"""Files over HTTP into a folder that is complete for its readers, however often the network breaks on the way.

A checksum is one text: "sha256:<hex>" of all bytes, or "sha256/8388608:<hex>" of the joined digests of parts of so many bytes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from pytest_dtfperf.node.files import rename_durably
from pytest_dtfperf.node.retry import compute_pause_s

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Hash(Protocol):
        """The methods that all checksums have."""

        def update(self, data: bytes, /) -> None: ...
        def digest(self) -> bytes: ...


CHUNK_BYTES = 1 << 20
_CRC64_NVME = 0x9A6C9329AC4BC9B5  # the polynomial, bits reversed: NVM Express Base Specification 2.0, section 5.2.1.3.4


class Stopped(Exception):
    """The result is no longer needed."""


def matches(path: str, checksum: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Return whether the file's content has this checksum. Raises `OSError`, `ValueError` for an unknown kind, `Stopped`."""
    kind, _, expected = checksum.partition(":")
    name, _, part_bytes = kind.partition("/")
    with open(path, "rb") as file:
        if not part_bytes:
            found, _ = _digest(name, _chunks(file.read, None, stopped))
        else:
            found = _of_parts(name, file.read, int(part_bytes), stopped)
    return found.hex() == expected


def _of_parts(name: str, read: Callable[[int], bytes], part_bytes: int, stopped: Callable[[], bool]) -> bytes:
    digests = []
    while True:
        digest, length = _digest(name, _chunks(read, part_bytes, stopped))
        if length:
            digests.append(digest)
        if length < part_bytes:
            return _digest(name, iter([b"".join(digests)]))[0]


def _digest(name: str, chunks: Iterator[bytes]) -> tuple[bytes, int]:
    """Return the digest of all chunks, and how many bytes they were."""
    made, length = _KINDS[name](), 0
    for chunk in chunks:
        made.update(chunk)
        length += len(chunk)
    return made.digest(), length


def _chunks(read: Callable[[int], bytes], limit: int | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what is read, up to a limit."""
    rest = limit
    while rest != 0 and (chunk := read(CHUNK_BYTES if rest is None else min(CHUNK_BYTES, rest))):
        if stopped():
            raise Stopped
        rest = None if rest is None else rest - len(chunk)
        yield chunk


class _Crc32:
    """Zip's."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _Crc64Nvme:
    """The checksum that S3 computes for uploads without one. In Python some 10 MB/s, so it is the last resort."""

    _table: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._value = (1 << 64) - 1
        if not self._table:
            type(self)._table = tuple(map(_crc64_of_byte, range(256)))

    def update(self, data: bytes) -> None:
        value, table = self._value, self._table
        for byte in data:
            value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
        self._value = value

    def digest(self) -> bytes:
        return (self._value ^ ((1 << 64) - 1)).to_bytes(8, "big")


def _crc64_of_byte(value: int) -> int:
    for _ in range(8):
        value = (value >> 1) ^ (_CRC64_NVME if value & 1 else 0)
    return value


_KINDS: dict[str, Callable[[], Hash]] = {
    "sha256": hashlib.sha256,
    "sha1": lambda: hashlib.sha1(usedforsecurity=False),
    "md5": lambda: hashlib.md5(usedforsecurity=False),
    "crc32": _Crc32,
    "crc64nvme": _Crc64Nvme,
}
KINDS = tuple(_KINDS)


TRIES = 6  # in a row, without a single byte; the pauses between them add up to half a minute
_TICK_S = 0.1
_ANSWER_S = 30.0  # of silence, then the connection is taken for dead
_LONGEST_PAUSE_S = 16.0
_TRANSIENT = (408, 429, 500, 502, 503, 504)  # S3 answers 503 (SlowDown) to too many requests


class Trouble(Exception):
    """Why a file cannot be fetched, in a message without a URL."""


class _Interrupted(Exception):
    """A connection ended before its time: it may be tried again."""


class FetchJob:
    """Fetch files into a folder that is complete for its readers: each file appears there under its name once it is verified.

    `parallel` of them at once; one process per folder at a time, across the hosts of a shared file system, too.
    """

    def __init__(self, folder: str, files: Sequence[Mapping[str, Any]], *, parallel: int = 8) -> None:
        self.folder = folder
        self.bytes = sum(file["size"] for file in files)
        self.there = 0  # bytes, of those
        self.moved = 0  # a sign of life: grows with every piece that is read, from the network or the disk
        self.fetched = 0  # files that were not there before
        self.waiting = False  # another process fetches them
        self._files = files
        self._parallel = parallel
        self._counting = threading.Lock()
        self._stop = threading.Event()

    def run(self) -> None:
        """Fetch all files. Raises `Trouble`."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with self._alone() as alone:
                self._run(f"{self.folder}.parts" + ("" if alone else f".{os.uname().nodename}.{os.getpid()}"))
        except OSError as exc:
            raise Trouble(f"{self.folder}: {exc.strerror or exc}") from exc

    def _run(self, parts: str) -> None:
        missing = [file for file in self._files if not self._is_there(file)]
        self.there = self.bytes - sum(file["size"] for file in missing)
        if not missing:
            return
        os.makedirs(parts, mode=0o700, exist_ok=True)
        self._check_room(missing, parts)
        with ThreadPoolExecutor(self._parallel) as pool:
            running = [pool.submit(self._fetch, file, _part_of(parts, file["path"])) for file in missing]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            self._stop.set()  # nothing is left to do, or it would be in vain
            pool.shutdown(wait=True, cancel_futures=True)
        for future in sorted(done, key=running.index):
            future.result()
        shutil.rmtree(parts, ignore_errors=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Wait until no other process fetches the same; False where the file system knows no locks."""
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    alone = True
                    break
                except BlockingIOError:
                    self.waiting = True
                    time.sleep(_TICK_S)
                except OSError as exc:
                    if exc.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                        raise
                    alone = False
                    break
            self.waiting = False
            yield alone
        finally:
            os.close(lock)

    def _is_there(self, file: Mapping[str, Any]) -> bool:
        """Under its name are only files that were verified, so that the size is enough to know one by."""
        try:
            return os.stat(self._target_of(file)).st_size == int(file["size"])
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _target_of(self, file: Mapping[str, Any]) -> str:
        path: str = file["path"]
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise Trouble(f"{path!r} leads out of {self.folder}")
        return os.path.join(self.folder, path)

    def _check_room(self, missing: Sequence[Mapping[str, Any]], parts: str) -> None:
        begun = sum(entry.stat().st_size for entry in os.scandir(parts))
        needed = sum(file["size"] for file in missing) - begun
        free = shutil.disk_usage(parts).free
        if needed > free:
            raise Trouble(
                f"{self.folder} has room for {free / 1e9:.1f} GB, and {needed / 1e9:.1f} GB are to come. Remove data sets "
                "beside it that are not needed, or set `cache_dir` in clusters.toml to a larger disk"
            )

    # One file

    def _fetch(self, file: Mapping[str, Any], part: str) -> None:
        target = self._target_of(file)
        self._download(file, part)
        if not self._is_right(file, part):  # it may have been begun by a host that crashed: once from the start
            os.unlink(part)
            self._count(-file["size"])
            self._download(file, part)
            if not self._is_right(file, part):
                os.unlink(part)
                raise Trouble(f"{file['path']} arrives with another checksum than S3 has, twice. Upload it again")
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        rename_durably(part, target)
        with self._counting:
            self.fetched += 1

    def _is_right(self, file: Mapping[str, Any], part: str) -> bool:
        if os.stat(part).st_size != file["size"]:
            return False
        return not file["checksum"] or matches(part, file["checksum"], self._is_given_up)

    def _is_given_up(self) -> bool:
        self.moved += 1
        return self._stop.is_set()

    def _download(self, file: Mapping[str, Any], part: str) -> None:
        """Fetch all bytes that are still missing, in as many answers as it takes."""
        with open(part, "ab") as arrived:
            if arrived.tell() > file["size"]:
                arrived.truncate(0)
            self._count(os.fstat(arrived.fileno()).st_size)
            failures = 0
            while (have := os.fstat(arrived.fileno()).st_size) < file["size"]:
                try:
                    self._request(file, arrived, have)
                except _Interrupted as exc:
                    arrived.flush()
                    failures = 1 if os.fstat(arrived.fileno()).st_size > have else failures + 1
                    if failures == TRIES:
                        raise Trouble(f"{file['path']}: {exc}, {TRIES} times in a row") from exc
                    self._stop.wait(compute_pause_s(failures, 1.0, _LONGEST_PAUSE_S))
                arrived.flush()
                if self._stop.is_set():
                    raise Stopped

    def _request(self, file: Mapping[str, Any], arrived: Any, have: int) -> None:
        """What comes of the rest in one answer. Raises `_Interrupted` when that was not all."""
        with contextlib.closing(_answer(file, have)) as answer:
            if have and answer.status != http.client.PARTIAL_CONTENT:  # the server begins at the beginning despite the range
                arrived.truncate(0)
                self._count(-have)
                have = 0
            while have < file["size"] and not self._stop.is_set():
                try:
                    chunk = answer.read(min(CHUNK_BYTES, file["size"] - have))
                except (OSError, http.client.HTTPException) as exc:
                    raise _Interrupted(_format_error(exc)) from exc
                if not chunk:
                    raise _Interrupted("the connection ends early")
                arrived.write(chunk)
                have += len(chunk)
                self._count(len(chunk))

    def _count(self, arrived: int) -> None:
        with self._counting:
            self.there += arrived
            self.moved += 1


def _part_of(parts: str, path: str) -> str:
    """Where a file grows: always the same place, so that the next process finds what this one has begun."""
    return os.path.join(parts, hashlib.sha256(path.encode()).hexdigest()[:32])


def _answer(file: Mapping[str, Any], have: int) -> Any:
    """Return a connection that will bring the rest of a file. Raises `_Interrupted`, `Trouble`."""
    headers = {"If-Match": file["etag"]} if file.get("etag") else {}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(file["url"], headers=headers), timeout=_ANSWER_S)
    except urllib.error.HTTPError as exc:
        with exc:
            message = f"HTTP {exc.code}{_body_of(exc)}"
            if exc.code in _TRANSIENT:
                raise _Interrupted(message) from exc
            if exc.code == http.client.PRECONDITION_FAILED:
                message = "it was replaced while it was being fetched. Start again"
            raise Trouble(f"{file['path']}: {message}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise _Interrupted(_format_error(exc)) from exc


def _body_of(error: urllib.error.HTTPError) -> str:
    """S3's own code and message."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        text = error.read(4096).decode(errors="replace")
        found = [re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message")]
        return "".join(f": {each.group(1)}" for each in found if each)
    return ""


def _format_error(error: Exception) -> str:
    """Return the message of a network error; an HTTPException's own message may hold the URL."""
    reason = getattr(error, "reason", error)
    return str(reason) if isinstance(reason, OSError) else type(error).__name__
