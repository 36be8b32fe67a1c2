"""Upload and download of many files at once, large ones in parts, with boto3's transfer manager.

A transfer may be interrupted and repeated: a file that exists with the same size and checksum is not sent again. Uploads carry
the SHA-256 of their content, which is compared with what S3 has received. Downloads get their names once their checksum is
verified.
"""

import base64
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from s3transfer.exceptions import CancelledError
from s3transfer.futures import TransferFuture
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber
from s3transfer.utils import ChunksizeAdjuster

from pytest_dtfperf.clusters.locks import lock_file
from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.node.boot import get_cache_folder
from pytest_dtfperf.node.files import rename_durably
from pytest_dtfperf.staging.bucket import DIGEST, PARALLEL, Bucket, StoredFile, translate_errors
from pytest_dtfperf.staging.on_host import has_checksum

PARTIAL = ".dtfperf-partial"  # the folder of incomplete files
HASHING = 4  # files at a time, as reading is slower than hashing
_CHUNK_BYTES = 1 << 20

Show = Callable[[int, int], object]  # bytes done, and their total


class Meter:
    """A thread-safe counter of bytes."""

    def __init__(self, show: Show, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self._show = show
        self._done = 0
        self._lock = threading.Lock()
        show(0, total_bytes)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._show(self._done, self.total_bytes)


@dataclass(frozen=True)
class Checksums:
    """The SHA-256 of a file's content, and the one that S3 computes of the parts it receives."""

    size: int
    file_sha256: str  # hexadecimal
    parts_sha256: str  # base64


@dataclass(frozen=True)
class UploadFilter:
    """Decides which files must be uploaded. Called from several threads."""

    bucket: Bucket
    part_bytes: int
    meter: Meter
    given_up: Callable[[], bool]

    def compute_checksums(self, local: Path, stored: StoredFile | None) -> Checksums | None:
        """Return the checksums of a file; None if S3 already has it."""
        try:
            if stored and stored.size == local.stat().st_size and self._is_same(local, stored):
                self.meter.add(stored.size)
                return None
            return self._compute_checksums(local)
        except OSError as exc:
            raise DataError(f"{local} cannot be read: {exc.strerror or exc}") from exc

    def _is_same(self, local: Path, stored: StoredFile) -> bool:
        checksum = self.bucket.checksum(stored)
        return checksum is not None and has_checksum(str(local), checksum, self.given_up)

    def _compute_checksums(self, local: Path) -> Checksums:
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


@contextmanager
def lock_transfer(name: str, what: str) -> Iterator[Path]:
    """Lock the transfer on this machine. Yields the path of a journal, which remains if this process is killed."""
    folder = Path(get_cache_folder(), "transfers")
    with translate_disk_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = hashlib.sha256(name.encode()).hexdigest()[:24]
    with ExitStack() as held:
        try:
            held.enter_context(lock_file(folder / f"{stem}.lock", within_s=0.0))
        except BlockingIOError:
            raise DataError(f"another {what} runs on this machine. Wait for its end, or end it") from None
        except OSError as exc:
            raise DataError(
                f"{folder} cannot be written: {exc.strerror}; make room on that disk, or set XDG_CACHE_HOME"
            ) from exc
        yield folder / f"{stem}.uploads"


@contextmanager
def keep_journal(bucket: Bucket, journal: Path) -> Iterator[None]:
    """Record every multipart upload before its first part, as S3 keeps and charges for parts of aborted uploads."""
    writing = threading.Lock()

    def note(parsed: dict[str, Any], **kwargs: Any) -> None:
        if "UploadId" in parsed:
            try:
                with writing, translate_disk_errors(journal), journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([parsed["UploadId"], parsed["Key"]]) + "\n")
            except DataError:  # otherwise its parts would remain
                bucket.client.abort_multipart_upload(
                    Bucket=bucket.location.bucket, Key=parsed["Key"], UploadId=parsed["UploadId"]
                )
                raise

    event = "after-call.s3.CreateMultipartUpload"
    bucket.client.meta.events.register(event, note, unique_id="dtfperf-journal")
    try:
        yield
    finally:
        bucket.client.meta.events.unregister(event, unique_id="dtfperf-journal")
    journal.unlink(missing_ok=True)


def abort_abandoned(bucket: Bucket, journal: Path) -> None:
    """Abort the multipart uploads of a push that was killed here."""
    with suppress(FileNotFoundError):
        for line in journal.read_text(encoding="utf-8").splitlines():
            # The last line may be incomplete, and an upload may no longer exist.
            with translate_errors(bucket.location), suppress(ValueError, bucket.client.exceptions.NoSuchUpload):
                upload, key = json.loads(line)
                bucket.client.abort_multipart_upload(Bucket=bucket.location.bucket, Key=key, UploadId=upload)
        journal.unlink()


PART_BYTES = 16 << 20  # size of the parts of larger files, each of which may be repeated


@dataclass(frozen=True)
class TransferResult:
    """The result of a transfer."""

    files: int
    bytes: int
    sent: int  # files that were transferred
    unverified: Sequence[str] = ()  # files without a checksum that can be computed here


def push(bucket: Bucket, local: Path, *, show: Show, part_bytes: int = PART_BYTES) -> TransferResult:
    """Upload a file, or all files below a folder. Raises `UsageError`, `DataError`."""
    files = list_local_files(local)
    with translate_disk_errors(local):
        meter = Meter(show, sum(path.stat().st_size for path in files.values()))
    with lock_transfer(f"push {bucket.location}", f"dtfperf data push to {bucket.location}") as journal:
        abort_abandoned(bucket, journal)
        stored = {file.path: file for file in bucket.list_files()}
        sent: list[tuple[str, Checksums]] = []
        with keep_journal(bucket, journal), _open_manager(bucket, part_bytes) as manager, start_threads() as (pool, given_up):
            compute_checksums = UploadFilter(bucket, part_bytes, meter, given_up).compute_checksums
            futures = []
            for path, found in zip(files, pool.map(compute_checksums, files.values(), map(stored.get, files)), strict=True):
                if found is not None:
                    future = manager.upload(
                        str(files[path]),
                        bucket.location.bucket,
                        bucket.location.key(path),
                        extra_args=_make_upload_arguments(bucket, found),
                        subscribers=[_ProgressSubscriber(meter)],
                    )
                    futures.append((path, future))
                    sent.append((path, found))
            for path, future in futures:
                _wait_for(bucket, path, future)
        _verify_sent(bucket, sent)
    return TransferResult(len(files), meter.total_bytes, len(sent))


def pull(bucket: Bucket, local: Path, *, show: Show, part_bytes: int = PART_BYTES) -> TransferResult:
    """Download all files below the prefix into a folder. Raises `DataError`."""
    files = bucket.list_files()
    if not files:
        raise DataError(f"there is nothing below {bucket.location}/")
    checksums = dict(zip((file.path for file in files), bucket.checksums(files), strict=True))
    meter = Meter(show, sum(file.size for file in files))
    with (
        lock_transfer(f"pull {local.absolute()}", f"dtfperf data pull into {local}"),
        translate_disk_errors(local),
        _make_partial_folder(local) as partial,
    ):
        missing = find_missing(local, files, checksums, meter)
        with _open_manager(bucket, part_bytes) as manager:
            futures = []
            for number, file in enumerate(missing):
                key, part = bucket.location.key(file.path), str(partial / str(number))
                future = manager.download(bucket.location.bucket, key, part, subscribers=[_ProgressSubscriber(meter)])
                futures.append((file, part, future))
            for file, part, future in futures:
                _wait_for(bucket, file.path, future)
                _verify_and_rename(bucket, file, part, checksums[file.path], local)
    unverified = tuple(path for path, checksum in checksums.items() if checksum is None)
    return TransferResult(len(files), meter.total_bytes, len(missing), unverified)


@contextmanager
def _make_partial_folder(local: Path) -> Iterator[Path]:
    """Yield a folder for incomplete files, on the same disk and without those of a killed pull."""
    partial = local / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _verify_and_rename(bucket: Bucket, file: StoredFile, part: str, checksum: str | None, local: Path) -> None:
    """Give a downloaded file its name after verifying it."""
    if os.stat(part).st_size != file.size or (checksum and not has_checksum(part, checksum)):
        raise DataError(f"{bucket.location}: {file.path} has arrived with another checksum than S3 has. Upload it again")
    (local / file.path).parent.mkdir(parents=True, exist_ok=True)
    rename_durably(part, local / file.path)


@contextmanager
def _open_manager(bucket: Bucket, part_bytes: int) -> Iterator[TransferManager]:
    """Yield a transfer manager, which aborts all uploads if the block fails, also by Ctrl-C."""
    config = TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_request_concurrency=PARALLEL,
        num_download_attempts=5,
    )
    with TransferManager(bucket.client, config) as manager:
        yield manager


def _make_upload_arguments(bucket: Bucket, found: Checksums) -> dict[str, Any]:
    encryption = {"ServerSideEncryption": bucket.encryption} if bucket.encryption else {}
    return {"ChecksumAlgorithm": "SHA256", "Metadata": {DIGEST: found.file_sha256}, **encryption}


def _wait_for(bucket: Bucket, path: str, future: TransferFuture) -> None:
    with translate_errors(bucket.location):
        try:
            future.result()
        except CancelledError as exc:
            raise DataError(f"{bucket.location}: {path} was cancelled: {exc}") from exc
        except (BotoCoreError, ClientError, DataError):
            raise
        except Exception as exc:  # any error of the manager's threads
            raise DataError(f"{bucket.location}: {path}: {exc}") from exc


def _verify_sent(bucket: Bucket, sent: Sequence[tuple[str, Checksums]]) -> None:
    """Check that S3 has received what was read. Raises `DataError`."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for path, wrong in pool.map(lambda each: (each[0], _find_difference(bucket, *each)), sent):
            if wrong:
                raise DataError(f"{bucket.location}: {path} differs from the local file: {wrong}. Push it again")


def _find_difference(bucket: Bucket, path: str, found: Checksums) -> str | None:
    with translate_errors(bucket.location):
        head = bucket.client.head_object(Bucket=bucket.location.bucket, Key=bucket.location.key(path), ChecksumMode="ENABLED")
    if head["ContentLength"] != found.size:
        return f"it has {head['ContentLength']} bytes instead of {found.size}"
    received = head.get("ChecksumSHA256", "").partition("-")[0]
    return None if received == found.parts_sha256 else "it has another checksum, or has changed during the transfer"


class _ProgressSubscriber(BaseSubscriber):
    """Adds the transferred bytes to the meter; negative ones if a part is sent again."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_progress(self, future: TransferFuture, bytes_transferred: int, **kwargs: Any) -> None:
        self._meter.add(bytes_transferred)
