"""Keep images in memory: synthetic ones, MNIST from idx files, and CIFAR-10 from its binary files.

Synthetic images are made once. They stay on the device, or in the host's memory, from which they are copied in every step.
"""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import Share, TestSet, TrainingInput, compute_share
from pytest_dtfperf.training.inputs.formats import (
    CHANNELS,
    EDGE,
    RECORD_BYTES,
    TEST_FILES,
    TRAINING_FILES,
    IdxFile,
    open_cifar10,
    open_mnist,
)
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, convert_format, mark_unconverted, on_host, scale_around_zero
from pytest_dtfperf.training.models import Network
from pytest_dtfperf.training.models.tensors import make_variable

ROUNDS = 4  # of the cipher that shuffles; TensorFlow's default


def draw_batches(pixels: tf.Tensor, labels: tf.Tensor, share: Share, seed: int) -> tf.data.Dataset:
    """Return a tower's batches of `pixels` and `labels`, one row per image, and the images' positions, int64.

    The order of a pass is computed number by number, not by a buffer that is filled and shuffled. So a batch costs a gather,
    with any number of workers.
    """
    images = int(pixels.shape[0])

    @mark_unconverted
    def batch(step: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        positions = share.start(step) + tf.range(share.batch_size, dtype=tf.int64)
        chosen = _shuffle_positions(positions, images, seed)
        return tf.gather(pixels, chosen), tf.gather(labels, chosen), positions

    return tf.data.Dataset.counter().map(batch)


def _shuffle_positions(positions: tf.Tensor, images: int, seed: int) -> tf.Tensor:
    """Return the number of the image at each position: each number once in a pass, in another order in each pass."""
    epochs = positions // images
    seeds = tf.stack([tf.fill(tf.shape(epochs), tf.constant(seed, tf.int64)), epochs, tf.zeros_like(epochs)], axis=1)
    return tf.raw_ops.RandomIndexShuffle(
        index=positions % images, seed=seeds, max_index=tf.constant(images - 1, tf.int64), rounds=ROUNDS
    )


def draw_numbers(positions: tf.Tensor, seed: int) -> tf.Tensor:
    """Return a pseudo-random number, int64 from 0 to 2^40, for each position, determined by the seed.

    So the distortions of an image do not depend on which worker it went to.
    """
    seeds = tf.constant([seed, 1, 1], tf.int64)
    return tf.raw_ops.RandomIndexShuffle(index=positions, seed=seeds, max_index=tf.constant(2**40, tf.int64), rounds=ROUNDS)


v1 = tf.compat.v1

TEST_BATCH = 500  # images per step of the evaluation; divides the original test sets of 10,000


class InMemoryInput(PipelineInput):
    """The base of inputs in memory, which are shuffled anew in every pass."""

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host
        self._folder = Path(order.spec.data_dir or ".")

    def dataset(self, tower: int) -> tf.data.Dataset:
        return draw_batches(*self._training_set, compute_share(self._order, tower), self._order.spec.seed).map(self._distort)

    def test_set(self) -> TestSet:
        with on_host(self._host):
            pairs = tf.data.Dataset.from_tensor_slices(self._load_set(training=False))
            iterator = v1.data.make_initializable_iterator(pairs.batch(TEST_BATCH).map(self._decode))
            return TestSet(iterator.initializer, *iterator.get_next())

    @cached_property
    def _training_set(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the images and labels from which all towers draw."""
        return self._load_set(training=True)

    def _load_set(self, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the images and labels of the training set or the test set, unsigned bytes or whole numbers."""
        raise NotImplementedError

    @mark_unconverted
    def _distort(self, pixels: tf.Tensor, labels: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._decode(pixels, labels)

    @mark_unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return images as float32 in the spec's format, and labels as int32."""
        return convert_format(scale_around_zero(pixels), self._order.spec.data_format), tf.cast(labels, tf.int32)


class IdxFiles(InMemoryInput):
    """MNIST's files. Pixels are from 0 to 1, as in TensorFlow's tutorial."""

    def _load_set(self, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        part = "train" if training else "t10k"
        images, labels = open_mnist(self._folder, part, self._network.image_shape, self._network.classes)
        return _read_content(images), _read_content(labels)

    @mark_unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.cast(tf.reshape(pixels, [-1, *self._network.image_shape]), tf.float32) * (1 / 255)
        return convert_format(images, self._order.spec.data_format), tf.cast(labels, tf.int32)


def _read_content(file: IdxFile) -> tf.Tensor:
    """Return a file's unsigned bytes in the shape of its header, read when the training begins."""
    content = tf.io.read_file(str(file.path))
    if file.is_gzip:
        content = tf.io.decode_compressed(content, "GZIP")
    return tf.reshape(tf.io.decode_raw(content, tf.uint8)[file.header_bytes :], file.shape)


MARGIN = 4  # pixels on each side, within which a distorted image is shifted: tf_cnn_benchmarks', after arXiv 1512.03385


class BinaryFiles(InMemoryInput):
    """CIFAR-10's binary files. Pixels are from -1 to 1, as in tf_cnn_benchmarks."""

    def _load_set(self, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        return _read_cifar_content(open_cifar10(self._folder, TRAINING_FILES if training else TEST_FILES))

    @mark_unconverted
    def _distort(self, pixels: tf.Tensor, labels: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._decode(self._shift_images(pixels, positions) if self._order.spec.distortions else pixels, labels)

    @mark_unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = scale_around_zero(pixels)  # (batch, channels, height, width)
        if self._order.spec.data_format == "NHWC":
            images = tf.transpose(images, [0, 2, 3, 1])
        return images, tf.cast(labels, tf.int32)

    def _shift_images(self, pixels: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Shift images by up to `MARGIN` pixels each way, with a black border, and mirror half of them."""
        chances = draw_numbers(positions, self._order.spec.seed)[:, None]
        span = 2 * MARGIN + 1
        inside = tf.range(EDGE, dtype=tf.int64)
        rows = chances % span + inside
        columns = chances // span % span + tf.where(tf.equal(chances // span**2 % 2, 0), inside, EDGE - 1 - inside)
        padded = tf.pad(pixels, [[0, 0], [0, 0], [MARGIN, MARGIN], [MARGIN, MARGIN]])
        padded = tf.gather(padded, tf.repeat(rows[:, None, :], CHANNELS, axis=1), axis=2, batch_dims=2)
        return tf.gather(padded, tf.repeat(columns[:, None, :], CHANNELS, axis=1), axis=3, batch_dims=2)


def _read_cifar_content(files: Mapping[Path, int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return pixels (images, channels, height, width) and labels (images,), unsigned bytes, read when the training begins."""
    read = tf.strings.join([tf.io.read_file(str(path)) for path in files])
    records = tf.reshape(tf.io.decode_raw(read, tf.uint8), [sum(files.values()), RECORD_BYTES])
    return tf.reshape(records[:, 1:], [-1, CHANNELS, EDGE, EDGE]), records[:, 0]


class Synthetic(TrainingInput):
    """One batch per tower in variables, as in tf_cnn_benchmarks: a constant would be folded into the graph.

    Pixels are uniform between -1 and 1, as those of preprocessed images are about: with positive ones alone, a narrow ReLU may
    be dead from the start; normally distributed ones would take five times as long to draw.
    """

    resident = True

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = self._make_random_batch(tower)
        with on_host(self._host):  # GPUs keep no variables of int32
            kept_labels = make_variable(labels, "synthetic_labels").read_value()
        return make_variable(images, "synthetic_images").read_value(), kept_labels

    def dataset(self, tower: int) -> tf.data.Dataset:
        images, labels = self._make_random_batch(tower)
        return tf.data.Dataset.from_tensors((images(), labels())).repeat()

    def _make_random_batch(self, tower: int) -> tuple[Callable[[], tf.Tensor], Callable[[], tf.Tensor]]:
        spec = self._order.spec
        seeds = {"seed": spec.seed, "seed2": 1 + self._order.index * 1000 + tower}  # every tower has its own images

        def images() -> tf.Tensor:
            shape = (spec.batch_size, *self._network.image_shape)
            drawn = 2 * tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, **seeds) - 1
            return drawn if spec.data_format == "NHWC" else tf.transpose(drawn, [0, 3, 1, 2])

        def labels() -> tf.Tensor:
            return tf.raw_ops.RandomUniformInt(shape=[spec.batch_size], minval=0, maxval=self._network.classes, **seeds)

        return images, labels


IMAGES = 256  # 69 MB at 299 x 299 x 3


class SyntheticHost(InMemoryInput):
    """A random data set, the same in all workers: it has the least cost of any input with new images in every step.

    TensorFlow draws it when the training begins, and keeps it as bytes. In each step a pipeline on the CPU chooses images and
    scales them to numbers from -1 to 1, and TensorFlow copies them to the tower's device.
    """

    def test_set(self) -> TestSet:
        return TrainingInput.test_set(self)  # which refuses: it has none

    def _load_set(self, *, training: bool) -> tuple[tf.Tensor, tf.Tensor]:
        seeds = {"seed": self._order.spec.seed, "seed2": 1}
        shape = (IMAGES, *self._network.image_shape)
        pixels = tf.cast(tf.raw_ops.RandomUniformInt(shape=shape, minval=0, maxval=256, **seeds), tf.uint8)
        return pixels, tf.range(IMAGES) % self._network.classes
