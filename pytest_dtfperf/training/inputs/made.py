"""Images made in Python: what producers deliver. Needs numpy alone, so that it also runs where there is no TensorFlow."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pytest_dtfperf.training.inputs.share import Share, batches

Batch = tuple[NDArray[np.uint8], NDArray[np.int32]]  # images (batch, height, width, channels), labels (batch,)

IMAGES = 1024  # in a pass
STRIDE = 16  # bytes from one image to the next: all differ, and making one costs a copy


def made(share: Share, image_shape: tuple[int, int, int], classes: int, seed: int) -> Iterator[Batch]:
    """A tower's batches of a made-up data set, for ever. Each image is a window on the same noise."""
    size = int(np.prod(image_shape))
    noise = np.random.default_rng(seed).integers(0, 256, size + STRIDE * IMAGES, np.uint8)
    windows = np.lib.stride_tricks.as_strided(noise, (IMAGES, size), (STRIDE, 1), writeable=False)
    for chosen in batches(share, IMAGES, seed):
        yield windows[chosen].reshape(-1, *image_shape), np.asarray(chosen, np.int32) % classes
