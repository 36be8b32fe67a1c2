"""Make synthetic images: once, kept on the device, or kept in the host's memory and copied in every step."""

from collections.abc import Callable

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TestSet, TrainingInput
from pytest_dtfperf.training.inputs.in_memory import InMemoryInput
from pytest_dtfperf.training.inputs.pipeline import on_host
from pytest_dtfperf.training.models import Network
from pytest_dtfperf.training.models.tensors import make_variable


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
        images, labels = self._drawn(tower)
        with on_host(self._host):  # GPUs keep no variables of int32
            kept_labels = make_variable(labels, "synthetic_labels").read_value()
        return make_variable(images, "synthetic_images").read_value(), kept_labels

    def dataset(self, tower: int) -> tf.data.Dataset:
        images, labels = self._drawn(tower)
        return tf.data.Dataset.from_tensors((images(), labels())).repeat()

    def _drawn(self, tower: int) -> tuple[Callable[[], tf.Tensor], Callable[[], tf.Tensor]]:
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
