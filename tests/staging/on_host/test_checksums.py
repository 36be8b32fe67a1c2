"""Checksums of files, as S3 gives them."""

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


def test_every_kind_is_the_published_one(tmp_path: Path) -> None:
    """Each kind gives its published check value, and no other content has it."""
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_bytes(b"123456789")
    wrong.write_bytes(b"123456780")

    assert set(CHECK) == set(on_host.KINDS)
    for kind, value in CHECK.items():
        assert on_host.has_checksum(str(right), f"{kind}:{value}")
        assert not on_host.has_checksum(str(wrong), f"{kind}:{value}")


@pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 30, (1 << 20) * 3 + 5])
@pytest.mark.parametrize("part_bytes", [10, (1 << 20) + 1])
def test_parts_are_summed_as_s3_does(tmp_path: Path, length: int, part_bytes: int) -> None:
    """The checksum of parts is that of their digests one after the other, however the length divides."""
    content = bytes(i % 251 for i in range(length))
    path = tmp_path / "file"
    path.write_bytes(content)
    digests = [hashlib.sha256(content[at : at + part_bytes]).digest() for at in range(0, length, part_bytes)]
    expected = hashlib.sha256(b"".join(digests)).hexdigest()
    crcs = [zlib.crc32(content[at : at + part_bytes]).to_bytes(4, "big") for at in range(0, length, part_bytes)]

    assert on_host.has_checksum(str(path), f"sha256/{part_bytes}:{expected}")
    assert on_host.has_checksum(str(path), f"crc32/{part_bytes}:{zlib.crc32(b''.join(crcs)).to_bytes(4, 'big').hex()}")
    assert on_host.has_checksum(str(path), f"sha256/{part_bytes + 1}:{expected}") is (length <= part_bytes)


def test_a_checksum_as_amazon_documents_it(tmp_path: Path) -> None:
    """The CRC-64 of an empty object is the one that S3 gives it, in base64."""
    (tmp_path / "empty").touch()
    assert on_host.has_checksum(str(tmp_path / "empty"), "crc64nvme:" + base64.b64decode("AAAAAAAAAAA=").hex())


def test_can_be_given_up(tmp_path: Path) -> None:
    """The checksum of a large file that is not wanted any more is not waited for."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(64 << 30)  # a hole
    began = time.monotonic()
    with pytest.raises(on_host.Stopped):
        on_host.has_checksum(str(path), "sha256:00", stopped=lambda: time.monotonic() > began + 0.1)
