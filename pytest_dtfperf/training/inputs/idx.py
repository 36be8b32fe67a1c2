"""The idx format: http://yann.lecun.com/exdb/mnist, "FILE FORMATS FOR THE MNIST DATABASE". Needs no TensorFlow."""

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from pytest_dtfperf.errors import SpecError

UNSIGNED_BYTES = 0x08  # third byte of an idx file's magic number; the fourth is the number of dimensions


@dataclass(frozen=True)
class IdxFile:
    """An idx file of unsigned bytes, compressed or not: a header of big-endian numbers, then one record per item."""

    path: Path
    shape: tuple[int, ...]  # items, then the shape of one

    @property
    def header_bytes(self) -> int:
        return 4 + 4 * len(self.shape)

    @property
    def record_bytes(self) -> int:
        return math.prod(self.shape[1:])


def open_idx(folder: Path, name: str, dimensions: int) -> IdxFile:
    """Find `name` or `name`.gz and check it. Raises `SpecError` if it is missing, of another format or cut short."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise SpecError(f"{folder} has neither {name} nor {name}.gz. Set data_dir to the folder of MNIST's four idx files.")
    header_bytes = 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_bytes)
    except (OSError, EOFError, zlib.error) as exc:
        raise SpecError(f"{path} cannot be read: {exc}. Fetch or make it again.") from exc
    magic = bytes((0, 0, UNSIGNED_BYTES, dimensions))
    if header[:4] != magic:
        raise SpecError(
            f"{path} begins with {header[:4].hex(' ')}, an idx file of {dimensions} dimensions with {magic.hex(' ')}"
        )
    if len(header) < header_bytes:
        raise SpecError(f"{path} ends within its header, after {len(header)} of {header_bytes} bytes")
    found = IdxFile(path, struct.unpack(f">{dimensions}I", header[4:]))
    promised, there = header_bytes + math.prod(found.shape), _size_bytes(path)
    if promised != there:
        raise SpecError(
            f"{path} promises {promised} bytes for its shape {found.shape}, and holds {there}: fetch or make it again"
        )
    return found


def _size_bytes(path: Path) -> int:
    """Of the content. A gzip file's last four bytes say it, which spares reading all."""
    if path.suffix != ".gz":
        return path.stat().st_size
    with path.open("rb") as file:
        file.seek(-4, 2)
        return int(struct.unpack("<I", file.read(4))[0])


def open_pair(folder: Path, part: str, image_shape: tuple[int, int, int]) -> tuple[IdxFile, IdxFile]:
    """Images and labels of a part, "train" or "t10k", that belong together and fit a network. Raises `SpecError`."""
    images = open_idx(folder, f"{part}-images-idx3-ubyte", dimensions=3)
    labels = open_idx(folder, f"{part}-labels-idx1-ubyte", dimensions=1)
    if images.shape[0] != labels.shape[0]:
        raise SpecError(f"{images.path} holds {images.shape[0]} images, {labels.path} {labels.shape[0]} labels: not of one set")
    if (*images.shape[1:], 1) != image_shape:
        raise SpecError(f"{images.path} holds images of {images.shape[1:]}, the network looks at {image_shape}")
    return images, labels
