"""tf_cnn_benchmarks' trivial model: next to no arithmetic, so that what remains is everything else."""

import math

import tensorflow as tf

from pytest_dtfperf.training.models.layers import Layers, truncated_normal


class Trivial:
    """Three dense layers over large images: 4,263,877 parameters at 1001 classes."""

    image_shape = (227, 227, 3)
    classes = 1001

    def logits(self, net: Layers, images: tf.Tensor) -> tf.Tensor:
        x = net.flatten(images)  # 154,587
        for units in (1, 4096):
            x = tf.nn.relu(net.dense(x, units, weights=truncated_normal(math.sqrt(2 / int(x.shape[1])))))
        return net.dense(x, self.classes)
