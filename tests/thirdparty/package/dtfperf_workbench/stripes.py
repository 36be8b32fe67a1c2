"""Images with as many stripes as their class, made by TensorFlow in every step."""

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.models import Network


class Stripes(TrainingInput):
    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._spec = order.spec
        self._network = network

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        height, width, channels = self._network.image_shape
        labels = tf.random.uniform([self._spec.batch_size], 0, self._network.classes, tf.int32, seed=self._spec.seed + tower)
        across = tf.cast(tf.range(width), tf.float32) / width
        waves = tf.sin(tf.cast(labels + 1, tf.float32)[:, None] * across[None, :] * 6.28)
        images = tf.tile(waves[:, None, :, None], [1, height, 1, channels])
        return (images if self._spec.data_format == "NHWC" else tf.transpose(images, [0, 3, 1, 2])), labels
