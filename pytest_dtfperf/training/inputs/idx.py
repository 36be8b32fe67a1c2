"""The idx format: http://yann.lecun.com/exdb/mnist, "FILE FORMATS FOR THE MNIST DATABASE". Needs no TensorFlow."""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.inputs.formats import GZIP, candidates, folder_found, format_found

INNER_FOLDERS = ("MNIST/raw", "raw", "mnist")  # where torchvision and others put the four files
HEAD_BYTES = 64  # enough of a file to recognise another format by
UNSIGNED_BYTES = 0x08  # third byte of an idx file's magic number; the fourth is the number of dimensions


@dataclass(frozen=True)
class IdxFile:
    """An idx file of unsigned bytes, compressed or not: a header of big-endian numbers, then one record per item."""

    path: Path
    shape: tuple[int, ...]  # items, then the shape of one
    is_gzip: bool  # by its content, whatever its name

    @property
    def header_bytes(self) -> int:
        return 4 + 4 * len(self.shape)

    @property
    def record_bytes(self) -> int:
        return math.prod(self.shape[1:])


def open_idx(folder: Path, name: str, dimensions: int) -> IdxFile:
    """Find an idx file, `train-images-idx3-ubyte` for example, and check it.

    The name may have a dot in place of its last but one hyphen (`train-images.idx3-ubyte`) and may end in .gz; whether the
    file is compressed is read from its content. Raises `SpecError` if it is missing, of another format, empty or cut short.
    """
    path = _find(folder, name)
    header_bytes = 4 + 4 * dimensions
    header, there = _beginning(path, HEAD_BYTES)
    if not there:
        raise SpecError(f"{path} is empty: fetch or make it again")
    magic = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if header[:4] != magic:
        raise SpecError(
            f"{path} begins with {header[:4].hex(' ')}, an idx file of {dimensions} dimensions with {magic.hex(' ')}"
            f"{format_found(header)}. Fetch or make it again."
        )
    header = header[:header_bytes]
    if len(header) < header_bytes:
        raise SpecError(f"{path} ends within its header, after {len(header)} of {header_bytes} bytes")
    found = IdxFile(path, struct.unpack(f">{dimensions}I", header[4:]), is_gzip=_is_gzip(path))
    promised = header_bytes + math.prod(found.shape)
    if promised != there:
        raise SpecError(
            f"{path} promises {promised} bytes for its shape {found.shape}, and holds {there}: fetch or make it again"
        )
    if not found.shape[0]:
        raise SpecError(f"{path} is a set of nothing: its header counts 0 items")
    return found


def _find(folder: Path, name: str) -> Path:
    """Return the path of a file, by any of the names that it is published under. Raises `SpecError` if there is none."""
    dotted = ".idx".join(name.rsplit("-idx", 1))
    names = [f"{each}{end}" for each in (name, dotted) for end in ("", ".gz")]
    try:
        paths = [each / one for each in candidates(folder, INNER_FOLDERS) for one in names if (each / one).is_file()]
        if paths:
            return paths[0]
        found = folder_found(folder, INNER_FOLDERS)
    except OSError as exc:
        raise SpecError(f"{folder} cannot be read: {exc.strerror}") from exc
    raise SpecError(
        f"{folder} has neither {name} nor {dotted}, with or without .gz.{found} Set data_dir to the folder of MNIST's four idx "
        "files, or make one: dtfperf make-data mnist --out DIR"
    )


def _beginning(path: Path, count: int) -> tuple[bytes, int]:
    """Return the first bytes of its content, at most `count`, and how many bytes there are; of gzip, of what is compressed."""
    if _is_gzip(path):
        content = content_of(path)
        return content[:count], len(content)
    with _opened(path) as file:
        return file.read(count), os.fstat(file.fileno()).st_size


def _is_gzip(path: Path) -> bool:
    with _opened(path) as file:
        return file.read(len(GZIP)) == GZIP


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc.strerror}. Fetch or make it again.") from exc


def content_of(path: Path) -> bytes:
    """Return all of a file; of gzip what all of its members hold, whose checksums are verified. Raises `SpecError`."""
    with _opened(path) as file:
        content = file.read()
    return b"".join(_members(path, content)) if content.startswith(GZIP) else content


def _members(path: Path, compressed: bytes) -> Iterator[bytes]:
    """RFC 1952: a gzip file is one or more members, one after the other."""
    rest = compressed
    while rest:
        began = len(compressed) - len(rest)
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # 16: gzip's header and checksum
        try:
            content = member.decompress(rest)
        except zlib.error as exc:
            raise SpecError(
                f"{path} cannot be read: what begins at byte {began} is no gzip, or damaged ({exc}). Fetch or make it again."
            ) from exc
        if not member.eof:
            raise SpecError(
                f"{path} cannot be read: the gzip that begins at byte {began} is cut short. Fetch or make it again."
            )
        yield content
        rest = member.unused_data


def open_pair(folder: Path, part: str, image_shape: tuple[int, int, int], classes: int) -> tuple[IdxFile, IdxFile]:
    """Images and labels of a part, "train" or "t10k", that belong together and fit a network. Raises `SpecError`."""
    images = open_idx(folder, f"{part}-images-idx3-ubyte", dimensions=3)
    labels = open_idx(folder, f"{part}-labels-idx1-ubyte", dimensions=1)
    if images.shape[0] != labels.shape[0]:
        raise SpecError(f"{images.path} holds {images.shape[0]} images, {labels.path} {labels.shape[0]} labels: not of one set")
    if (*images.shape[1:], 1) != image_shape:
        raise SpecError(f"{images.path} holds images of {images.shape[1:]}, the network looks at {image_shape}")
    _check_labels(labels, classes)
    return images, labels


def _check_labels(file: IdxFile, classes: int) -> None:
    labels = content_of(file.path)[file.header_bytes :]
    if max(labels) >= classes:
        at = next(at for at, label in enumerate(labels) if label >= classes)
        where = f"byte {file.header_bytes + at}{' of its content' if file.is_gzip else ''}"
        raise SpecError(
            f"{file.path} has label {labels[at]} at {where}, where the network tells 0 to {classes - 1} apart: it is not of "
            "this set, or damaged"
        )
