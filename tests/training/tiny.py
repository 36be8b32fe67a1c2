"""A network without batch norm and dropout: what it learns depends on its variables and its images alone."""

import tensorflow as tf

from pytest_dtfperf.training.models.layers import Layers, constant


class Tiny:
    image_shape = (28, 28, 1)
    classes = 10

    def logits(self, net: Layers, images: tf.Tensor) -> tf.Tensor:
        x = net.conv(images, 8, 3, 3, stride=2, bias=constant(0.1))  # 14 x 14 x 8
        x = net.max_pool(x, 2, stride=2)  # 7 x 7 x 8
        x = net.conv(x, 12, 3, 3, bias=constant(0.1))  # 7 x 7 x 12
        x = tf.nn.relu(net.dense(net.flatten(net.avg_pool(x, 3, stride=2)), 64))
        return net.dense(x, self.classes)
