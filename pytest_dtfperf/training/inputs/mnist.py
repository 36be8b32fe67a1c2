"""Images from idx files, the format of the original MNIST (http://yann.lecun.com/exdb/mnist, "FILE FORMATS")."""

import gzip
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TestSet
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1

UNSIGNED_BYTES = 0x08  # third byte of an idx file's magic number; the fourth is the number of dimensions
TEST_BATCH = 500  # images per step of the evaluation; divides the original test set of 10,000


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

    def records(self) -> tf.data.Dataset:
        """The items one after another, as strings of bytes."""
        return tf.data.FixedLengthRecordDataset(
            str(self.path),
            self.record_bytes,
            header_bytes=self.header_bytes,
            compression_type="GZIP" if self.path.suffix == ".gz" else "",
        )


def open_idx(folder: Path, name: str, dimensions: int) -> IdxFile:
    """Find `name` or `name`.gz and check it. Raises `SpecError` if it is missing, of another format or cut short."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise SpecError(f"{folder} has neither {name} nor {name}.gz. Set data_dir to the folder of MNIST's four idx files.")
    header_bytes = 4 + 4 * dimensions
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(header_bytes)
    except (OSError, EOFError) as exc:
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


class IdxFiles:
    """The training files, shuffled anew in every pass by a seed that all workers share; each takes its share of that order.

    So the workers of a step together see what a lone process with their batches' sum would see.
    """

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._host = host
        self._shape = network.image_shape
        self._folder = Path(order.spec.data_dir or ".")

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        order, spec = self._order, self._order.spec
        images, labels = open_pair(self._folder, "train", self._shape)
        workers = len(order.cluster["worker"]) if order.cluster else 1
        with v1.device(None), v1.device(self._host):
            pairs = tf.data.Dataset.zip((images.records(), labels.records())).cache()
            pairs = pairs.shuffle(images.shape[0], seed=spec.seed).repeat()
            pairs = pairs.shard(workers, order.index).shard(order.num_devices, tower)
            pairs = pairs.batch(spec.batch_size, drop_remainder=True).map(self._decode).prefetch(2)
            iterator = v1.data.make_initializable_iterator(pairs)
            v1.add_to_collection(v1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
            batch: tuple[tf.Tensor, tf.Tensor] = iterator.get_next()
            return batch

    def test_set(self) -> TestSet:
        images, labels = open_pair(self._folder, "t10k", self._shape)
        with v1.device(None), v1.device(self._host):
            pairs = tf.data.Dataset.zip((images.records(), labels.records()))
            iterator = v1.data.make_initializable_iterator(pairs.batch(TEST_BATCH).map(self._decode))
            return TestSet(iterator.initializer, *iterator.get_next())

    def _decode(self, images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Pixels from 0 to 1."""
        height, width, channels = self._shape
        pixels = tf.reshape(tf.io.decode_raw(images, tf.uint8), [-1, height, width, channels])
        pixels = tf.cast(pixels, tf.float32) * (1 / 255)
        if self._order.spec.data_format == "NCHW":
            pixels = tf.transpose(pixels, [0, 3, 1, 2])
        return pixels, tf.cast(tf.reshape(tf.io.decode_raw(labels, tf.uint8), [-1]), tf.int32)
