"""Local files: their checksums, and which of them are missing in S3, or here."""

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from s3transfer.utils import ChunksizeAdjuster

from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.staging.bucket import Bucket, StoredFile
from pytest_dtfperf.staging.on_host.job import has_checksum

PARTIAL = ".dtfperf-partial"  # the folder of incomplete files
HASHING = 4  # files at a time, as reading is slower than hashing
_CHUNK_BYTES = 1 << 20

Show = Callable[[int, int], object]  # bytes done, and their total


class Meter:
    """A thread-safe counter of bytes."""

    def __init__(self, show: Show, of: int) -> None:
        self.of = of
        self._show = show
        self._done = 0
        self._lock = threading.Lock()
        show(0, of)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._show(self._done, self.of)


@dataclass(frozen=True)
class Checksums:
    """The SHA-256 of a file's content, and the one that S3 computes of the parts it receives."""

    size: int
    whole: str  # hexadecimal
    received: str  # base64


@dataclass(frozen=True)
class UploadFilter:
    """Decides which files must be uploaded. Called from several threads."""

    bucket: Bucket
    part_bytes: int
    meter: Meter
    given_up: Callable[[], bool]

    def sum(self, local: Path, there: StoredFile | None) -> Checksums | None:
        """Return the checksums of a file; None if S3 already has it."""
        try:
            if there and there.size == local.stat().st_size and self._is_same(local, there):
                self.meter.add(there.size)
                return None
            return self._sum(local)
        except OSError as exc:
            raise DataError(f"{local} cannot be read: {exc.strerror or exc}") from exc

    def _is_same(self, local: Path, there: StoredFile) -> bool:
        checksum = self.bucket.checksum(there)
        return checksum is not None and has_checksum(str(local), checksum, self.given_up)

    def _sum(self, local: Path) -> Checksums:
        size = local.stat().st_size
        part_bytes = ChunksizeAdjuster().adjust_chunksize(self.part_bytes, size)  # as boto3 will do
        whole, parts, room = hashlib.sha256(), [hashlib.sha256()], part_bytes
        with local.open("rb") as file:
            while (chunk := file.read(min(_CHUNK_BYTES, room or part_bytes))) and not self.given_up():
                if not room:
                    parts.append(hashlib.sha256())
                    room = part_bytes
                whole.update(chunk)
                parts[-1].update(chunk)
                room -= len(chunk)
        received = hashlib.sha256(b"".join(part.digest() for part in parts)) if size >= self.part_bytes else parts[0]
        return Checksums(size, whole.hexdigest(), base64.b64encode(received.digest()).decode())


@contextmanager
def start_threads() -> Iterator[tuple[ThreadPoolExecutor, Callable[[], bool]]]:
    """Yield a pool of threads for hashing, and a function that returns whether their result is no longer needed."""
    given_up = threading.Event()
    pool = ThreadPoolExecutor(HASHING)
    try:
        yield pool, given_up.is_set
    finally:
        given_up.set()
        pool.shutdown(wait=True, cancel_futures=True)


def list_local_files(local: Path) -> dict[str, Path]:
    """Return files by their path below the folder. Links to folders are not followed, as they may form a loop."""
    if local.is_file():
        return {local.name: local}
    if not local.is_dir():
        raise UsageError(f"there is no file or folder {local}")
    found = {}
    for folder, folders, names in os.walk(local):
        folders[:] = sorted(name for name in folders if name != PARTIAL)
        for path in (Path(folder, name) for name in sorted(names)):
            if path.is_file():  # neither a pipe nor a link that leads nowhere
                found[path.relative_to(local).as_posix()] = path
    if not found:
        raise UsageError(f"there is no file in {local}")
    return found


def find_missing(
    local: Path, files: Sequence[StoredFile], checksums: Mapping[str, str | None], meter: Meter
) -> list[StoredFile]:
    """Return the files of which there is no identical one here."""

    def is_there(file: StoredFile) -> bool:
        target, checksum = local / file.path, checksums[file.path]
        if not target.is_file() or target.stat().st_size != file.size or checksum is None:
            return False
        return has_checksum(str(target), checksum, given_up)

    with start_threads() as (pool, given_up):
        found = []
        for file, there in zip(files, pool.map(is_there, files), strict=True):
            if there:
                meter.add(file.size)
            else:
                found.append(file)
        return found


@contextmanager
def translate_disk_errors(target: Path) -> Iterator[None]:
    """Raise the disk's errors in the block as `DataError` with a plain message."""
    try:
        yield
    except OSError as exc:
        raise DataError(f"{exc.filename or target}: {exc.strerror or exc}") from exc
