"""TFRecord files, as far as is needed to say what is wrong with one. Needs no TensorFlow.

A record is the length of its content (uint64), a checksum of that, the content, a checksum of it; numbers are little-endian.
https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import DataError
from pytest_dtfperf.training.inputs.formats import format_of

HEADER_BYTES = 12
FOOTER_BYTES = 4
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed: RFC 3720, appendix B.4
_MASK_DELTA = 0xA282EAD8  # as the format's description has it


@dataclass(frozen=True)
class TFRecord:
    """Where a record lies in its file."""

    offset: int  # of its header
    length: int  # of its content

    @property
    def content(self) -> int:
        return self.offset + HEADER_BYTES

    @property
    def end(self) -> int:
        return self.content + self.length + FOOTER_BYTES


def records(path: Path) -> Iterator[TFRecord]:
    """From header to header, without reading what lies between. Raises `DataError` where there is none, or the file ends."""
    try:
        file = path.open("rb", buffering=0)
    except OSError as exc:
        raise DataError(f"{path} cannot be read: {exc.strerror}") from exc
    with file:
        size, offset = os.fstat(file.fileno()).st_size, 0
        if not size:
            raise DataError(f"{path} is empty: fetch or make it again")
        while offset < size:
            file.seek(offset)
            record = _record(path, offset, file.read(HEADER_BYTES))
            if record.end > size:
                raise DataError(
                    f"{path} is cut short: the record at byte {offset} ends at byte {record.end}, the file at byte {size}. "
                    "Fetch or make it again."
                )
            yield record
            offset = record.end


def check_content(path: Path, record: TFRecord) -> None:
    """Raises `DataError` if a record's content is not what was written."""
    content, footer = _read(path, record)
    if struct.unpack("<I", footer)[0] != masked_crc(content):
        raise DataError(f"{path} is damaged: the checksum of the record at byte {record.offset} is wrong. Fetch it again.")


def content_of(path: Path, record: TFRecord) -> bytes:
    return _read(path, record)[0]


def masked_crc(content: bytes) -> int:
    """The checksum of a length or a content."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _record(path: Path, offset: int, header: bytes) -> TFRecord:
    if len(header) < HEADER_BYTES:
        raise DataError(f"{path} is cut short: the record at byte {offset} has only {len(header)} of its header's 12 bytes")
    if struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
        if offset == 0 and (other := format_of(header)):
            raise DataError(f"{path} is no TFRecord file: it is {other}. Fetch or make it again, not compressed.")
        what = "is no TFRecord file: it begins with" if offset == 0 else f"is damaged: no record begins at byte {offset}, but"
        raise DataError(f"{path} {what} {header.hex(' ')}. Fetch or make it again.")
    return TFRecord(offset, struct.unpack("<Q", header[:8])[0])


def _read(path: Path, record: TFRecord) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        file.seek(record.content)
        return file.read(record.length), file.read(FOOTER_BYTES)


def _remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_remainder(byte) for byte in range(256))
