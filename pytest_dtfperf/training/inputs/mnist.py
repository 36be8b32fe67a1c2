"""MNIST from its idx files, read by TensorFlow as they are."""

from pathlib import Path

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TestSet
from pytest_dtfperf.training.inputs.idx import IdxFile, open_pair
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1

TEST_BATCH = 500  # images per step of the evaluation; divides the original test set of 10,000


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
            pairs = tf.data.Dataset.zip((_records(images), _records(labels))).cache()
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
            pairs = tf.data.Dataset.zip((_records(images), _records(labels)))
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


def _records(file: IdxFile) -> tf.data.Dataset:
    """The items one after another, as strings of bytes."""
    compression = "GZIP" if file.path.suffix == ".gz" else ""
    return tf.data.FixedLengthRecordDataset(
        str(file.path), file.record_bytes, header_bytes=file.header_bytes, compression_type=compression
    )
