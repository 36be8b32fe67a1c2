"""Files to S3 and from it, many at once and large ones in parts, with boto3's transfer manager.

Either way may be broken off and begun again: a file that is there with the same size and checksum is not sent twice. What is
sent carries the SHA-256 of its content, and is compared with what S3 has received; what is fetched appears under its name once
its checksum is right.
"""

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
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

from pytest_dtfperf.clusters.answer_cache import cache_folder
from pytest_dtfperf.clusters.locks import lock_file
from pytest_dtfperf.errors import DataError
from pytest_dtfperf.node.files import rename_durably
from pytest_dtfperf.staging.bucket import DIGEST, PARALLEL, Bucket, Stored, translate_errors
from pytest_dtfperf.staging.files import (
    PARTIAL,
    Meter,
    Show,
    Sum,
    Unsent,
    find_missing,
    local_files,
    on_disk,
    start_threads,
)
from pytest_dtfperf.staging.on_host.job import matches


@contextmanager
def sole(name: str, what: str) -> Iterator[Path]:
    """Lock the transfer on this machine; gives the place of a journal that stays if this is killed."""
    folder = cache_folder() / "transfers"
    with on_disk(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    stem = hashlib.sha256(name.encode()).hexdigest()[:24]
    with ExitStack() as alone:
        try:
            alone.enter_context(lock_file(folder / f"{stem}.lock", within_s=0.0))
        except BlockingIOError:
            raise DataError(f"another {what} is under way on this machine. Wait for its end, or end it") from None
        except OSError as exc:
            raise DataError(
                f"{folder} cannot be written: {exc.strerror}; make room on that disk, or set XDG_CACHE_HOME"
            ) from exc
        yield folder / f"{stem}.uploads"


@contextmanager
def keep_journal(bucket: Bucket, journal: Path) -> Iterator[None]:
    """Write down every upload in parts before its first part: S3 keeps parts, and charges for them, until they are disowned."""
    writing = threading.Lock()

    def note(parsed: dict[str, Any], **kwargs: Any) -> None:
        if "UploadId" in parsed:
            try:
                with writing, on_disk(journal), journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([parsed["UploadId"], parsed["Key"]]) + "\n")
            except DataError:  # else its parts would stay
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


def abort_left(bucket: Bucket, journal: Path) -> None:
    """Disown the parts of a push that was killed here. Those that are gone already are no trouble."""
    with suppress(FileNotFoundError):
        for line in journal.read_text(encoding="utf-8").splitlines():
            with (
                translate_errors(bucket.location),
                suppress(ValueError, bucket.client.exceptions.NoSuchUpload),
            ):  # cut short, or gone
                upload, key = json.loads(line)
                bucket.client.abort_multipart_upload(Bucket=bucket.location.bucket, Key=key, UploadId=upload)
        journal.unlink()


PART_BYTES = 16 << 20  # larger files travel in parts of this size, each on its own and again if need be


@dataclass(frozen=True)
class Done:
    """What came of it."""

    files: int
    bytes: int
    sent: int  # files that were not there before
    unverified: Sequence[str] = ()  # of which S3 knows no checksum that can be computed here


def push(bucket: Bucket, local: Path, *, show: Show, part_bytes: int = PART_BYTES) -> Done:
    """Upload a file, or all files below a folder. Raises `UsageError`, `DataError`."""
    files = local_files(local)
    with on_disk(local):
        meter = Meter(show, sum(path.stat().st_size for path in files.values()))
    with sole(f"push {bucket.location}", f"dtfperf data push to {bucket.location}") as journal:
        abort_left(bucket, journal)
        there = {file.path: file for file in bucket.files()}
        sent: list[tuple[str, Sum]] = []
        with keep_journal(bucket, journal), _manager(bucket, part_bytes) as manager, start_threads() as (pool, given_up):
            unsent = Unsent(bucket, part_bytes, meter, given_up)
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


def pull(bucket: Bucket, local: Path, *, show: Show, part_bytes: int = PART_BYTES) -> Done:
    """Fetch all files below the prefix into a folder. Raises `DataError`."""
    files = bucket.files()
    if not files:
        raise DataError(f"there is nothing below {bucket.location}/")
    checksums = dict(zip((file.path for file in files), bucket.checksums(files), strict=True))
    meter = Meter(show, sum(file.size for file in files))
    with sole(f"pull {local.absolute()}", f"dtfperf data pull into {local}"), on_disk(local), _growing(local) as partial:
        missing = find_missing(local, files, checksums, meter)
        with _manager(bucket, part_bytes) as manager:
            futures = []
            for number, file in enumerate(missing):
                key, part = bucket.location.key(file.path), str(partial / str(number))
                future = manager.download(bucket.location.bucket, key, part, subscribers=[_Counter(meter)])
                futures.append((file, part, future))
            for file, part, future in futures:
                _result(bucket, file.path, future)
                _keep(bucket, file, part, checksums[file.path], local)
    unverified = tuple(path for path, checksum in checksums.items() if checksum is None)
    return Done(len(files), meter.of, len(missing), unverified)


@contextmanager
def _growing(local: Path) -> Iterator[Path]:
    """A folder for what is not whole yet, on the same disk; what a pull that was killed has left there is of no use."""
    partial = local / PARTIAL
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(mode=0o700, parents=True)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keep(bucket: Bucket, file: Stored, part: str, checksum: str | None, local: Path) -> None:
    """Give a file its name once it is what it should be."""
    if os.stat(part).st_size != file.size or (checksum and not matches(part, checksum)):
        raise DataError(f"{bucket.location}: {file.path} arrives with another checksum than S3 has. Upload it again")
    (local / file.path).parent.mkdir(parents=True, exist_ok=True)
    rename_durably(part, local / file.path)


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


def _asked_for(bucket: Bucket, found: Sum) -> dict[str, Any]:
    encryption = {"ServerSideEncryption": bucket.encryption} if bucket.encryption else {}
    return {"ChecksumAlgorithm": "SHA256", "Metadata": {DIGEST: found.whole}, **encryption}


def _result(bucket: Bucket, path: str, future: TransferFuture) -> None:
    with translate_errors(bucket.location):
        try:
            future.result()
        except CancelledError as exc:
            raise DataError(f"{bucket.location}: {path} was given up: {exc}") from exc
        except (BotoCoreError, ClientError, DataError):
            raise
        except Exception as exc:  # whatever the manager's threads met with
            raise DataError(f"{bucket.location}: {path}: {exc}") from exc


def _verify_sent(bucket: Bucket, sent: Sequence[tuple[str, Sum]]) -> None:
    """S3 must have received what was read before it was sent."""
    with ThreadPoolExecutor(PARALLEL) as pool:
        for path, wrong in pool.map(lambda each: (each[0], _is_wrong(bucket, *each)), sent):
            if wrong:
                raise DataError(f"{bucket.location}: {path} is not there as it was read here: {wrong}. Push it again")


def _is_wrong(bucket: Bucket, path: str, found: Sum) -> str | None:
    with translate_errors(bucket.location):
        head = bucket.client.head_object(Bucket=bucket.location.bucket, Key=bucket.location.key(path), ChecksumMode="ENABLED")
    if head["ContentLength"] != found.size:
        return f"it has {head['ContentLength']} bytes instead of {found.size}"
    received = head.get("ChecksumSHA256", "").partition("-")[0]
    return None if received == found.received else "it has another checksum; did it change meanwhile?"


class _Counter(BaseSubscriber):
    """Reports to the meter what the manager has moved; less than nothing when a part is sent again."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def on_progress(self, future: TransferFuture, bytes_transferred: int, **kwargs: Any) -> None:
        self._meter.add(bytes_transferred)
