"""Make a data set in ImageNet's original layout: TFRecord files of tf.train.Example, each a JPEG, its label and a box."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from pytest_dtfperf.training.making import Pixels, add_noise, enlarge_squares, iterate_labels, make_pattern

QUALITY = 90  # of the JPEGs
LEAST_BOX = 0.4  # of the picture's edge
FAINT = 0.2  # of a pattern's contrast, outside of the box


def make_imagenet(
    out: str, images: int, test_images: int, seed: int, classes: int, shards: int, test_shards: int, height: int, width: int
) -> str:
    size = height, width
    for part, (name, count, shard_count) in enumerate((("train", images, shards), ("validation", test_images, test_shards))):
        numbered = list(iterate_labels(count, classes, seed, part))
        for shard in range(shard_count):
            first, end = (count * border // shard_count for border in (shard, shard + 1))
            with tf.io.TFRecordWriter(str(Path(out, f"{name}-{shard:05}-of-{shard_count:05}"))) as writer:
                for image, label in numbered[first:end]:
                    chance = np.random.default_rng((seed, part, image))
                    writer.write(_make_example(name, image, 1 + label, size, make_pattern(label, 3, seed), chance))
    return (
        f"{images} training images in {shards} shards and {test_images} validation images in {test_shards}, "
        f"JPEGs of {width} x {height} in TFRecord files"
    )


def _make_example(
    part: str, image: int, label: int, size: tuple[int, int], pattern_of: NDArray[np.float64], chance: np.random.Generator
) -> bytes:
    """Return a serialised Example with the features that the scripts of 2016 wrote. Labels begin at 1: 0 is the background."""
    height, width = size
    pixels, (top, left, bottom, right) = _draw_picture(size, pattern_of, chance)
    features = {
        "image/height": _ints(height),
        "image/width": _ints(width),
        "image/colorspace": _bytes(b"RGB"),
        "image/channels": _ints(3),
        "image/class/label": _ints(label),
        "image/class/synset": _bytes(f"n{label:08}".encode()),
        "image/class/text": _bytes(f"pattern {label}".encode()),
        "image/object/bbox/ymin": _floats(top / height),
        "image/object/bbox/xmin": _floats(left / width),
        "image/object/bbox/ymax": _floats(bottom / height),
        "image/object/bbox/xmax": _floats(right / width),
        "image/object/bbox/label": _ints(label),
        "image/format": _bytes(b"JPEG"),
        "image/filename": _bytes(f"made_{part}_{image:08}.JPEG".encode()),
        "image/encoded": _bytes(tf.io.encode_jpeg(pixels, quality=QUALITY).numpy()),
    }
    return bytes(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def _draw_picture(
    size: tuple[int, int], pattern_of: NDArray[np.float64], chance: np.random.Generator
) -> tuple[Pixels, tuple[int, int, int, int]]:
    """Draw an image with the pattern in a box, and faintly everywhere else."""
    edges = [max(1, int(edge * chance.uniform(LEAST_BOX, 1))) for edge in size]
    top, left = (int(chance.integers(0, whole - part + 1)) for whole, part in zip(size, edges, strict=True))
    values = enlarge_squares(pattern_of, *size) * FAINT
    values[top : top + edges[0], left : left + edges[1]] = enlarge_squares(pattern_of, *edges)
    return add_noise(values, chance), (top, left, top + edges[0], left + edges[1])


def _ints(value: int) -> tf.train.Feature:
    return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))


def _floats(value: float) -> tf.train.Feature:
    return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))


def _bytes(value: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
