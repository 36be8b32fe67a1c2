"""Which file, and where in it, was behind an error of the pipeline that reads ImageNet."""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic

import tensorflow as tf

from pytest_dtfperf.errors import DataError
from pytest_dtfperf.training.inputs.shards import all_records
from pytest_dtfperf.training.inputs.tfrecord import Record, check_content, content_of, records

FOREIGN = "this record is no labelled image"
SEARCH_S = 1.0  # at most, to find a record by what is in it

_START_OF_JPEG = b"\xff\xd8\xff"
_ASSERTED = re.compile(rf"\[{FOREIGN}\] \[(.+)\] \[(\d+)\]")
_CORRUPTED = re.compile(r"(?:corrupted|truncated) record at (\d+)")
_UNPARSED = re.compile(r"Could not parse example input")
_UNDECODED = re.compile(r"Invalid JPEG data.*?size (\d+)")


def behind(message: str, shards: Sequence[Path], classes: int) -> DataError | None:
    """What TensorFlow's message is about, if it is about one of these files."""
    try:
        if match := _ASSERTED.search(message):
            return _foreign(Path(match[1]), int(match[2]), classes)
        if match := _CORRUPTED.search(message):
            return _corrupted(shards, int(match[1]))
        if _UNPARSED.search(message):
            return _found(shards, _is_no_example, "is no tf.train.Example")
        if match := _UNDECODED.search(message):
            size = int(match[1])
            return _found(shards, lambda content: len(_jpeg(content)) == size, f"has a damaged JPEG of {size} bytes")
    except DataError as found:
        return found
    return None


def _corrupted(shards: Sequence[Path], offset: int) -> DataError:
    """TensorFlow tells where, not in which file, and counts from the record's content if that is what is wrong."""
    for path, record in all_records(shards):
        if record.content == offset:
            check_content(path, record)
    return DataError(f"a record at byte {offset} is damaged, in a shard of {shards[0].parent}")


def _foreign(path: Path, number: int, classes: int) -> DataError:
    record = next(islice(records(path), number, None))
    features = tf.train.Example.FromString(content_of(path, record)).features.feature
    labels, jpegs = features["image/class/label"].int64_list.value, features["image/encoded"].bytes_list.value
    image = "is no JPEG" if jpegs else "is missing"
    wanted = f"image/encoded must be a JPEG, and it {image}"
    if jpegs and jpegs[0].startswith(_START_OF_JPEG):
        wanted = f"image/class/label must be one number from 0 to {classes - 1}, not {list(labels) or 'missing'}"
    return _in(path, record, f"is no labelled image: {wanted}")


def _found(shards: Sequence[Path], wrong: Callable[[bytes], bool], what: str) -> DataError:
    began = monotonic()
    for path, record in all_records(shards):
        if wrong(content_of(path, record)):
            return _in(path, record, what)
        if monotonic() - began > SEARCH_S:
            break
    return DataError(f"a record in a shard of {shards[0].parent} {what}")


def _in(path: Path, record: Record, what: str) -> DataError:
    return DataError(f"{path}: the record at byte {record.offset} {what}. Fetch or make the file again.")


def _is_no_example(content: bytes) -> bool:
    try:
        tf.train.Example.FromString(content)
    except Exception:  # protobuf's own, which it moves about
        return True
    return False


def _jpeg(content: bytes) -> bytes:
    values = tf.train.Example.FromString(content).features.feature["image/encoded"].bytes_list.value
    return bytes(values[0]) if values else b""
