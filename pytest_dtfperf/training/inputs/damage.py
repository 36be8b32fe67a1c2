"""Find the file, and the position in it, that caused an error of the pipeline that reads ImageNet."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import DataError
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.shards import TFRecord, check_content, iterate_all_records, iterate_records, read_content
from pytest_dtfperf.training.reason import get_message

FOREIGN = "this record is no labelled image"
IMAGE, LABEL = "image/encoded", "image/class/label"
BOX = ("image/object/bbox/ymin", "image/object/bbox/xmin", "image/object/bbox/ymax", "image/object/bbox/xmax")
SEARCH_S = 60.0  # at most, to find a record by its content: less than the timeout of a step
AROUND_JPEG_BYTES = 1 << 16  # an Example has a few hundred bytes beside its JPEG
AT_ONCE = 64  # records that are decoded side by side

_START_OF_JPEG = b"\xff\xd8\xff"
_ASSERTED = re.compile(rf"\[{FOREIGN}\] \[(.+)\] \[(\d+)\]")
_CORRUPTED = re.compile(r"(?:corrupted|truncated) record at (\d+)")
_UNPARSED = re.compile(r"Could not parse example input|Key: image/")
_UNDECODED = re.compile(r"Invalid JPEG data(?:, (?:data )?size (?P<size>\d+))?|crop window")

Wrong = Callable[[bytes], str | None]  # returns what is wrong with a record's content


def find_cause(message: str, shards: Sequence[Path], classes: int) -> DataError | None:
    """Return the cause of TensorFlow's message, if it is in one of these files."""
    try:
        if match := _ASSERTED.search(message):
            return _describe_foreign_record(_unescape_path(match[1]), int(match[2]), classes)
        if match := _CORRUPTED.search(message):
            return _locate_corruption(shards, int(match[1]))
        if _UNPARSED.search(message):
            return _locate_wrong_record(
                shards, lambda content: find_problem(content, classes), f"is no labelled image: {message}"
            )
        if match := _UNDECODED.search(message):
            return _locate_undecodable(shards, int(match["size"]) if match["size"] else None)
    except DataError as found:
        return found
    return None


def _locate_corruption(shards: Sequence[Path], offset: int) -> DataError:
    """Return the error with its file. TensorFlow gives only the offset, counted from the record's content if that is wrong."""
    for path, record in iterate_all_records(shards):
        if record.content == offset:
            check_content(path, record)
    return DataError(f"a record at byte {offset} is damaged, in a shard of {shards[0].parent}")


def _unescape_path(quoted: str) -> Path:
    r"""Return the path in a message, where TensorFlow escapes quotation marks as C does: `bob\'s/train-00000-of-00001`."""
    return Path(os.fsdecode(quoted.encode().decode("unicode_escape").encode("latin-1")))


def _describe_foreign_record(path: Path, number: int, classes: int) -> DataError:
    record = next(islice(iterate_records(path), number, None))
    return _make_error(path, record, find_problem(read_content(path, record), classes) or "is no labelled image")


def _locate_undecodable(shards: Sequence[Path], size: int | None) -> DataError:
    """Return the error for the first JPEG that cannot be decoded, of `size` bytes if TensorFlow has named its size."""
    about = range(size, size + AROUND_JPEG_BYTES) if size is not None else None
    with _open_decoder() as undecodable:

        def describe_damage(content: bytes) -> str | None:
            jpeg = _get_jpeg(content)
            return undecodable(jpeg) if size is None or len(jpeg) == size else None

        return _locate_wrong_record(
            shards, describe_damage, "has a damaged JPEG" + (f" of {size} bytes" if size else ""), about
        )


@contextmanager
def _open_decoder() -> Iterator[Wrong]:
    """Yield a function that decodes a JPEG, and returns what is wrong with it. Any thread may call it."""
    with tf.Graph().as_default(), tf.device("/cpu:0"):
        jpeg = tf.compat.v1.placeholder(tf.string, ())
        decoded = tf.shape(tf.io.decode_jpeg(jpeg, channels=3, ratio=8))  # an eighth of the size has the same errors
        with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:

            def describe_undecodable(content: bytes) -> str | None:
                try:
                    session.run(decoded, {jpeg: content})
                except tf.errors.OpError:
                    return f"has a damaged JPEG of {len(content)} bytes"
                return None

            yield describe_undecodable


def _locate_wrong_record(shards: Sequence[Path], wrong: Wrong, what: str, length: range | None = None) -> DataError:
    """Return the first invalid record among those with a content of that length."""
    began, checked = monotonic(), 0
    some = (each for each in iterate_all_records(shards) if length is None or each[1].length in length)
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        while batch := list(islice(some, AT_ONCE)):
            problems = threads.map(lambda each: wrong(read_content(*each)), batch)
            for (path, record), problem in zip(batch, problems, strict=True):
                if problem:
                    return _make_error(path, record, problem)
            checked += len(batch)
            if monotonic() - began > SEARCH_S:
                return DataError(
                    f"a record in a shard of {shards[0].parent} {what}: it is none of the first {checked}, which were "
                    f"checked within {SEARCH_S:g} s. Fetch or make the set again."
                )
    return DataError(f"a record in a shard of {shards[0].parent} {what}")


def _make_error(path: Path, record: TFRecord, what: str) -> DataError:
    return DataError(f"{path}: the record at byte {record.offset} {what}. Fetch or make the file again.")


def find_problem(content: bytes, classes: int) -> str | None:
    """Return why a record is no labelled image; None if it is one."""
    try:
        features = tf.train.Example.FromString(content).features.feature
    except Exception:  # protobuf's own error, which moves between its versions
        return "is no tf.train.Example"
    wrong = _check_image(features) or _check_label(features, classes) or _check_boxes(features)
    return wrong and f"is no labelled image: {wrong}"


def _check_image(features: Mapping[str, Any]) -> str | None:
    values = _get_values(features, IMAGE)
    if len(values) == 1 and isinstance(values[0], bytes) and values[0].startswith(_START_OF_JPEG):
        return None
    it = f"there are {len(values)}" if len(values) > 1 else "it is no JPEG" if values else "it is missing"
    return f"{IMAGE} must be a JPEG, and {it}"


def _check_label(features: Mapping[str, Any], classes: int) -> str | None:
    values = _get_values(features, LABEL)
    if len(values) == 1 and isinstance(values[0], int) and 0 <= values[0] < classes:
        return None
    return f"{LABEL} must be one number from 0 to {classes - 1}, not {values or 'missing'}"


def _check_boxes(features: Mapping[str, Any]) -> str | None:
    sides = [_get_values(features, name) for name in BOX]
    if len({len(values) for values in sides}) > 1:
        return f"{', '.join(BOX)} must be as many each, not {', '.join(str(len(values)) for values in sides)}"
    for name, values in zip(BOX, sides, strict=True):
        if not all(isinstance(value, float) and 0 <= value <= 1 for value in values):
            return f"{name} must be parts of the image's edge, from 0.0 to 1.0, not {values}"
    for number, (top, left, bottom, right) in enumerate(zip(*sides, strict=True)):
        if top >= bottom or left >= right:
            return (
                f"bounding box {number} is {'inverted' if top > bottom or left > right else 'empty'}: ymin {top:.4g} and ymax "
                f"{bottom:.4g}, xmin {left:.4g} and xmax {right:.4g}. Each minimum must be less than its maximum"
            )
    return None


def _get_values(features: Mapping[str, Any], name: str) -> list[Any]:
    """Return the values of a feature of any kind: bytes, float or int."""
    kind = features[name].WhichOneof("kind") if name in features else None
    return list(getattr(features[name], kind).value) if kind else []


def _get_jpeg(content: bytes) -> bytes:
    values = tf.train.Example.FromString(content).features.feature[IMAGE].bytes_list.value
    return bytes(values[0]) if values else b""


@contextmanager
def explain_errors(feeds: Iterable[TrainingInput]) -> Iterator[None]:
    """Within the context, replace TensorFlow's errors by the cause that one of the inputs finds."""
    try:
        yield
    except (tf.errors.OpError, UnicodeDecodeError) as error:
        for feed in feeds:
            if cause := feed.explain(get_message(error)):
                raise cause from error
        raise
