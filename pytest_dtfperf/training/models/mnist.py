"""The deep MNIST network of the TensorFlow tutorial, which the 2017 report trains."""

import tensorflow as tf

from pytest_dtfperf.training.models.layers import Layers, constant, truncated_normal

_WEIGHTS = truncated_normal(0.1)  # the tutorial's, as all that follows
_BIAS = constant(0.1)  # slightly positive, lest a ReLU be dead from the start


class DeepMnist:
    """Two convolutions with pools, 1024 hidden units, dropout: 3,274,634 parameters."""

    image_shape = (28, 28, 1)
    classes = 10

    def logits(self, net: Layers, images: tf.Tensor) -> tf.Tensor:
        x = net.conv(images, 32, 5, 5, weights=_WEIGHTS, bias=_BIAS)  # 28 x 28 x 32
        x = net.max_pool(x, 2, stride=2, padding="SAME")  # 14 x 14 x 32
        x = net.conv(x, 64, 5, 5, weights=_WEIGHTS, bias=_BIAS)  # 14 x 14 x 64
        x = net.max_pool(x, 2, stride=2, padding="SAME")  # 7 x 7 x 64
        x = tf.nn.relu(net.dense(net.flatten(x), 1024, weights=_WEIGHTS, bias=_BIAS))
        return net.dense(net.dropout(x, rate=0.5), self.classes, weights=_WEIGHTS, bias=_BIAS)
