"""Fetch files on a host, before its first training: `python -m pytest_dtfperf.staging.on_host`.

The controller sends one line per file (path, size, checksum and a URL that is valid for some hours), then "fetch" with the name
of the folder in the user's cache. The host reports its progress, and at the end "staged" or "failed". URLs are secrets: they
come on stdin, stay in memory and are in no message. As with an agent, the end of stdin or its silence ends this process; the
next one continues with the bytes that have arrived. Files come over HTTP into a folder that is always consistent for its
readers, despite interrupted connections.

A checksum is a text: "sha256:<hex>" of all bytes, or "sha256/8388608:<hex>" of the joined digests of parts of that many bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import hashlib
import http.client
import os
import re
import select
import shutil
import threading
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from pytest_dtfperf.node import boot, wire
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


def has_checksum(path: str, checksum: str, stopped: Callable[[], bool] = lambda: False) -> bool:
    """Return whether a file has this checksum. Raises `OSError`, `Stopped`, or `ValueError` for an unknown kind."""
    kind, _, expected = checksum.partition(":")
    name, _, part_bytes = kind.partition("/")
    with open(path, "rb") as file:
        if not part_bytes:
            found, _ = _digest(name, _read_chunks(file.read, None, stopped))
        else:
            found = _digest_parts(name, file.read, int(part_bytes), stopped)
    return found.hex() == expected


def _digest_parts(name: str, read: Callable[[int], bytes], part_bytes: int, stopped: Callable[[], bool]) -> bytes:
    digests = []
    while True:
        digest, length = _digest(name, _read_chunks(read, part_bytes, stopped))
        if length:
            digests.append(digest)
        if length < part_bytes:
            return _digest(name, iter([b"".join(digests)]))[0]


def _digest(name: str, chunks: Iterator[bytes]) -> tuple[bytes, int]:
    """Return the digest of all chunks, and their length in bytes."""
    made, length = _KINDS[name](), 0
    for chunk in chunks:
        made.update(chunk)
        length += len(chunk)
    return made.digest(), length


def _read_chunks(read: Callable[[int], bytes], limit: int | None, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield chunks up to a limit. Raises `Stopped`."""
    rest = limit
    while rest != 0 and (chunk := read(CHUNK_BYTES if rest is None else min(CHUNK_BYTES, rest))):
        if stopped():
            raise Stopped
        rest = None if rest is None else rest - len(chunk)
        yield chunk


class _Crc32:
    """The CRC-32 of zlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class _Crc64Nvme:
    """The CRC that S3 computes for uploads without a checksum. It is the last choice, with some 10 MB/s in Python."""

    _table: tuple[int, ...] = ()

    def __init__(self) -> None:
        self._value = (1 << 64) - 1
        if not self._table:
            type(self)._table = tuple(map(_compute_crc64, range(256)))

    def update(self, data: bytes) -> None:
        value, table = self._value, self._table
        for byte in data:
            value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
        self._value = value

    def digest(self) -> bytes:
        return (self._value ^ ((1 << 64) - 1)).to_bytes(8, "big")


def _compute_crc64(value: int) -> int:
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


TRIES = 6  # in a row without any byte; the pauses between them add up to half a minute
_TICK_S = 0.1
_ANSWER_S = 30.0  # time-out of a silent connection
_LONGEST_PAUSE_S = 16.0
_TRANSIENT = (408, 429, 500, 502, 503, 504)  # S3 answers 503 (SlowDown) to too many requests


class FetchError(Exception):
    """A file cannot be fetched; the message has no URL."""


class _Interrupted(Exception):
    """A connection ended early, so that another attempt may help."""


class FetchJob:
    """A download of files into a folder, in which each file appears under its name once it is verified.

    `parallel` files are fetched at once. One process per folder works at a time, also across hosts with a shared file system.
    """

    def __init__(self, folder: str, files: Sequence[Mapping[str, Any]], *, parallel: int = 8) -> None:
        self.folder = folder
        self.bytes = sum(file["size"] for file in files)
        self.there = 0  # bytes that have arrived
        self.moved = 0  # grows with every chunk that is read from the network or the disk
        self.fetched = 0  # files that were not there before
        self.waiting = False  # another process fetches them
        self._files = files
        self._parallel = parallel
        self._counting = threading.Lock()
        self._stop = threading.Event()

    def run(self) -> None:
        """Fetch all files. Raises `FetchError`."""
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            with self._lock() as alone:
                self._run(f"{self.folder}.parts" + ("" if alone else f".{os.uname().nodename}.{os.getpid()}"))
        except OSError as exc:
            raise FetchError(f"{self.folder}: {exc.strerror or exc}") from exc

    def _run(self, parts: str) -> None:
        missing = [file for file in self._files if not self._is_there(file)]
        self.there = self.bytes - sum(file["size"] for file in missing)
        if not missing:
            return
        os.makedirs(parts, mode=0o700, exist_ok=True)
        self._check_room(missing, parts)
        with ThreadPoolExecutor(self._parallel) as pool:
            running = [pool.submit(self._fetch, file, _get_part_path(parts, file["path"])) for file in missing]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            self._stop.set()  # all files are fetched, or one has failed
            pool.shutdown(wait=True, cancel_futures=True)
        for future in sorted(done, key=running.index):
            future.result()
        shutil.rmtree(parts, ignore_errors=True)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[bool]:
        """Wait until no other process fetches into the folder. Yields False if the file system has no locks."""
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
        """Return whether a file is complete. Its size suffices, as only verified files have their names."""
        try:
            return os.stat(self._get_target(file)).st_size == int(file["size"])
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _get_target(self, file: Mapping[str, Any]) -> str:
        path: str = file["path"]
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise FetchError(f"{path!r} leads out of {self.folder}")
        return os.path.join(self.folder, path)

    def _check_room(self, missing: Sequence[Mapping[str, Any]], parts: str) -> None:
        begun = sum(entry.stat().st_size for entry in os.scandir(parts))
        needed = sum(file["size"] for file in missing) - begun
        free = shutil.disk_usage(parts).free
        if needed > free:
            raise FetchError(
                f"{self.folder} has room for {free / 1e9:.1f} GB, but {needed / 1e9:.1f} GB are needed. Remove other data sets "
                "there, or set `cache_dir` in clusters.toml to a larger disk"
            )

    # One file

    def _fetch(self, file: Mapping[str, Any], part: str) -> None:
        target = self._get_target(file)
        self._download(file, part)
        if not self._is_valid(file, part):  # the part may be of a host that crashed: fetch it once from the start
            os.unlink(part)
            self._count(-file["size"])
            self._download(file, part)
            if not self._is_valid(file, part):
                os.unlink(part)
                raise FetchError(f"{file['path']} has arrived twice with another checksum than S3 has. Upload it again")
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        rename_durably(part, target)
        with self._counting:
            self.fetched += 1

    def _is_valid(self, file: Mapping[str, Any], part: str) -> bool:
        if os.stat(part).st_size != file["size"]:
            return False
        return not file["checksum"] or has_checksum(part, file["checksum"], self._is_stopped)

    def _is_stopped(self) -> bool:
        self.moved += 1
        return self._stop.is_set()

    def _download(self, file: Mapping[str, Any], part: str) -> None:
        """Fetch all missing bytes, with as many requests as necessary."""
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
                        raise FetchError(f"{file['path']}: {exc}, {TRIES} times in a row") from exc
                    self._stop.wait(compute_pause_s(failures, 1.0, _LONGEST_PAUSE_S))
                arrived.flush()
                if self._stop.is_set():
                    raise Stopped

    def _request(self, file: Mapping[str, Any], arrived: Any, have: int) -> None:
        """Fetch the rest of a file with one request. Raises `_Interrupted` if it ends early."""
        with contextlib.closing(_open_rest(file, have)) as answer:
            if have and answer.status != http.client.PARTIAL_CONTENT:  # the server ignores the range
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


def _get_part_path(parts: str, path: str) -> str:
    """Return the path of an incomplete file. It is constant, so that a later process continues it."""
    return os.path.join(parts, hashlib.sha256(path.encode()).hexdigest()[:32])


def _open_rest(file: Mapping[str, Any], have: int) -> Any:
    """Return a response with the rest of a file. Raises `_Interrupted`, `FetchError`."""
    headers = {"If-Match": file["etag"]} if file.get("etag") else {}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(file["url"], headers=headers), timeout=_ANSWER_S)
    except urllib.error.HTTPError as exc:
        with exc:
            message = f"HTTP {exc.code}{_read_error_body(exc)}"
            if exc.code in _TRANSIENT:
                raise _Interrupted(message) from exc
            if exc.code == http.client.PRECONDITION_FAILED:
                message = "it was replaced during the transfer. Start again"
            raise FetchError(f"{file['path']}: {message}") from exc
    except (OSError, http.client.HTTPException) as exc:
        raise _Interrupted(_format_error(exc)) from exc


def _read_error_body(error: urllib.error.HTTPError) -> str:
    """Return S3's own code and message."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        text = error.read(4096).decode(errors="replace")
        found = [re.search(f"<{tag}>([^<]*)</{tag}>", text) for tag in ("Code", "Message")]
        return "".join(f": {each.group(1)}" for each in found if each)
    return ""


def _format_error(error: Exception) -> str:
    """Return the message of a network error. That of an HTTPException may contain the URL, and is left out."""
    reason = getattr(error, "reason", error)
    return str(reason) if isinstance(reason, OSError) else type(error).__name__


BEAT_S = 1.0  # how often the host reports its progress


class FetchProcess:
    """The fetch process: orders in, events out. One thread writes events, others fetch."""

    def __init__(self, index: int, heartbeat_timeout_s: float) -> None:
        self._index = index
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._outbox = wire.Outbox(1)
        self._files: list[Mapping[str, Any]] = []
        self._job: FetchJob | None = None
        self._over: Callable[[], None] | None = None  # reports the result
        self._reported = False

    def serve(self) -> None:
        """Execute orders until the end of stdin, or until the controller is silent for too long."""
        self._emit("hello")
        lines = wire.Lines()
        received = beat = time.monotonic()
        while True:
            if select.select([0], [], [], _TICK_S)[0]:
                data = os.read(0, 1 << 16)
                if not data:
                    return
                received = time.monotonic()
                for line in lines.feed(data):
                    self._execute(wire.decode(line))
            now = time.monotonic()
            if now - received > self._heartbeat_timeout_s:
                return
            self._outbox.flush()
            if self._over and not self._reported:
                self._reported = True
                self._over()
            elif self._job and not self._reported and now - beat >= BEAT_S and not self._outbox:
                beat = now
                self._emit("progress", bytes=self._job.there, moved=self._job.moved, waiting=self._job.waiting)

    def _execute(self, order: Mapping[str, Any]) -> None:
        match order["order"]:
            case "file":
                self._files.append(order["file"])
            case "fetch":
                self._job = FetchJob(
                    os.path.join(boot.get_cache_folder(), "data", order["folder"]), self._files, parallel=order["parallel"]
                )
                threading.Thread(target=self._run_job, args=(self._job,), daemon=True).start()

    def _run_job(self, job: FetchJob) -> None:
        try:
            job.run()
        except Exception as exc:  # the controller waits for a result in any case
            message = str(exc) if isinstance(exc, FetchError) else f"{type(exc).__name__} in {job.folder}"
            self._over = lambda: self._emit("failed", reason=message)
        else:
            self._over = lambda: self._emit("staged", folder=job.folder, fetched=job.fetched, bytes=job.bytes)

    def _emit(self, event: str, **data: Any) -> None:
        self._outbox.put(wire.encode({"event": event, "host": self._index, **data}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--heartbeat-timeout-s", type=float, default=15.0, help="exit when the controller is silent for so many seconds"
    )
    args = parser.parse_args()
    with contextlib.suppress(BrokenPipeError):
        FetchProcess(int(os.environ.get("DTFPERF_HOST_INDEX", "0")), args.heartbeat_timeout_s).serve()
    os._exit(0)  # without waiting for threads that wait for a network or a lock


if __name__ == "__main__":
    main()
