"""Make handwritten digits in MNIST's own file format, offline, for the MNIST tests without the original data set.

scikit-learn bundles 1,797 digits of 8 x 8 pixels (UCI ML, Optical Recognition of Handwritten Digits). They become images of
28 x 28, split into a training and a test set. Run this file with a folder to make the set there, and set `data_dir` to it.
"""

import gzip
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SEED = 1797
TEST_IMAGES = 297  # the rest, 1,500, is for training
EDGE = 28  # pixels, as in MNIST
DARKEST = 16  # scikit-learn's pixels are counts from 0 to this

FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))


def make(folder: Path) -> Path:
    """Make the four files in `folder`, unless they exist, and return it. The bytes are always the same. A set is complete."""
    if all((folder / name).is_file() for name in FILES):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write(unfinished)
        folder.mkdir(exist_ok=True)
        for name in FILES:  # another process that makes the same set writes the same bytes
            os.replace(unfinished / name, folder / name)
    finally:
        shutil.rmtree(unfinished)
    return folder


def _write(folder: Path) -> None:
    from sklearn.datasets import load_digits  # only here: with the files, scikit-learn is not needed

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    images = enlarged(digits.images)[order]
    labels = digits.target.astype(np.uint8)[order]
    for part, chosen in (("train", slice(TEST_IMAGES, None)), ("t10k", slice(TEST_IMAGES))):
        _write_idx(folder / f"{part}-images-idx3-ubyte.gz", images[chosen])
        _write_idx(folder / f"{part}-labels-idx1-ubyte.gz", labels[chosen])


def enlarged(images: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return (n, 28, 28) grey values of (n, 8, 8) counts, interpolated linearly between the centres of the small pixels."""
    weights = _interpolation(images.shape[1], EDGE)
    grey = np.einsum("ri,nij,cj->nrc", weights, images, weights) * (255 / DARKEST)
    whole: NDArray[np.uint8] = np.rint(grey).astype(np.uint8)
    return whole


def _interpolation(small: int, large: int) -> NDArray[np.float64]:
    """Return (large, small): the part of each small pixel in each large one. Rows add up to 1."""
    centres = np.clip((np.arange(large) + 0.5) * small / large - 0.5, 0, small - 1)
    distance = np.abs(centres[:, None] - np.arange(small)[None, :])
    weights: NDArray[np.float64] = np.clip(1 - distance, 0, None)
    return weights


def _write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write the magic number (unsigned bytes, dimensions), the shape in big-endian numbers, and the content."""
    header = bytes((0, 0, 0x08, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(header + array.tobytes(), mtime=0))  # mtime=0: the same bytes on every day


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(f"usage: python {sys.argv[0]} FOLDER")
    print(make(Path(sys.argv[1])))
