"""What a file or folder holds that is not in the format an input reads, so that a message can name it. Needs no TensorFlow."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pytest_dtfperf.errors import SpecError

GZIP = b"\x1f\x8b"
MOST_NAMES = 10_000  # of a folder's: more than any data set has in one folder, and listed at once
_BEGINNINGS: tuple[tuple[bytes, str], ...] = (  # how it begins, in lower case and at most 12 bytes, and what it is
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
_FOLDERS: tuple[tuple[Callable[[str], object], str], ...] = (  # which name shows what a folder holds
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


def format_of(beginning: bytes) -> str | None:
    """Return what a file that begins with these bytes is, as words behind "it is"; None of what is not known."""
    lower = beginning.lstrip(b"\xef\xbb\xbf \t\r\n").lower() or beginning
    return next((what for start, what in _BEGINNINGS if lower.startswith(start) or beginning.lower().startswith(start)), None)


def format_found(beginning: bytes) -> str:
    """Return `: it is an HTML page, ...`, to be put behind what a file should be and is not; empty where it is not known."""
    found = format_of(beginning)
    return f": it is {found}" if found else ""


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder, sorted; none where it does not exist. Raises `SpecError` where it cannot be read."""
    try:
        return sorted(os.listdir(folder))[:MOST_NAMES]
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise SpecError(f"{folder} cannot be read: {exc.strerror}") from exc


def folder_found(folder: Path, inner: Sequence[str] = ()) -> str:
    """Return ` The folder has ...`: which other data set a folder, or one of these in it, holds, or its first names.

    Empty where there is nothing. Raises `SpecError` where a folder cannot be read.
    """
    names = [name for each in (folder, *(folder / name for name in inner)) if each.is_dir() for name in names_in(each)]
    if not names:
        return f" {folder} is {'empty' if folder.is_dir() else 'no folder' if folder.exists() else 'missing'}."
    known = next((what for matches, what in _FOLDERS if any(map(matches, names))), None)
    if known:
        return f" The folder has {known}."
    return f" The folder has {', '.join(names[:3])}{', ...' * (len(names) > 3)}."


def candidates(folder: Path, inner: Sequence[str]) -> Iterator[Path]:
    """Yield the folder, and those of these folders in it that exist."""
    yield folder
    yield from (folder / name for name in inner if (folder / name).is_dir())
