"""Tests of the checksums that S3 has of files."""

import base64
import hashlib
import time
import zlib
from pathlib import Path

import pytest

from pytest_dtfperf.staging import on_host

# From the CRC catalogue (https://reveng.sourceforge.io/crc-catalogue) and RFC 6234, RFC 1321: what each gives for "123456789".
CHECK = {
    "crc32": "cbf43926",
    "crc64nvme": "ae8b14860a799888",
    "md5": "25f9e794323b453885f5181f1b624d0b",
    "sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "sha256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
}


def test_checksums_are_the_published_ones(tmp_path: Path) -> None:
    """Each kind of checksum accepts its published check value for one content, and not for another one."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_bytes(b"123456789")
    wrong.write_bytes(b"123456780")

    assert set(CHECK) == set(on_host.KINDS)
    for kind, value in CHECK.items():
        assert on_host.has_checksum(str(right), f"{kind}:{value}")
        assert not on_host.has_checksum(str(wrong), f"{kind}:{value}")


@pytest.mark.parametrize(
    "part_bytes, length",
    [
        *((part_bytes, length) for part_bytes in (10, (1 << 20) + 1) for length in (0, 1, 9, 10, 11, 30)),
        *((part_bytes, (1 << 20) * 3 + 5) for part_bytes in (10_000, (1 << 20) + 1)),
    ],
)
def test_checksum_of_parts_is_that_of_their_digests(tmp_path: Path, part_bytes: int, length: int) -> None:
    """The checksum of parts is that of their digests, for any length, and depends on the size of parts."""
    content = (bytes(range(251)) * (length // 251 + 1))[:length]
    path = tmp_path / "file"
    path.write_bytes(content)
    digests = [hashlib.sha256(content[at : at + part_bytes]).digest() for at in range(0, length, part_bytes)]
    expected = hashlib.sha256(b"".join(digests)).hexdigest()
    crcs = [zlib.crc32(content[at : at + part_bytes]).to_bytes(4, "big") for at in range(0, length, part_bytes)]

    assert on_host.has_checksum(str(path), f"sha256/{part_bytes}:{expected}")
    assert on_host.has_checksum(str(path), f"crc32/{part_bytes}:{zlib.crc32(b''.join(crcs)).to_bytes(4, 'big').hex()}")
    assert on_host.has_checksum(str(path), f"sha256/{part_bytes + 1}:{expected}") is (length <= part_bytes)


def test_checksum_of_an_empty_file_is_zero(tmp_path: Path) -> None:
    """The CRC-64 of an empty object is the one of S3."""
    (tmp_path / "empty").touch()
    assert on_host.has_checksum(str(tmp_path / "empty"), "crc64nvme:" + base64.b64decode("AAAAAAAAAAA=").hex())


def test_checksum_can_be_stopped(tmp_path: Path) -> None:
    """The checksum of a large file stops when it is not needed any more."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 30)  # a hole
    began = time.monotonic()
    with pytest.raises(on_host.Stopped):
        on_host.has_checksum(str(path), "sha256:00", stopped=lambda: time.monotonic() > began + 0.1)
