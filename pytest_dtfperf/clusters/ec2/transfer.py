"""Files to S3 and from it, many at once and large ones in parts, with boto3's transfer manager.

Either way may be broken off and begun again: a file that is there with the same size and checksum is not sent twice. What is
sent carries the SHA-256 of its content, and is compared with what S3 has received; what is fetched appears under its name once
its checksum is right.
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
from filelock import FileLock, Timeout
from s3transfer.exceptions import CancelledError
from s3transfer.futures import TransferFuture
from s3transfer.manager import TransferConfig, TransferManager
from s3transfer.subscribers import BaseSubscriber
from s3transfer.utils import ChunksizeAdjuster

from pytest_dtfperf.clusters.ec2.bucket import DIGEST, PARALLEL, Bucket, Stored, told
from pytest_dtfperf.clusters.ec2.remembered import cache_folder
from pytest_dtfperf.errors import DataError, UsageError

PART_BYTES = 16 << 20  # larger files travel in parts of this size, each on its own and again if need be
HASHING = 4  # files at a time: reading is slower than hashing
PARTIAL = ".dtfperf-partial"  # where files grow that are being fetched
_CHUNK_BYTES = 1 << 20

Matches = Callable[[str, str, Callable[[], bool]], bool]  # whether a file has a checksum, unless it is given up meanwhile
Show = Callable[[int, int], object]  # bytes done, of how many


@dataclass(frozen=True)
class Done:
    """What came of it."""

    files: int
    bytes: int
    sent: int  # files that were not there before
    unverified: Sequence[str] = ()  # of which S3 knows no checksum that can be computed here


def push(bucket: Bucket, local: Path, *, matches: Matches, show: Show, part_bytes: int = PART_BYTES) -> Done:
    """Upload a file, or all files below a folder. Raises `UsageError`, `DataError`."""
    files = _local_files(local)
    meter = _Meter(show, sum(path.stat().st_size for path in files.values()))
    with _sole(f"push {bucket.location}", f"dtfperf data push to {bucket.location}") as journal:
        _abort_left(bucket, journal)
        there = {file.path: file for file in bucket.files()}
        sent: list[tuple[str, _Sum]] = []
        with _journalled(bucket, journal), _manager(bucket, part_bytes) as manager, _pool() as (pool, given_up):
            unsent = _Unsent(bucket, part_bytes, matches, meter, given_up)
            futures = []
            for path, found in zip(files, pool.map(unsent.sum, files.values(), map(there.get, files)), strict=True):
                if found is not None:
                    future = manager.upload(
                        str(files[path]),
                        bucket.location.bucket,
                        bucket.location.key(path),
                        extra_args=_asked_for(bucket, found),
                        subscribers=[_Counter(meter)],
                    )
                    futures.append((path, future))
                    sent.append((path, found))
            for path, future in futures:
                _result(bucket, path, future)
        _verify_sent(bucket, sent)
    return Done(len(files), meter.of, len(sent))


def pull(bucket: Bucket, local: Path, *, matches: Matches, show: Show, part_bytes: int = PART_BYTES) -> Done:
    """Fetch all files below the prefix into a folder. Raises `DataError`."""
    files = bucket.files()
    if not files:
        raise DataError(f"there is nothing below {bucket.location}/")
    checksums = dict(zip((file.path for file in files), bucket.checksums(files), strict=True))
    meter = _Meter(show, sum(file.size for file in files))
    partial = local / PARTIAL
    with _sole(f"pull {local.absolute()}", f"dtfperf data pull into {local}"), _on_disk(local):
        shutil.rmtree(partial, ignore_errors=True)  # of a pull that was killed
        partial.mkdir(mode=0o700, parents=True)
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, partial, ignore_errors=True)
            missing = _missing(local, files, checksums, matches, meter)
            manager = stack.enter_context(_manager(bucket, part_bytes))
            futures = []
            for number, file in enumerate(missing):
                key = bucket.location.key(file.path)
                part = str(partial / str(number))
                future = manager.download(bucket.location.bucket, key, part, subscribers=[_Counter(meter)])
                futures.append((file, part, future))
            for file, part, future in futures:
                _result(bucket, file.path, future)
                checksum = checksums[file.path]
                if os.stat(part).st_size != file.size or (checksum and not matches(part, checksum, lambda: False)):
                    raise DataError(
                        f"{bucket.location}: {file.path} arrives with another checksum than S3 says it has. Upload it again"
                    )
                (local / file.path).parent.mkdir(parents=True, exist_ok=True)
                os.replace(part, local / file.path)
    unverified = tuple(path for path, checksum in checksums.items() if checksum is None)
    return Done(len(files), meter.of, len(missing), unverified)


# What is here


@dataclass(frozen=True)
class _Sum:
    """Of a file's content: of all of it, and as S3 sums what it receives in parts."""

    size: int
    whole: str  # hexadecimal
    received: str  # base64


@dataclass(frozen=True)
class _Unsent:
    """Tells which files must be sent, and their sums. Called from several threads."""

    bucket: Bucket
    part_bytes: int
    matches: Matches
    meter: "_Meter"
    given_up: Callable[[], bool]

    def sum(self, local: Path, there: Stored | None) -> _Sum | None:
        """None: it is there already."""
        try:
            if there and there.size == local.stat().st_size and self._is_same(local, there):
                self.meter.add(there.size)
                return None
            return self._sum(local)
        except OSError as exc:
            raise DataError(f"{local} cannot be read: {exc.strerror or exc}") from exc

    def _is_same(self, local: Path, there: Stored) -> bool:
        checksum = self.bucket.checksum(there)
        return checksum is not None and self.matches(str(local), checksum, self.given_up)

    def _sum(self, local: Path) -> _Sum:
        size = local.stat().st_size
        part_bytes = ChunksizeAdjuster().adjust_chunksize(self.part_bytes, size)  # as it will be cut
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
        return _Sum(size, whole.hexdigest(), base64.b64encode(received.digest()).decode())


@contextmanager
def _pool() -> Iterator[tuple[ThreadPoolExecutor, Callable[[], bool]]]:
    """Threads that read and hash, and what tells them that nobody waits for it any more."""
    given_up = threading.Event()
    pool = ThreadPoolExecutor(HASHING)
    try:
        yield pool, given_up.is_set
    finally:
        given_up.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _local_files(local: Path) -> dict[str, Path]:
    """Path below the prefix -> file. Links to files are followed, links to folders are not: they may lead round in a circle."""
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


def _missing(
    local: Path, files: Sequence[Stored], checksums: Mapping[str, str | None], matches: Matches, meter: "_Meter"
) -> list[Stored]:
    """Those of which there is not the same here."""

    def is_there(file: Stored) -> bool:
        place, checksum = local / file.path, checksums[file.path]
        if not place.is_file() or place.stat().st_size != file.size or checksum is None:
            return False
        return matches(str(place), checksum, given_up)

    with _pool() as (pool, given_up):
        found = []
        for file, there in zip(files, pool.map(is_there, files), strict=True):
            if there:
                meter.add(file.size)
            else:
                found.append(file)
        return found


# The manager


@contextmanager
def _manager(bucket: Bucket, part_bytes: int) -> Iterator[TransferManager]:
    """Whatever ends the block before its time, Ctrl-C too, takes back every upload that is under way."""
    config = TransferConfig(
        multipart_threshold=part_bytes,
        multipart_chunksize=part_bytes,
        max_request_concurrency=PARALLEL,
        num_download_attempts=5,
    )
    with TransferManager(bucket.client, config) as manager:
        yield manager


def _asked_for(bucket: Bucket, found: _Sum) -> dict[str, Any]:
    encryption = {"ServerSideEncryption": bucket.encryption} if bucket.encryption else {}
    return {"ChecksumAlgorithm": "SHA256", "Metadata": {DIGEST: found.whole}, **encryption}


def _result(bucket: Bucket, path: str, future: TransferFuture) -> None:
    with told(bucket.location):
        try:
            future.result()
        except CancelledError as exc:
            raise DataError(f"{bucket.location}: {path} was given up: {exc}") from exc
        except (BotoCoreError, ClientError, DataError):
            raise
        except Exception as exc:  # whatever the manager's threads met with
            raise DataError(f"{bucket.location}: {path}: {exc}") from exc


def _verify_sent(bucket: Bucket, sent: Sequence[tuple[str, _Sum]]) -> None:
    """S3 must have received what was read before it was sent."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for path, wrong in pool.map(lambda each: (each[0], _is_wrong(bucket, *each)), sent):
            if wrong:
                raise DataError(f"{bucket.location}: {path} is not there as it was read here: {wrong}. Push it again")


def _is_wrong(bucket: Bucket, path: str, found: _Sum) -> str | None:
    with told(bucket.location):
        head = bucket.client.head_object(Bucket=bucket.location.bucket, Key=bucket.location.key(path), ChecksumMode="ENABLED")
    if head["ContentLength"] != found.size:
        return f"it has {head['ContentLength']} bytes instead of {found.size}"
    received = head.get("ChecksumSHA256", "").partition("-")[0]
    return None if received == found.received else "it has another checksum; did it change meanwhile?"


class _Meter:
    """Counts bytes from many threads."""

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


class _Counter(BaseSubscriber):
    """Tells the meter what the manager has moved; less than nothing when a part is sent again."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter

    def on_progress(self, future: TransferFuture, bytes_transferred: int, **kwargs: Any) -> None:
        self._meter.add(bytes_transferred)


# What a kill leaves


@contextmanager
def _sole(name: str, what: str) -> Iterator[Path]:
    """Nobody else on this machine does the same meanwhile; gives the place of a journal that stays if this is killed."""
    folder = cache_folder() / "transfers"
    with _on_disk(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = hashlib.sha256(name.encode()).hexdigest()[:24]
    lock = FileLock(folder / f"{stem}.lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise DataError(f"another {what} is under way on this machine. Wait for its end, or end it") from None
    try:
        yield folder / f"{stem}.uploads"
    finally:
        lock.release()


@contextmanager
def _journalled(bucket: Bucket, journal: Path) -> Iterator[None]:
    """Write down every upload in parts before its first part: S3 keeps parts, and charges for them, until they are disowned."""
    writing = threading.Lock()

    def note(parsed: dict[str, Any], **kwargs: Any) -> None:
        if "UploadId" in parsed:
            with writing, journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps([parsed["UploadId"], parsed["Key"]]) + "\n")

    event = "after-call.s3.CreateMultipartUpload"
    bucket.client.meta.events.register(event, note, unique_id="dtfperf-journal")
    try:
        yield
    finally:
        bucket.client.meta.events.unregister(event, unique_id="dtfperf-journal")
    journal.unlink(missing_ok=True)


def _abort_left(bucket: Bucket, journal: Path) -> None:
    """Disown the parts of a push that was killed here. Those that are gone already are no trouble."""
    with suppress(FileNotFoundError):
        for line in journal.read_text(encoding="utf-8").splitlines():
            with told(bucket.location), suppress(ValueError, bucket.client.exceptions.NoSuchUpload):  # cut short, or gone
                upload, key = json.loads(line)
                bucket.client.abort_multipart_upload(Bucket=bucket.location.bucket, Key=key, UploadId=upload)
        journal.unlink()


@contextmanager
def _on_disk(place: Path) -> Iterator[None]:
    """The disk's own troubles, in words."""
    try:
        yield
    except OSError as exc:
        raise DataError(f"{exc.filename or place}: {exc.strerror or exc}") from exc
