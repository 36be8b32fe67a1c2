"""Pushing files to S3 and pulling them from it."""

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


def _push(local: Path, url: str = URL) -> TransferResult:
    return transfer.push(Bucket.open(url), local, show=lambda done, of: None, part_bytes=PART_BYTES)


def _pull(local: Path, url: str = URL) -> TransferResult:
    return transfer.pull(Bucket.open(url), local, show=lambda done, of: None, part_bytes=PART_BYTES)


def _write(folder: Path, contents: dict[str, bytes]) -> Path:
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def _below(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return _write(tmp_path / "local", SMALL)


@pytest.fixture
def large(local: Path) -> Path:
    """With a file that travels in parts."""
    return _write(local, {"big": BIG})


def test_there_and_back(s3: S3, large: Path, tmp_path: Path) -> None:
    """What is pushed is below the prefix, and pulled elsewhere it is what it was; nothing else is left anywhere."""
    there, back = _push(large), _pull(tmp_path / "back")

    size = sum(map(len, _below(large).values()))
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _below(large).items()}
    assert there == back == TransferResult(files=5, bytes=size, sent=5)
    assert _below(tmp_path / "back") == _below(large)
    assert list((tmp_path / "back").glob(".*")) == []
    assert s3.unfinished() == []
    assert list(Path(get_cache_folder(), "transfers").iterdir()) == []


def test_large_files_travel_in_parts(s3: S3, large: Path) -> None:
    """A file larger than a part is uploaded in parts, each summed by S3 itself, and carries the sum of all of it."""
    _push(large)

    head = s3.head("sets/mnist/big")
    parts = [hashlib.sha256(BIG[at : at + PART_BYTES]).digest() for at in range(0, len(BIG), PART_BYTES)]
    assert head["ETag"].endswith('-3"')
    assert head["ChecksumSHA256"] == base64.b64encode(hashlib.sha256(b"".join(parts)).digest()).decode()
    assert head["Metadata"]["dtfperf-sha256"] == hashlib.sha256(BIG).hexdigest()
    assert "-" not in s3.head("sets/mnist/a")["ETag"]


def test_everything_is_encrypted(s3: S3, local: Path) -> None:
    """Where the bucket sets no encryption, every file asks for AES256."""
    _push(local)
    assert {s3.head(key)["ServerSideEncryption"] for key in s3.contents()} == {"AES256"}


def test_the_buckets_own_encryption_stays(s3: S3, large: Path) -> None:
    """A bucket that encrypts with keys of KMS is not set to do less."""
    rules: list[Any] = [{"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}]
    s3.client.put_bucket_encryption(Bucket=NAME, ServerSideEncryptionConfiguration={"Rules": rules})

    assert Bucket.open(URL).encryption is None
    _push(large)
    assert {s3.head(key)["ServerSideEncryption"] for key in s3.contents()} == {"aws:kms"}
    assert _push(large).sent == 0


def test_nothing_is_sent_twice(s3: S3, local: Path, tmp_path: Path) -> None:
    """Pushed or pulled again, only what is new, changed or gone is moved; a change that keeps the size is seen."""
    _push(local)
    _write(local, {"a": b"ALPHA", "new": b"new"})
    again = _push(local)
    assert (again.files, again.sent) == (5, 2)
    assert s3.contents()["sets/mnist/a"] == b"ALPHA"
    assert _push(local).sent == 0

    back = tmp_path / "back"
    _pull(back)
    _write(back, {"a": b"AlPhA"})
    (back / "new").unlink()
    assert _pull(back).sent == 2
    assert _below(back) == _below(local)
    assert _pull(back).sent == 0


def test_one_file(s3: S3, local: Path) -> None:
    """A single file goes below the prefix under its own name; without a prefix, into the bucket itself."""
    _push(local / "folder" / "b")
    _push(local / "a", f"s3://{NAME}")
    assert set(s3.contents()) == {"sets/mnist/b", "a"}


def test_what_is_no_file_stays(s3: S3, local: Path, tmp_path: Path) -> None:
    """Links to files are followed; links to folders, links that lead nowhere and pipes are left out."""
    (local / "to-file").symlink_to(local / "a")
    (local / "to-folder").symlink_to(local)
    (local / "to-nothing").symlink_to(tmp_path / "nothing")
    os.mkfifo(local / "pipe")
    assert _push(local).files == 5
    assert s3.contents()["sets/mnist/to-file"] == b"alpha"


def test_progress_ends_with_all_of_it(s3: S3, large: Path, tmp_path: Path) -> None:
    """The progress grows up to all bytes, whether they are moved or were there."""
    size = sum(map(len, _below(large).values()))
    for _ in range(2):
        for way in (transfer.push, transfer.pull):
            seen: list[tuple[int, int]] = []
            folder = large if way is transfer.push else tmp_path / "back"
            way(Bucket.open(URL), folder, show=lambda done, of: seen.append((done, of)), part_bytes=PART_BYTES)  # noqa: B023
            assert seen[0] == (0, size)
            assert seen[-1] == (size, size)


def test_objects_of_others_are_verified_by_what_s3_knows(s3: S3, tmp_path: Path) -> None:
    """Files that were not pushed from here are pulled, verified by S3's own checksums, and known again."""
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

    assert _pull(tmp_path / "back") == TransferResult(files=3, bytes=6 + len(BIG), sent=3)
    assert _below(tmp_path / "back") == {"crc32": b"one", "sha256": b"two", "parts": BIG}
    assert _pull(tmp_path / "back").sent == 0


def test_a_wrong_checksum_is_noticed(s3: S3, tmp_path: Path) -> None:
    """A file that arrives as another one than was pushed is refused, and does not appear under its name."""
    s3.put("sets/mnist/good", b"good")
    s3.put("sets/mnist/wrong", b"wrong", Metadata={"dtfperf-sha256": hashlib.sha256(b"right").hexdigest()})
    with pytest.raises(DataError, match=r"wrong has arrived with another checksum than S3 has\. Upload it again"):
        _pull(tmp_path / "back")
    assert _below(tmp_path / "back") == {"good": b"good"}


def test_what_has_arrived_is_compared(s3: S3, local: Path) -> None:
    """After the upload S3 is asked what it has, and anything but what was read here is reported."""
    hang = s3.cloud.faults.hang_after(f"HEAD /{NAME}/sets/mnist/a")
    with ThreadPoolExecutor() as pool:
        pushing = pool.submit(_push, local)
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
transfer.push(Bucket.open({URL!r}), Path(sys.argv[1]), show=lambda done, of: None, part_bytes={PART_BYTES})
"""


def _pushing(local: Path, before: str = "") -> "AbstractContextManager[subprocess.Popen[bytes]]":
    return child("-c", before + CHILD, str(local))


def test_a_killed_push_is_gone_on_with(s3: S3, large: Path) -> None:
    """After kill -9 in the midst of a large file, the next push sends only what is not there, and disowns the parts left."""
    hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/sets/mnist/big", skip=1)
    with _pushing(large) as pushing:
        hang.wait_until_executed(PATIENCE_S)
        wait_until("the small files are there", lambda: len(s3.contents()) == 4, PATIENCE_S)
        pushing.send_signal(signal.SIGKILL)
        pushing.communicate()
    hang.release()
    assert len(s3.unfinished()) == 1

    assert _push(large).sent == 1
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _below(large).items()}
    assert s3.unfinished() == []


def test_an_interrupted_push_leaves_no_parts(s3: S3, large: Path, tmp_path: Path) -> None:
    """Ctrl-C takes the parts of a large file back before the process ends."""
    hang = s3.cloud.faults.hang_after(f"PUT /{NAME}/sets/mnist/big", skip=1)
    flag = tmp_path / "interrupted"
    with _pushing(large, HEARS_CTRL_C.format(flag=flag)) as pushing:
        hang.wait_until_executed(PATIENCE_S)
        assert len(s3.unfinished()) == 1
        pushing.send_signal(signal.SIGINT)
        wait_until("it has heard", flag.exists, PATIENCE_S)
        hang.release()
        assert b"KeyboardInterrupt" in pushing.communicate()[1]
    assert s3.unfinished() == []


def test_a_killed_pull_is_gone_on_with(s3: S3, local: Path, tmp_path: Path) -> None:
    """What a killed pull has left beside the files is removed by the next one, which fetches only what is missing."""
    _push(local)
    back = tmp_path / "back"
    _write(back, {"a": b"alpha", f"{PARTIAL}/3": b"half"})
    assert _pull(back).sent == 3
    assert _below(back) == _below(local)
    assert list(back.glob(".*")) == []


def test_one_at_a_time(s3: S3, local: Path) -> None:
    """Two pushes from one machine to one place would undo each other: the second is refused."""
    with (
        lock_transfer(PUSH, "dtfperf data push"),
        pytest.raises(DataError, match=f"another dtfperf data push to {URL} runs on this machine"),
    ):
        _push(local)
    assert _push(local).sent == 4


def test_a_damaged_journal_is_no_trouble(s3: S3, local: Path) -> None:
    """A journal that was cut short by a crash, or names uploads that are gone, keeps no user from pushing."""
    _push(local)
    with lock_transfer(PUSH, "dtfperf data push") as journal:
        pass
    journal.write_text(json.dumps(["gone", "sets/mnist/big"]) + '\n["cut sho')
    assert _push(local).sent == 0
    assert not journal.exists()


def test_a_full_disk_leaves_no_upload(s3: S3, large: Path) -> None:
    """Of an upload that cannot be written down S3 keeps no parts, the journal's place is named, and the next push sends all."""
    with lock_transfer(PUSH, "dtfperf data push") as journal:
        pass
    with full_behind(journal, room=10), pytest.raises(DataError, match=str(journal)):
        _push(large)
    assert s3.unfinished() == []
    assert _push(large).sent > 0
    assert s3.contents() == {f"sets/mnist/{path}": content for path, content in _below(large).items()}


def test_nothing_to_push(s3: S3, tmp_path: Path) -> None:
    """What is not there, and a folder without a file, are named before anything is asked."""
    with pytest.raises(UsageError, match=f"there is no file or folder {tmp_path}/nothing"):
        _push(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=f"there is no file in {tmp_path}/empty"):
        _push(tmp_path / "empty")


def test_nothing_to_pull(s3: S3, tmp_path: Path) -> None:
    """An empty place is reported, and no folder is made; a name that only begins like the prefix is not below it."""
    s3.put("sets/mnist-2/a", b"")
    s3.put("sets/mnist/", b"")
    with pytest.raises(DataError, match=f"there is nothing below {URL}/"):
        _pull(tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("key", ["sets/mnist/../../out", "sets/mnist//out", "sets/mnist/./out"])
def test_no_key_leads_out(s3: S3, tmp_path: Path, key: str) -> None:
    """A key that cannot be a file below the folder is named, and nothing is fetched."""
    s3.put("sets/mnist/good", b"good")
    s3.put(key, b"bad")
    with pytest.raises(DataError, match=f"'{key}' cannot be a file on disk. Rename or remove it there"):
        _pull(tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_place_that_cannot_be_written(s3: S3, local: Path, tmp_path: Path) -> None:
    """The disk's own errors are reported with the place."""
    _push(local)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=f"{tmp_path}/file.*: Not a directory"):
        _pull(tmp_path / "file" / "back")
