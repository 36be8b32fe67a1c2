"""Synthetic images: made once and kept on the device, or kept in the host's memory and copied in every step."""

from collections.abc import Callable
from functools import cached_property

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.inputs.in_memory import drawn
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, around_zero, in_format, mark_unconverted
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1


class Synthetic(TrainingInput):
    """One batch per tower in variables, as tf_cnn_benchmarks has it: a constant would be folded into the graph.

    Pixels lie evenly between -1 and 1, as those of preprocessed images do: with positive ones alone, a narrow ReLU may be dead
    from the start; normally distributed ones would take five times as long to draw.
    """

    resident = True

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = self._drawn(tower)
        with v1.device(None), v1.device(self._host):  # GPUs keep no variables of int32
            kept_labels = _keep_variable(labels, "synthetic_labels")
        return _keep_variable(images, "synthetic_images"), kept_labels

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


def _keep_variable(initial: object, name: str) -> tf.Tensor:
    variable = v1.Variable(initial, name=name, trainable=False, use_resource=True, collections=[v1.GraphKeys.LOCAL_VARIABLES])
    return variable.read_value()


IMAGES = 256  # 69 MB at 299 x 299 x 3


class SyntheticHost(PipelineInput):
    """A made-up data set, the same in all workers: what any input costs at least that brings new images for every step.

    Drawn by TensorFlow when the training begins, and kept as bytes. In each step a pipeline on the CPU chooses images, turns
    them into numbers from -1 to 1, and TensorFlow copies them to the tower's device.
    """

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host

    def dataset(self, tower: int) -> tf.data.Dataset:
        return drawn(*self._held, share_of(self._order, tower), self._order.spec.seed).map(self._decode)

    @cached_property
    def _held(self) -> tuple[tf.Tensor, tf.Tensor]:
        """All towers draw from the same."""
        seeds = {"seed": self._order.spec.seed, "seed2": 1}
        shape = (IMAGES, *self._network.image_shape)
        pixels = tf.cast(tf.raw_ops.RandomUniformInt(shape=shape, minval=0, maxval=256, **seeds), tf.uint8)
        return pixels, tf.range(IMAGES) % self._network.classes

    @mark_unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return in_format(around_zero(pixels), self._order.spec.data_format), labels
