"""A data set in CIFAR-10's binary version."""

from pathlib import Path

import numpy as np

from pytest_dtfperf.training.inputs.formats import CHANNELS, CLASSES, EDGE, TEST_FILES, TRAINING_FILES
from pytest_dtfperf.training.making.pictures import enlarge_squares, labels_of, noisy, pattern


def make(out: str, images: int, test_images: int, seed: int) -> str:
    for part, (names, count) in enumerate(((TRAINING_FILES, images), (TEST_FILES, test_images))):
        records = [_record(image, label, part, seed) for image, label in labels_of(count, CLASSES, seed, part)]
        for number, name in enumerate(names):
            first, end = (count * border // len(names) for border in (number, number + 1))
            Path(out, name).write_bytes(b"".join(records[first:end]))
    return f"{images} training and {test_images} test images of {EDGE} x {EDGE} in CIFAR-10's binary version"


def _record(image: int, label: int, part: int, seed: int) -> bytes:
    """Return the label, then the red pixels, the green ones, the blue ones."""
    chance = np.random.default_rng((seed, part, image))
    pixels = noisy(enlarge_squares(pattern(label, CHANNELS, seed), EDGE, EDGE), chance)
    return bytes((label,)) + np.transpose(pixels, (2, 0, 1)).tobytes()
