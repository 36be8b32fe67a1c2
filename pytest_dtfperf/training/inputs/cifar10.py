"""CIFAR-10 from its binary files."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TestSet
from pytest_dtfperf.training.inputs.cifar import CHANNELS, EDGE, RECORD_BYTES, TEST_FILES, TRAINING_FILES, open_files
from pytest_dtfperf.training.inputs.held import chance, drawn
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, around_zero, on_host, unconverted
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1

TEST_BATCH = 500  # images per step of the evaluation; divides the original test set of 10,000
MARGIN = 4  # pixels on each side, within which a distorted image is shifted: tf_cnn_benchmarks', after arXiv 1512.03385


class BinaryFiles(PipelineInput):
    """The training files in memory, shuffled anew in every pass. Pixels from -1 to 1, as tf_cnn_benchmarks has them."""

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._host = host
        self._folder = Path(order.spec.data_dir or ".")

    def dataset(self, tower: int) -> tf.data.Dataset:
        return drawn(*self._held, share_of(self._order, tower), self._order.spec.seed).map(self._training)

    @cached_property
    def _held(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All towers draw from the same."""
        return _content(open_files(self._folder, TRAINING_FILES))

    def test_set(self) -> TestSet:
        with on_host(self._host):
            pairs = tf.data.Dataset.from_tensor_slices(_content(open_files(self._folder, TEST_FILES)))
            iterator = v1.data.make_initializable_iterator(pairs.batch(TEST_BATCH).map(self._decode))
            return TestSet(iterator.initializer, *iterator.get_next())

    @unconverted
    def _training(self, pixels: tf.Tensor, labels: tf.Tensor, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return self._decode(self._shifted(pixels, positions) if self._order.spec.distortions else pixels, labels)

    @unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = around_zero(pixels)  # (batch, channels, height, width)
        if self._order.spec.data_format == "NHWC":
            images = tf.transpose(images, [0, 2, 3, 1])
        return images, tf.cast(labels, tf.int32)

    def _shifted(self, pixels: tf.Tensor, positions: tf.Tensor) -> tf.Tensor:
        """Shifted by up to `MARGIN` pixels each way, black where there was nothing, and one in two mirrored."""
        chances = chance(positions, self._order.spec.seed)[:, None]
        span = 2 * MARGIN + 1
        inside = tf.range(EDGE, dtype=tf.int64)
        rows = chances % span + inside
        columns = chances // span % span + tf.where(tf.equal(chances // span**2 % 2, 0), inside, EDGE - 1 - inside)
        padded = tf.pad(pixels, [[0, 0], [0, 0], [MARGIN, MARGIN], [MARGIN, MARGIN]])
        padded = tf.gather(padded, tf.repeat(rows[:, None, :], CHANNELS, axis=1), axis=2, batch_dims=2)
        return tf.gather(padded, tf.repeat(columns[:, None, :], CHANNELS, axis=1), axis=3, batch_dims=2)


def _content(files: Mapping[Path, int]) -> tuple[tf.Tensor, tf.Tensor]:
    """Pixels (images, channels, height, width) and labels (images,), unsigned bytes, read when the training begins."""
    read = tf.strings.join([tf.io.read_file(str(path)) for path in files])
    records = tf.reshape(tf.io.decode_raw(read, tf.uint8), [sum(files.values()), RECORD_BYTES])
    return tf.reshape(records[:, 1:], [-1, CHANNELS, EDGE, EDGE]), records[:, 0]
