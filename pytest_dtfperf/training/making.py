"""Make data sets with classes that can be learnt, in the original formats of MNIST, CIFAR-10 and ImageNet.

Each class has a pattern of coarse squares, each picture noise of its own. The same seed makes the same bytes.

    python -m pytest_dtfperf.training.making    reads a JSON object that describes the data set, prints a line about the result
"""

import gzip
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.extensions import load
from pytest_dtfperf.training.inputs.formats import CHANNELS, CLASSES, EDGE, TEST_FILES, TRAINING_FILES

Pixels = NDArray[np.uint8]  # (height, width, channels)

SQUARES = 4  # per edge of a pattern
CONTRAST = 60.0  # of a pattern, and
NOISE = 25.0  # of a picture: deviation of a grey value from the middle of 0 to 255


def iterate_labels(images: int, classes: int, seed: int, part: int) -> Iterator[tuple[int, int]]:
    """Yield the number and the class of each image, in random order, with equally many images of each class."""
    for image in np.random.default_rng((seed, part)).permutation(images).tolist():
        yield image, image % classes


def make_pattern(label: int, channels: int, seed: int) -> NDArray[np.float64]:
    """Return the pattern of a class, of shape (squares, squares, channels), with values around 0."""
    return np.random.default_rng((seed, 1 << 20, label)).standard_normal((SQUARES, SQUARES, channels)) * CONTRAST


def enlarge_squares(small: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Enlarge each square to a rectangle of equal pixels."""
    rows, columns = (np.arange(edge) * SQUARES // edge for edge in (height, width))
    return small[rows][:, columns]


def add_noise(values: NDArray[np.float64], chance: np.random.Generator) -> Pixels:
    """Return `values` around 0 as grey values from 0 to 255, with one picture's noise."""
    noise = chance.standard_normal(values.shape, np.float32) * NOISE
    return np.clip(values + noise + 127.5, 0, 255).astype(np.uint8)


MNIST_EDGE = 28  # pixels
MNIST_CLASSES = 10


def make_mnist(out: str, images: int, test_images: int, seed: int) -> str:
    for part, (name, count) in enumerate((("train", images), ("t10k", test_images))):
        pixels = np.empty((count, MNIST_EDGE, MNIST_EDGE), np.uint8)
        labels = np.empty(count, np.uint8)
        for at, (image, label) in enumerate(iterate_labels(count, MNIST_CLASSES, seed, part)):
            chance = np.random.default_rng((seed, part, image))
            pixels[at] = add_noise(enlarge_squares(make_pattern(label, 1, seed), MNIST_EDGE, MNIST_EDGE), chance)[:, :, 0]
            labels[at] = label
        _write_idx(Path(out, f"{name}-images-idx3-ubyte.gz"), pixels)
        _write_idx(Path(out, f"{name}-labels-idx1-ubyte.gz"), labels)
    return f"{images} training and {test_images} test images of {MNIST_EDGE} x {MNIST_EDGE} in idx files"


def _write_idx(path: Path, content: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> None:
    """Write a magic number (unsigned bytes, dimensions), the shape in big-endian numbers, and the bytes."""
    header = bytes((0, 0, 0x08, content.ndim)) + struct.pack(f">{content.ndim}I", *content.shape)
    path.write_bytes(gzip.compress(header + content.tobytes(), mtime=0))  # mtime=0: the same bytes on every day


def make_cifar10(out: str, images: int, test_images: int, seed: int) -> str:
    for part, (names, count) in enumerate(((TRAINING_FILES, images), (TEST_FILES, test_images))):
        records = [
            _make_cifar10_record(image, label, part, seed) for image, label in iterate_labels(count, CLASSES, seed, part)
        ]
        for number, name in enumerate(names):
            first, end = (count * border // len(names) for border in (number, number + 1))
            Path(out, name).write_bytes(b"".join(records[first:end]))
    return f"{images} training and {test_images} test images of {EDGE} x {EDGE} in CIFAR-10's binary version"


def _make_cifar10_record(image: int, label: int, part: int, seed: int) -> bytes:
    """Return the label, then the red pixels, the green ones, the blue ones."""
    chance = np.random.default_rng((seed, part, image))
    pixels = add_noise(enlarge_squares(make_pattern(label, CHANNELS, seed), EDGE, EDGE), chance)
    return bytes((label,)) + np.transpose(pixels, (2, 0, 1)).tobytes()


def make_data_set(data: str, **wanted: Any) -> str:
    """Make a data set of the format of `data`; return one line about it."""
    if data == "imagenet":
        make_imagenet: Callable[..., str] = load("pytest_dtfperf.training.making_imagenet:make_imagenet")  # needs TensorFlow
        return make_imagenet(**wanted)
    return {"mnist": make_mnist, "cifar10": make_cifar10}[data](**wanted)


if __name__ == "__main__":
    print(make_data_set(**json.load(sys.stdin)))
