"""Uploads in parts that are under way: written down, so that those which a kill leaves are taken back by the next push."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from pytest_dtfperf.clusters.ec2.answer_cache import cache_folder
from pytest_dtfperf.clusters.locks import lock_file
from pytest_dtfperf.errors import DataError
from pytest_dtfperf.staging.bucket import Bucket, told
from pytest_dtfperf.staging.files import on_disk


@contextmanager
def sole(name: str, what: str) -> Iterator[Path]:
    """Nobody else on this machine does the same meanwhile; gives the place of a journal that stays if this is killed."""
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
def journalled(bucket: Bucket, journal: Path) -> Iterator[None]:
    """Write down every upload in parts before its first part: S3 keeps parts, and charges for them, until they are disowned."""
    writing = threading.Lock()

    def note(parsed: dict[str, Any], **kwargs: Any) -> None:
        if "UploadId" in parsed:
            try:
                with writing, on_disk(journal), journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([parsed["UploadId"], parsed["Key"]]) + "\n")
            except DataError:  # nobody would take its parts back
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
            with told(bucket.location), suppress(ValueError, bucket.client.exceptions.NoSuchUpload):  # cut short, or gone
                upload, key = json.loads(line)
                bucket.client.abort_multipart_upload(Bucket=bucket.location.bucket, Key=key, UploadId=upload)
        journal.unlink()
