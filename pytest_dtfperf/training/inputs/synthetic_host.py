"""Images that lie in the host's memory, and are copied to the device in every step."""

from functools import cached_property

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs.held import drawn
from pytest_dtfperf.training.inputs.pipeline import PipelineInput, around_zero, in_format, unconverted
from pytest_dtfperf.training.inputs.share import share_of
from pytest_dtfperf.training.models import Network

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

    @unconverted
    def _decode(self, pixels: tf.Tensor, labels: tf.Tensor, _: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return in_format(around_zero(pixels), self._order.spec.data_format), labels
