"""Read the file formats of MNIST (idx) and CIFAR-10 (binary), and recognise files of other formats. Needs no TensorFlow."""

import math
import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pytest_dtfperf.errors import SpecError

GZIP = b"\x1f\x8b"
MOST_NAMES = 10_000  # at most, of a folder: more than any data set has, and listed at once
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (  # its first bytes, in lower case and at most 12, and its description
    (b"<!doctype", "an HTML page, as servers send in place of a file"),
    (b"<html", "an HTML page, as servers send in place of a file"),
    (b"<?xml", "an XML document, as object stores send in place of a file"),
    (b"version http", "a Git LFS pointer, and not the file: run git lfs pull"),
    (GZIP, "compressed with gzip"),
    (b"\x78\x01", "compressed with zlib"),
    (b"\x78\x5e", "compressed with zlib"),
    (b"\x78\x9c", "compressed with zlib"),
    (b"\x78\xda", "compressed with zlib"),
    (b"pk\x03\x04", "a zip archive"),
    (b"bzh", "compressed with bzip2"),
    (b"\xfd7zxz\0", "compressed with xz"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard"),
    (b"par1", "a Parquet file"),
    (b"\x93numpy", "a NumPy array"),
    (b"\x89hdf", "an HDF5 file"),
    (b"\x80\x02", "a Python pickle"),
    (b"\x80\x04", "a Python pickle"),
    (b"\xff\xd8\xff", "a JPEG"),
    (b"\x89png", "a PNG"),
    (b"{", "JSON"),
)
_FOLDERS: tuple[tuple[Callable[[str], object], str], ...] = (  # a name in a folder, and the description of the folder
    (re.compile(r".+\.tfrecord-\d{5}-of-\d{5}").fullmatch, "TFRecord files of TensorFlow Datasets, with other keys and labels"),
    (re.compile(r"dataset_info\.json|features\.json").fullmatch, "a data set of TensorFlow Datasets"),
    (re.compile(r".*\.parquet").fullmatch, "Parquet files, as of Hugging Face"),
    (re.compile(r"mnist\.npz").fullmatch, "mnist.npz, Keras' copy of MNIST"),
    (re.compile(r"cifar-10-batches-py|data_batch_[1-5]").fullmatch, "CIFAR-10's version for Python"),
    (re.compile(r"cifar-10-python\.tar(\.gz)?").fullmatch, "the archive of CIFAR-10's version for Python"),
    (re.compile(r".*\.(tar|tgz|zip)|.*\.tar\.\w+").fullmatch, "an archive: unpack it"),
    (re.compile(r"n\d{8}").fullmatch, "a folder of JPEGs for each class, as torchvision reads them"),
    (re.compile(r".*\.(jpe?g|png)", re.IGNORECASE).fullmatch, "single image files"),
)  # fmt: skip


def recognise_format(beginning: bytes) -> str | None:
    """Return the format of a file that begins with these bytes, as text after "it is"; None if it is unknown."""
    lower = beginning.lstrip(b"\xef\xbb\xbf \t\r\n").lower() or beginning
    return next((what for start, what in _BEGINNINGS if lower.startswith(start) or beginning.lower().startswith(start)), None)


def describe_format(beginning: bytes) -> str:
    """Return `: it is an HTML page, ...`, as the end of a message about a wrong file; empty if the format is unknown."""
    found = recognise_format(beginning)
    return f": it is {found}" if found else ""


def list_names(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where it does not exist. Raises `SpecError` where it cannot be read."""
    try:
        return sorted(os.listdir(folder))[:MOST_NAMES]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise SpecError(f"{folder} cannot be read: {exc.strerror}") from exc


def describe_folder(folder: Path, inner: Sequence[str]) -> str:
    """Return ` The folder has ...`: another data set in this folder or these inner ones, or else the first names in it.

    An empty or missing folder is reported as such. Raises `SpecError` where a folder cannot be read.
    """
    names = [name for each in (folder, *(folder / name for name in inner)) if each.is_dir() for name in list_names(each)]
    if not names:
        return f" {folder} is {'empty' if folder.is_dir() else 'no folder' if folder.exists() else 'missing'}."
    known = next((what for matches, what in _FOLDERS if any(map(matches, names))), None)
    if known:
        return f" The folder has {known}."
    return f" The folder has {', '.join(names[:3])}{', ...' * (len(names) > 3)}."


def iterate_folders(folder: Path, inner: Sequence[str]) -> Iterator[Path]:
    """Yield the folder, and those of the named folders in it that exist."""
    yield folder
    yield from (folder / name for name in inner if (folder / name).is_dir())


INNER_FOLDERS = ("MNIST/raw", "raw", "mnist")  # the folders of torchvision and others
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


def open_idx(folder: Path, name: str, dimensions: int) -> IdxFile:
    """Find an idx file, `train-images-idx3-ubyte` for example, and check it.

    The name may have a dot in place of its last but one hyphen (`train-images.idx3-ubyte`) and may end in .gz; whether the
    file is compressed is read from its content. Raises `SpecError` if it is missing, of another format, empty or cut short.
    """
    path = _find(folder, name)
    header_bytes = 4 + 4 * dimensions
    header, there = _read_beginning(path, HEAD_BYTES)
    if not there:
        raise SpecError(f"{path} is empty: fetch or make it again")
    magic = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if header[:4] != magic:
        raise SpecError(
            f"{path} begins with {header[:4].hex(' ')}, an idx file of {dimensions} dimensions with {magic.hex(' ')}"
            f"{describe_format(header)}. Fetch or make it again."
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
        paths = [each / one for each in iterate_folders(folder, INNER_FOLDERS) for one in names if (each / one).is_file()]
        if paths:
            return paths[0]
        found = describe_folder(folder, INNER_FOLDERS)
    except OSError as exc:
        raise SpecError(f"{folder} cannot be read: {exc.strerror}") from exc
    raise SpecError(
        f"{folder} has neither {name} nor {dotted}, with or without .gz.{found} Set data_dir to the folder of MNIST's four idx "
        "files, or make one: dtfperf make-data mnist --out DIR"
    )


def _read_beginning(path: Path, count: int) -> tuple[bytes, int]:
    """Return the first bytes of a file's content, at most `count`, and the size of the content; that of gzip is unpacked."""
    if _is_gzip(path):
        content = read_content(path)
        return content[:count], len(content)
    with _open_file(path) as file:
        return file.read(count), os.fstat(file.fileno()).st_size


def _is_gzip(path: Path) -> bool:
    with _open_file(path) as file:
        return file.read(len(GZIP)) == GZIP


@contextmanager
def _open_file(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc.strerror}. Fetch or make it again.") from exc


def read_content(path: Path) -> bytes:
    """Return the content of a file, of all members of a gzip file, with verified checksums. Raises `SpecError`."""
    with _open_file(path) as file:
        content = file.read()
    return b"".join(_unpack_members(path, content)) if content.startswith(GZIP) else content


def _unpack_members(path: Path, compressed: bytes) -> Iterator[bytes]:
    """Yield the content of each member of a gzip file, which has one or more of them (RFC 1952)."""
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


def open_mnist(folder: Path, part: str, image_shape: tuple[int, int, int], classes: int) -> tuple[IdxFile, IdxFile]:
    """Return the files of images and labels of a part, "train" or "t10k". Raises `SpecError` if they do not fit the network."""
    images = open_idx(folder, f"{part}-images-idx3-ubyte", dimensions=3)
    labels = open_idx(folder, f"{part}-labels-idx1-ubyte", dimensions=1)
    if images.shape[0] != labels.shape[0]:
        raise SpecError(f"{images.path} holds {images.shape[0]} images, {labels.path} {labels.shape[0]} labels: not of one set")
    if (*images.shape[1:], 1) != image_shape:
        raise SpecError(f"{images.path} holds images of {images.shape[1:]}, the network looks at {image_shape}")
    _check_labels(labels, classes)
    return images, labels


def _check_labels(file: IdxFile, classes: int) -> None:
    labels = read_content(file.path)[file.header_bytes :]
    if max(labels) >= classes:
        at = next(at for at, label in enumerate(labels) if label >= classes)
        where = f"byte {file.header_bytes + at}{' of its content' if file.is_gzip else ''}"
        raise SpecError(
            f"{file.path} has label {labels[at]} at {where}, where the network tells 0 to {classes - 1} apart: it is not of "
            "this set, or damaged"
        )


CIFAR_FOLDERS = ("cifar-10-batches-bin",)  # the archive's own
EDGE = 32  # pixels
CHANNELS = 3
CLASSES = 10
IMAGE_BYTES = CHANNELS * EDGE * EDGE
RECORD_BYTES = 1 + IMAGE_BYTES  # the label, then all red pixels row by row, all green ones, all blue ones

TRAINING_FILES = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
TEST_FILES = ("test_batch.bin",)


def open_cifar10(folder: Path, names: tuple[str, ...]) -> dict[Path, int]:
    """Return the number of images by file. The files are in the folder, or in cifar-10-batches-bin in it.

    Raises `SpecError` if one is missing, cut short, empty or of another format.
    """
    inner = next((each for each in iterate_folders(folder, CIFAR_FOLDERS) if (each / names[0]).exists()), folder)
    return {path: _count_images(path, folder) for path in (inner / name for name in names)}


def _count_images(path: Path, folder: Path) -> int:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SpecError(
            f"{path} is missing.{describe_folder(folder, CIFAR_FOLDERS)} Set data_dir to the folder of "
            f"CIFAR-10's binary version, with {', '.join((*TRAINING_FILES, *TEST_FILES))}, "
            "or make one: dtfperf make-data cifar10 --out DIR"
        ) from None
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc}. Fetch or make it again.") from exc
    if not content:
        raise SpecError(f"{path} is empty: fetch or make it again")
    if (other := recognise_format(content[:64])) and content[0] >= CLASSES:
        raise SpecError(f"{path} is no file of CIFAR-10's binary version: it is {other}. Fetch or make it again.")
    _check_cifar_labels(path, content)
    images, rest = divmod(len(content), RECORD_BYTES)
    if rest:
        raise SpecError(
            f"{path} ends within a record: the one at byte {images * RECORD_BYTES} has {rest} of {RECORD_BYTES} bytes. "
            "Fetch or make it again."
        )
    return images


def _check_cifar_labels(path: Path, content: bytes) -> None:
    for at, label in enumerate(content[::RECORD_BYTES]):
        if label >= CLASSES:
            raise SpecError(
                f"{path} has label {label} at byte {at * RECORD_BYTES}, where CIFAR-10 has 0 to {CLASSES - 1}: it is not "
                "of CIFAR-10's binary version, or damaged"
            )
