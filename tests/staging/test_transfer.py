"""Tests of pushing files to S3, and of pulling them."""

import base64
import hashlib
import json
import os
import random
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from pytest_dtfperf.errors import DataError, UsageError
from pytest_dtfperf.node.boot import get_cache_folder
from pytest_dtfperf.staging import transfer
from pytest_dtfperf.staging.bucket import Bucket
from pytest_dtfperf.staging.transfer import PARTIAL, TransferResult, lock_transfer
from pytest_dtfperf.testing.backends import wait_until
from tests.full_disk import full_behind
from tests.s3 import HEARS_CTRL_C, NAME, PATIENCE_S, S3, amazon, child, s3

__all__ = ["amazon", "s3"]  # fixtures

URL = f"s3://{NAME}/sets/mnist"
PUSH = f"push {URL}"  # whoever does the same excludes it
PART_BYTES = 5 << 20  # S3's smallest
BIG = random.Random(5).randbytes(2 * PART_BYTES + 1000)
SMALL = {"a": b"alpha", "folder/b": b"beta" * 1000, "folder/deep/empty": b"", "folder/with spaces & ümläut": b"!"}


def _push_files(local: Path, url: str = URL) -> TransferResult:
    return transfer.push(Bucket.open(url), local, show=lambda done, total_bytes: None, part_bytes=PART_BYTES)


def _pull_files(local: Path, url: str = URL) -> TransferResult:
    return transfer.pull(Bucket.open(url), local, show=lambda done, total_bytes: None, part_bytes=PART_BYTES)


def _write_files(folder: Path, contents: dict[str, bytes]) -> Path:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def _read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def local_folder(tmp_path: Path) -> Path:
    return _write_files(tmp_path / "local", SMALL)


@pytest.fixture
def large_folder(local_folder: Path) -> Path:
    """Add a file that is transferred in parts."""
    return _write_files(local_folder, {"big": BIG})


def test_files_survive_push_and_pull(s3: S3, large_folder: Path, tmp_path: Path) -> None:
    """Pushed files are below the prefix, a pull makes the same files elsewhere, and no temporary file is left."""
    there, back = _push_files(large_folder), _pull_files(tmp_path / "back")

    size = sum(map(len, _read_files(large_folder).values()))
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _read_files(large_folder).items()}
    assert there == back == TransferResult(files=5, bytes=size, sent=5)
    assert _read_files(tmp_path / "back") == _read_files(large_folder)
    assert list((tmp_path / "back").glob(".*")) == []
    assert s3.list_unfinished_uploads() == []
    assert list(Path(get_cache_folder(), "transfers").iterdir()) == []


def test_large_file_is_pushed_in_parts(s3: S3, large_folder: Path) -> None:
    """A file larger than a part is uploaded in parts with checksums, and has the checksum of the whole."""
    _push_files(large_folder)

    head = s3.head("sets/mnist/big")
    parts = [hashlib.sha256(BIG[at : at + PART_BYTES]).digest() for at in range(0, len(BIG), PART_BYTES)]
    assert head["ETag"].endswith('-3"')
    assert head["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"".join(parts)).digest()).decode()
    assert head["Metadata"]["dtfperf-sha256"] == hashlib.sha256(BIG).hexdigest()
    assert "-" not in s3.head("sets/mnist/a")["ETag"]


def test_files_are_encrypted(s3: S3, local_folder: Path) -> None:
    """If the bucket sets no encryption, each file is encrypted with AES256."""
    _push_files(local_folder)
    assert {s3.head(key)["ServerSideEncryption"] for key in s3.contents()} == {"AES256"}


def test_encryption_of_the_bucket_is_kept(s3: S3, large_folder: Path) -> None:
    """Files in a bucket that encrypts with keys of KMS have this encryption, and are known again."""
    rules: list[Any] = [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]
    s3.client.put_bucket_encryption(Bucket=NAME, ServerSideEncryptionConfiguration={"Rules": rules})

    assert Bucket.open(URL).encryption is None
    _push_files(large_folder)
    assert {s3.head(key)["ServerSideEncryption"] for key in s3.contents()} == {"aws:kms"}
    assert _push_files(large_folder).sent == 0


def test_unchanged_files_are_not_sent_again(s3: S3, local_folder: Path, tmp_path: Path) -> None:
    """A repeated push or pull moves only new, changed and missing files, also if a change keeps the size."""
    _push_files(local_folder)
    _write_files(local_folder, {"a": b"ALPHA", "new": b"new"})
    again = _push_files(local_folder)
    assert (again.files, again.sent) == (5, 2)
    assert s3.contents()["sets/mnist/a"] == b"ALPHA"
    assert _push_files(local_folder).sent == 0

    back = tmp_path / "back"
    _pull_files(back)
    _write_files(back, {"a": b"AlPhA"})
    (back / "new").unlink()
    assert _pull_files(back).sent == 2
    assert _read_files(back) == _read_files(local_folder)
    assert _pull_files(back).sent == 0


def test_single_file_keeps_its_name(s3: S3, local_folder: Path) -> None:
    """A single file is pushed below the prefix with its own name, or into the bucket without a prefix."""
    _push_files(local_folder / "folder" / "b")
    _push_files(local_folder / "a", f"s3://{NAME}")
    assert set(s3.contents()) == {"sets/mnist/b", "a"}


def test_links_and_pipes_are_left_out(s3: S3, local_folder: Path, tmp_path: Path) -> None:
    """A link to a file is pushed, and links to folders, broken links and pipes are left out."""
    (local_folder / "to-file").symlink_to(local_folder / "a")
    (local_folder / "to-folder").symlink_to(local_folder)
    (local_folder / "to-nothing").symlink_to(tmp_path / "nothing")
    os.mkfifo(local_folder / "pipe")
    assert _push_files(local_folder).files == 5
    assert s3.contents()["sets/mnist/to-file"] == b"alpha"


def test_progress_grows_to_all_bytes(s3: S3, large_folder: Path, tmp_path: Path) -> None:
    """The progress grows from zero to all bytes, for files that are moved and for files that were there."""
    size = sum(map(len, _read_files(large_folder).values()))
    for _ in range(2):
        for way in (transfer.push, transfer.pull):
            seen: list[tuple[int, int]] = []
            folder = large_folder if way is transfer.push else tmp_path / "back"
            way(Bucket.open(URL), folder, show=lambda done, total: seen.append((done, total)), part_bytes=PART_BYTES)  # noqa: B023
            assert seen[0] == (0, size)
            assert seen[-1] == (size, size)
            assert seen == sorted(seen)


def test_files_of_other_programs_are_verified(s3: S3, tmp_path: Path) -> None:
    """Files that another program uploaded are pulled, verified by the checksums of S3, and not pulled again."""
    s3.put("sets/mnist/crc32", b"one", ChecksumAlgorithm="CRC32")
    s3.put("sets/mnist/sha256", b"two", ChecksumAlgorithm="SHA256")
    upload = s3.client.create_multipart_upload(Bucket=NAME, Key="sets/mnist/parts")["UploadId"]
    parts = [BIG[at : at + PART_BYTES] for at in range(0, len(BIG), PART_BYTES)]
    sent = [
        s3.client.upload_part(Bucket=NAME, Key="sets/mnist/parts", UploadId=upload, PartNumber=number, Body=part)["ETag"]
        for number, part in enumerate(parts, 1)
    ]
    listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(sent, 1)]
    s3.client.complete_multipart_upload(
        Bucket=NAME,
        Key="sets/mnist/parts",
        UploadId=upload,
        MultipartUpload={"Parts": listed},  # type: ignore[typeddict-item]
    )
    bucket = Bucket.open(URL)
    kinds = {file.path: str(bucket.checksum(file)).partition(":")[0] for file in bucket.list_files()}
    assert kinds == {"crc32": "crc32", "sha256": "sha256", "parts": kinds["parts"]}
    assert kinds["parts"].endswith(f"/{PART_BYTES}")

    assert _pull_files(tmp_path / "back") == TransferResult(files=3, bytes=6 + len(BIG), sent=3)
    assert _read_files(tmp_path / "back") == {"crc32": b"one", "sha256": b"two", "parts": BIG}
    assert _pull_files(tmp_path / "back").sent == 0


def test_pull_refuses_a_wrong_checksum(s3: S3, tmp_path: Path) -> None:
    """A file with another checksum than pushed is refused, and does not appear under its name."""
    s3.put("sets/mnist/good", b"good")
    s3.put("sets/mnist/wrong", b"wrong", Metadata={"dtfperf-sha256": hashlib.sha256(b"right").hexdigest()})
    with pytest.raises(DataError, match=r"wrong has arrived with another checksum than S3 has\. Upload it again"):
        _pull_files(tmp_path / "back")
    assert _read_files(tmp_path / "back") == {"good": b"good"}


def test_push_verifies_uploaded_files(s3: S3, local_folder: Path) -> None:
    """A file that another program replaced during the push is reported."""
    hang = s3.cloud.faults.hang_after(f"HEAD /{NAME}/sets/mnist/a")
    with ThreadPoolExecutor() as pool:
        pushing = pool.submit(_push_files, local_folder)
        hang.wait_until_executed(PATIENCE_S)
        s3.put("sets/mnist/a", b"other")  # somebody else's, of the same size
        hang.release()
        with pytest.raises(DataError, match=r"a differs from the local file: it has another checksum.*Push it again"):
            pushing.result()


# As `_push` does it, without the server that this module imports.
CHILD = f"""
import sys
from pathlib import Path
from pytest_dtfperf.staging import transfer
from pytest_dtfperf.staging.bucket import Bucket
transfer.push(Bucket.open({URL!r}), Path(sys.argv[1]), show=lambda done, total: None, part_bytes={PART_BYTES})
"""


def _start_push(local_folder: Path, before: str = "") -> "AbstractContextManager[subprocess.Popen[bytes]]":
    return child("-c", before + CHILD, str(local_folder))


def test_killed_push_is_continued(s3: S3, large_folder: Path) -> None:
    """After kill -9 during a large file, the next push sends only this file, and removes the parts that were left."""
    hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/sets/mnist/big", skip=1)
    with _start_push(large_folder) as pushing:
        hang.wait_until_executed(PATIENCE_S)
        wait_until("the small files are there", lambda: len(s3.contents()) == 4, PATIENCE_S)
        pushing.send_signal(signal.SIGKILL)
        pushing.communicate()
    hang.release()
    assert len(s3.list_unfinished_uploads()) == 1

    assert _push_files(large_folder).sent == 1
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _read_files(large_folder).items()}
    assert s3.list_unfinished_uploads() == []


def test_interrupted_push_leaves_no_parts(s3: S3, large_folder: Path, tmp_path: Path) -> None:
    """Ctrl-C removes the uploaded parts of a large file before the process ends."""
    hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/sets/mnist/big", skip=1)
    flag = tmp_path / "interrupted"
    with _start_push(large_folder, HEARS_CTRL_C.format(flag=flag)) as pushing:
        hang.wait_until_executed(PATIENCE_S)
        assert len(s3.list_unfinished_uploads()) == 1
        pushing.send_signal(signal.SIGINT)
        wait_until("it has heard", flag.exists, PATIENCE_S)
        hang.release()
        assert b"KeyboardInterrupt" in pushing.communicate()[1]
    assert s3.list_unfinished_uploads() == []


def test_killed_pull_is_continued(s3: S3, local_folder: Path, tmp_path: Path) -> None:
    """The next pull removes the partial files of a killed one, and fetches only missing files."""
    _push_files(local_folder)
    back = tmp_path / "back"
    _write_files(back, {"a": b"alpha", f"{PARTIAL}/3": b"half"})
    assert _pull_files(back).sent == 3
    assert _read_files(back) == _read_files(local_folder)
    assert list(back.glob(".*")) == []


def test_second_push_to_a_location_is_refused(s3: S3, local_folder: Path) -> None:
    """A second push from one machine to the same location is refused until the first one ends."""
    with (
        lock_transfer(PUSH, "dtfperf data push"),
        pytest.raises(DataError, match=f"another dtfperf data push to {URL} runs on this machine"),
    ):
        _push_files(local_folder)
    assert _push_files(local_folder).sent == 4


def test_damaged_journal_does_not_prevent_a_push(s3: S3, local_folder: Path) -> None:
    """A journal that was cut short, or names uploads that do not exist, does not prevent a push, and is removed."""
    _push_files(local_folder)
    with lock_transfer(PUSH, "dtfperf data push") as journal:
        pass
    journal.write_text(json.dumps(["gone", "sets/mnist/big"]) + '\n["cut sho')
    assert _push_files(local_folder).sent == 0
    assert not journal.exists()


def test_full_disk_leaves_no_upload(s3: S3, large_folder: Path) -> None:
    """If the journal's disk is full, the push fails with its path and leaves no parts, and the next push sends all files."""
    with lock_transfer(PUSH, "dtfperf data push") as journal:
        pass
    with full_behind(journal, room=10), pytest.raises(DataError, match=str(journal)):
        _push_files(large_folder)
    assert s3.list_unfinished_uploads() == []
    assert _push_files(large_folder).sent > 0
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _read_files(large_folder).items()}


def test_push_of_nothing_is_refused(s3: S3, tmp_path: Path) -> None:
    """A push of a missing path, or of a folder without a file, is refused with the path."""
    with pytest.raises(UsageError, match=f"there is no file or folder {tmp_path}/nothing"):
        _push_files(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"there is no file in {tmp_path}/empty"):
        _push_files(tmp_path / "empty")


def test_pull_of_nothing_is_refused(s3: S3, tmp_path: Path) -> None:
    """A pull of an empty location is refused and makes no folder; a name that only begins with the prefix is not below it."""
    s3.put("sets/mnist-2/a", b"")
    s3.put("sets/mnist/", b"")
    with pytest.raises(DataError, match=f"there is nothing below {URL}/"):
        _pull_files(tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("key", ["sets/mnist/../../out", "sets/mnist//out", "sets/mnist/./out"])
def test_key_outside_of_the_folder_is_refused(s3: S3, tmp_path: Path, key: str) -> None:
    """A key that cannot be a file below the folder is refused, and no file is fetched."""
    s3.put("sets/mnist/good", b"good")
    s3.put(key, b"bad")
    with pytest.raises(DataError, match=f"'{key}' cannot be a file on disk. Rename or remove it there"):
        _pull_files(tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_unwritable_folder_is_named(s3: S3, local_folder: Path, tmp_path: Path) -> None:
    """An error of the disk is reported with the folder."""
    _push_files(local_folder)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"{tmp_path}/file.*: Not a directory"):
        _pull_files(tmp_path / "file" / "back")
