"""Read TFRecord files of ImageNet's original layout, and check them. Needs no TensorFlow.

A TFRecord is the length of its content (uint64), a checksum of that, the content and a checksum of it; numbers are
little-endian: https://www.tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
"""

import math
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import DataError, SpecError
from pytest_dtfperf.training.inputs import Share
from pytest_dtfperf.training.inputs.formats import describe_folder, iterate_folders, list_names, recognise_format

HEADER_BYTES = 12
FOOTER_BYTES = 4
_POLYNOMIAL = 0x82F63B78  # CRC-32C (Castagnoli), bits reversed: RFC 3720, appendix B.4
_MASK_DELTA = 0xA282EAD8  # as the format's description has it


@dataclass(frozen=True)
class TFRecord:
    """The position of a record in its file, in bytes."""

    offset: int  # of its header
    length: int  # of its content

    @property
    def content(self) -> int:
        return self.offset + HEADER_BYTES

    @property
    def end(self) -> int:
        return self.content + self.length + FOOTER_BYTES


def iterate_records(path: Path) -> Iterator[TFRecord]:
    """Yield the records of a file from header to header, without reading the content.

    Raises `DataError` where there is no header, or the file ends within a record.
    """
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
    """Raise `DataError` if a record's checksum does not match its content."""
    content, footer = _read_record(path, record)
    if struct.unpack("<I", footer)[0] != masked_crc(content):
        raise DataError(f"{path} is damaged: the checksum of the record at byte {record.offset} is wrong. Fetch it again.")


def read_content(path: Path, record: TFRecord) -> bytes:
    return _read_record(path, record)[0]


def masked_crc(content: bytes) -> int:
    """Return the checksum of a length or a content."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _record(path: Path, offset: int, header: bytes) -> TFRecord:
    if len(header) < HEADER_BYTES:
        raise DataError(f"{path} is cut short: the record at byte {offset} has only {len(header)} of its header's 12 bytes")
    if struct.unpack("<I", header[8:])[0] != masked_crc(header[:8]):
        if offset == 0 and (other := recognise_format(header)):
            raise DataError(f"{path} is no TFRecord file: it is {other}. Fetch or make it again, not compressed.")
        what = "is no TFRecord file: it begins with" if offset == 0 else f"is damaged: no record begins at byte {offset}, but"
        raise DataError(f"{path} {what} {header.hex(' ')}. Fetch or make it again.")
    return TFRecord(offset, struct.unpack("<Q", header[:8])[0])


def _read_record(path: Path, record: TFRecord) -> tuple[bytes, bytes]:
    with path.open("rb") as file:
        file.seek(record.content)
        return file.read(record.length), file.read(FOOTER_BYTES)


def _compute_remainder(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_compute_remainder(byte) for byte in range(256))


MOST_LANES = 256  # open files of a lone process
WALKED_BYTES = 1 << 30  # of a set up to this size all headers are checked before training; of a larger one, each file's first
_NAME = re.compile(r"(?P<part>[a-z]+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.tfrecords?)?")


def find_shards(folder: Path, part: str) -> list[Path]:
    """Return all shards of "train" or "validation", in their order.

    They are in the folder or in one with the part's name in it (`train/`), and may end in .tfrecord or .tfrecords. Raises
    `SpecError` if there are none, or not all of one set.
    """
    for each in iterate_folders(folder, (part,)):
        matches = [match for name in list_names(each) if (match := _NAME.fullmatch(name)) and match["part"] == part]
        if matches:
            return _check_whole_set(each, part, matches)
    found = describe_folder(folder, (part,))
    raise SpecError(
        f"{folder} has no shards, where files like {part}-00000-of-01024 of one set are needed.{found} "
        "Set data_dir to a folder with ImageNet in TFRecord files, or make one: dtfperf make-data imagenet --out DIR"
    )


def _check_whole_set(folder: Path, part: str, matches: Sequence[re.Match[str]]) -> list[Path]:
    sets = sorted({match["count"] + (match["end"] or "") for match in matches})
    if len(sets) > 1:
        raise SpecError(
            f"{folder} has shards of several sets, of {', '.join(sets)}, where files like {part}-00000-of-01024 of one set are "
            "needed. Remove the files of all sets but one."
        )
    count, end = int(matches[0]["count"]), matches[0]["end"] or ""
    names = [f"{part}-{number:05}-of-{count:05}{end}" for number in range(count)]
    missing = sorted({*names} - {match[0] for match in matches})
    if missing:
        raise SpecError(f"{folder} lacks {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}: fetch or make the set again")
    return [folder / name for name in names]


@dataclass(frozen=True)
class ShardReading:
    """The records that a tower reads: some lanes in turn, and of these every `stride`-th record from `offset` on.

    Shards are distributed over lanes, of which the number depends only on the number of shards. The sequence of all images
    takes one from each lane in turn. With as many shards as towers, or a multiple, a tower reads only its own lanes, and with
    any number of workers each step has the images that a single process would have. Lanes with fewer images begin their next
    pass earlier than others: by one image in a thousand in the original set.
    """

    lanes: Sequence[Sequence[int]]  # shards by number
    stride: int
    offset: int


def plan_reading(shards: int, share: Share) -> ShardReading:
    lanes = next(lanes for lanes in range(min(shards, MOST_LANES), 0, -1) if shards % lanes == 0)
    groups = math.gcd(lanes, share.towers)  # of towers, which share their lanes
    mine = [range(lane, shards, lanes) for lane in range(share.tower % groups, lanes, groups)]
    return ShardReading(mine, stride=share.towers // groups, offset=share.tower // groups)


def check_shards(shards: Sequence[Path]) -> None:
    """Check that no shard is empty, cut short, or of another format, as far as this is quick. Raises `DataError`."""
    whole = sum(map(_get_size, shards)) <= WALKED_BYTES
    for path in shards:
        for _ in iterate_records(path):
            if not whole:
                break


def _get_size(path: Path) -> int:
    """Return the size of a shard in bytes; 0 if it cannot be read, for which `records` then raises the reason."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def iterate_all_records(shards: Sequence[Path]) -> Iterator[tuple[Path, TFRecord]]:
    for path in shards:
        for record in iterate_records(path):
            yield path, record
