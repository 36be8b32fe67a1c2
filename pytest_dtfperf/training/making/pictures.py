"""Made-up pictures whose class can be learnt: each class has a pattern of coarse squares, each picture noise of its own."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # (height, width, channels)

SQUARES = 4  # per edge of a pattern
CONTRAST = 60.0  # of a pattern, and
NOISE = 25.0  # of a picture: deviation of a grey value from the middle of 0 to 255


def labels_of(images: int, classes: int, seed: int, part: int) -> Iterator[tuple[int, int]]:
    """Image and class, as many of each class, in an order of chance."""
    for image in np.random.default_rng((seed, part)).permutation(images).tolist():
        yield image, image % classes


def pattern(label: int, channels: int, seed: int) -> NDArray[np.float64]:
    """(squares, squares, channels), around 0."""
    return np.random.default_rng((seed, 1 << 20, label)).standard_normal((SQUARES, SQUARES, channels)) * CONTRAST


def enlarge_squares(small: NDArray[np.float64], height: int, width: int) -> NDArray[np.float64]:
    """Enlarge each square to a rectangle of equal pixels."""
    rows, columns = (np.arange(edge) * SQUARES // edge for edge in (height, width))
    return small[rows][:, columns]


def noisy(values: NDArray[np.float64], chance: np.random.Generator) -> Pixels:
    """Around 0 -> grey values."""
    noise = chance.standard_normal(values.shape, np.float32) * NOISE
    return np.clip(values + noise + 127.5, 0, 255).astype(np.uint8)
