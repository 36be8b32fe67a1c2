"""A data set in MNIST's idx files."""

import gzip
import struct
from pathlib import Path

import numpy as np

from pytest_dtfperf.training.making.pictures import enlarge_squares, labels_of, noisy, pattern

EDGE = 28  # pixels
CLASSES = 10


def make(out: str, images: int, test_images: int, seed: int) -> str:
    for part, (name, count) in enumerate((("train", images), ("t10k", test_images))):
        pixels = np.empty((count, EDGE, EDGE), np.uint8)
        labels = np.empty(count, np.uint8)
        for at, (image, label) in enumerate(labels_of(count, CLASSES, seed, part)):
            chance = np.random.default_rng((seed, part, image))
            pixels[at] = noisy(enlarge_squares(pattern(label, 1, seed), EDGE, EDGE), chance)[:, :, 0]
            labels[at] = label
        _write(Path(out, f"{name}-images-idx3-ubyte.gz"), pixels)
        _write(Path(out, f"{name}-labels-idx1-ubyte.gz"), labels)
    return f"{images} training and {test_images} test images of {EDGE} x {EDGE} in idx files"


def _write(path: Path, content: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    """Write a magic number (unsigned bytes, dimensions), the shape in big-endian numbers, and the bytes."""
    header = bytes((0, 0, 0x08, content.ndim)) + struct.pack(f">{content.ndim}I", *content.shape)
    path.write_bytes(gzip.compress(header + content.tobytes(), mtime=0))  # mtime=0: the same bytes on every day
