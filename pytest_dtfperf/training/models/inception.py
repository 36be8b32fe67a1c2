"""InceptionV3 without its auxiliary head, as tf_cnn_benchmarks trains it (Szegedy et al., arXiv 1512.00567)."""

import tensorflow as tf

from pytest_dtfperf.training.models.layers import Layers


class InceptionV3:
    """23,851,784 parameters at 1000 classes, batch norm's moving averages included. Blocks are named as in Keras."""

    image_shape = (299, 299, 3)

    def __init__(self, classes: int = 1001) -> None:
        self.classes = classes  # ImageNet's, and tf_cnn_benchmarks' one for "nothing of it"

    def logits(self, net: Layers, images: tf.Tensor) -> tf.Tensor:
        x = _stem(net, images)  # 35 x 35 x 192
        x = _wide(net, x, 32, "mixed0")  # 35 x 35 x 256
        x = _wide(net, x, 64, "mixed1")  # 35 x 35 x 288
        x = _wide(net, x, 64, "mixed2")  # 35 x 35 x 288
        x = _shrink_to_17(net, x, "mixed3")  # 17 x 17 x 768
        x = _factorised(net, x, 128, "mixed4")  # 17 x 17 x 768
        x = _factorised(net, x, 160, "mixed5")  # 17 x 17 x 768
        x = _factorised(net, x, 160, "mixed6")  # 17 x 17 x 768
        x = _factorised(net, x, 192, "mixed7")  # 17 x 17 x 768
        x = _shrink_to_8(net, x, "mixed8")  # 8 x 8 x 1280
        x = _expanded(net, x, net.avg_pool(x, 3, stride=1, padding="SAME"), "mixed9")  # 8 x 8 x 2048
        x = _expanded(net, x, net.max_pool(x, 3, stride=1, padding="SAME"), "mixed10")  # 8 x 8 x 2048
        return net.dense(net.mean(x), self.classes)


def _stem(net: Layers, images: tf.Tensor) -> tf.Tensor:
    x = net.conv(images, 32, 3, 3, stride=2, padding="VALID")  # 149 x 149 x 32
    x = net.conv(x, 32, 3, 3, padding="VALID")  # 147 x 147 x 32
    x = net.conv(x, 64, 3, 3)  # 147 x 147 x 64
    x = net.max_pool(x, 3, stride=2)  # 73 x 73 x 64
    x = net.conv(x, 80, 1, 1, padding="VALID")  # 73 x 73 x 80
    x = net.conv(x, 192, 3, 3, padding="VALID")  # 71 x 71 x 192
    return net.max_pool(x, 3, stride=2)  # 35 x 35 x 192


def _wide(net: Layers, x: tf.Tensor, pooled: int, name: str) -> tf.Tensor:
    """Filters of 5 x 5, and of 3 x 3 twice; `pooled` is the width of the branch behind the pool."""
    single = net.conv(x, 64, 1, 1)
    five = net.conv(net.conv(x, 48, 1, 1), 64, 5, 5)
    threes = net.conv(net.conv(net.conv(x, 64, 1, 1), 96, 3, 3), 96, 3, 3)
    pool = net.conv(net.avg_pool(x, 3, stride=1, padding="SAME"), pooled, 1, 1)
    return net.concat([single, five, threes, pool], name)


def _shrink_to_17(net: Layers, x: tf.Tensor, name: str) -> tf.Tensor:
    three = net.conv(x, 384, 3, 3, stride=2, padding="VALID")
    threes = net.conv(net.conv(net.conv(x, 64, 1, 1), 96, 3, 3), 96, 3, 3, stride=2, padding="VALID")
    return net.concat([three, threes, net.max_pool(x, 3, stride=2)], name)


def _factorised(net: Layers, x: tf.Tensor, width: int, name: str) -> tf.Tensor:
    """7 x 7 filters as 1 x 7 after 7 x 1; `width` is that of the convolutions between."""
    single = net.conv(x, 192, 1, 1)
    seven = net.conv(net.conv(net.conv(x, width, 1, 1), width, 1, 7), 192, 7, 1)
    sevens = net.conv(net.conv(net.conv(x, width, 1, 1), width, 7, 1), width, 1, 7)
    sevens = net.conv(net.conv(sevens, width, 7, 1), 192, 1, 7)
    pool = net.conv(net.avg_pool(x, 3, stride=1, padding="SAME"), 192, 1, 1)
    return net.concat([single, seven, sevens, pool], name)


def _shrink_to_8(net: Layers, x: tf.Tensor, name: str) -> tf.Tensor:
    three = net.conv(net.conv(x, 192, 1, 1), 320, 3, 3, stride=2, padding="VALID")
    seven = net.conv(net.conv(net.conv(x, 192, 1, 1), 192, 1, 7), 192, 7, 1)
    seven = net.conv(seven, 192, 3, 3, stride=2, padding="VALID")
    return net.concat([three, seven, net.max_pool(x, 3, stride=2)], name)


def _expanded(net: Layers, x: tf.Tensor, pooled: tf.Tensor, name: str) -> tf.Tensor:
    """3 x 3 filters as 1 x 3 beside 3 x 1."""
    single = net.conv(x, 320, 1, 1)
    three = net.conv(x, 384, 1, 1)
    threes = net.conv(net.conv(x, 448, 1, 1), 384, 3, 3)
    sides = [net.conv(branch, 384, height, width) for branch in (three, threes) for height, width in ((1, 3), (3, 1))]
    return net.concat([single, *sides, net.conv(pooled, 192, 1, 1)], name)
