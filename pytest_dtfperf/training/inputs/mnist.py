"""MNIST from its idx files, read by TensorFlow as they are."""

from functools import cached_property
from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TestSet
from pytest_dtfperf.training.inputs.held import drawn
from pytest_dtfperf.training.inputs.idx import IdxFile, open_pair
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, in_format, on_host, unconverted
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1

TEST_BATCH = 500  # images per step of the evaluation; divides the original test set of 10,000


class IdxFiles(PipelineInput):
    """The training files in memory, shuffled anew in every pass. Pixels from 0 to 1, as in the TensorFlow tutorial."""

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._host = host
        self._shape, self._classes = network.image_shape, network.classes
        self._folder = Path(order.spec.data_dir or ".")

    def dataset(self, tower: int) -> tf.data.Dataset:
        return drawn(*self._held, share_of(self._order, tower), self._order.spec.seed).map(self._decode)

    @cached_property
    def _held(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All towers draw from the same."""
        images, labels = open_pair(self._folder, "train", self._shape, self._classes)
        return _content(images), _content(labels)

    def test_set(self) -> TestSet:
        images, labels = open_pair(self._folder, "t10k", self._shape, self._classes)
        with on_host(self._host):
            pairs = tf.data.Dataset.from_tensor_slices((_content(images), _content(labels)))
            iterator = v1.data.make_initializable_iterator(pairs.batch(TEST_BATCH).map(self._decode))
            return TestSet(iterator.initializer, *iterator.get_next())

    @unconverted
    def _decode(self, pixels: tf.Tensor, answers: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        images = tf.cast(tf.reshape(pixels, [-1, *self._shape]), tf.float32) * (1 / 255)
        return in_format(images, self._order.spec.data_format), tf.cast(answers, tf.int32)


def _content(file: IdxFile) -> tf.Tensor:
    """Unsigned bytes in the shape that the header tells, read when the training begins."""
    content = tf.io.read_file(str(file.path))
    if file.is_gzip:
        content = tf.io.decode_compressed(content, "GZIP")
    return tf.reshape(tf.io.decode_raw(content, tf.uint8)[file.header_bytes :], file.shape)
