"""InceptionV3 without its auxiliary head, as tf_cnn_benchmarks trains it (Szegedy et al., arXiv 1512.00567)."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T

_NORM = BatchNorm(decay=0.999, epsilon=0.001, scale=False)  # tf_cnn_benchmarks' and Keras'


@dataclass(frozen=True)
class InceptionV3:
    """23,851,784 parameters at 1000 classes, batch norm's moving averages included. Blocks are named as in Keras."""

    image_shape: tuple[int, int, int] = (299, 299, 3)
    classes: int = 1001  # ImageNet's, and tf_cnn_benchmarks' one for "nothing of it"

    def logits(self, net: Layers[T], images: T) -> T:
        x = _stem(net, images)  # 35 x 35 x 192
        x = net.stage("mixed0", _wide(net, x, 32))  # 35 x 35 x 256
        x = net.stage("mixed1", _wide(net, x, 64))  # 35 x 35 x 288
        x = net.stage("mixed2", _wide(net, x, 64))  # 35 x 35 x 288
        x = net.stage("mixed3", _shrink_to_17(net, x))  # 17 x 17 x 768
        x = net.stage("mixed4", _factorised(net, x, 128))  # 17 x 17 x 768
        x = net.stage("mixed5", _factorised(net, x, 160))  # 17 x 17 x 768
        x = net.stage("mixed6", _factorised(net, x, 160))  # 17 x 17 x 768
        x = net.stage("mixed7", _factorised(net, x, 192))  # 17 x 17 x 768
        x = net.stage("mixed8", _shrink_to_8(net, x))  # 8 x 8 x 1280
        x = net.stage("mixed9", _expanded(net, x, net.avg_pool(x, 3, stride=1, padding="SAME")))  # 8 x 8 x 2048
        x = net.stage("mixed10", _expanded(net, x, net.max_pool(x, 3, stride=1, padding="SAME")))  # 8 x 8 x 2048
        return net.dense(net.mean(x), self.classes)


def _stem(net: Layers[T], images: T) -> T:
    x = _conv(net, images, 32, 3, 3, stride=2, padding="VALID")  # 149 x 149 x 32
    x = _conv(net, x, 32, 3, 3, padding="VALID")  # 147 x 147 x 32
    x = _conv(net, x, 64, 3, 3)  # 147 x 147 x 64
    x = net.max_pool(x, 3, stride=2)  # 73 x 73 x 64
    x = _conv(net, x, 80, 1, 1, padding="VALID")  # 73 x 73 x 80
    x = _conv(net, x, 192, 3, 3, padding="VALID")  # 71 x 71 x 192
    return net.stage("stem", net.max_pool(x, 3, stride=2))  # 35 x 35 x 192


def _wide(net: Layers[T], x: T, pooled: int) -> T:
    """Filters of 5 x 5, and of 3 x 3 twice; `pooled` is the width of the branch behind the pool."""
    single = _conv(net, x, 64, 1, 1)
    five = _conv(net, _conv(net, x, 48, 1, 1), 64, 5, 5)
    threes = _conv(net, _conv(net, _conv(net, x, 64, 1, 1), 96, 3, 3), 96, 3, 3)
    pool = _conv(net, net.avg_pool(x, 3, stride=1, padding="SAME"), pooled, 1, 1)
    return net.concat([single, five, threes, pool])


def _shrink_to_17(net: Layers[T], x: T) -> T:
    three = _conv(net, x, 384, 3, 3, stride=2, padding="VALID")
    threes = _conv(net, _conv(net, x, 64, 1, 1), 96, 3, 3)
    threes = _conv(net, threes, 96, 3, 3, stride=2, padding="VALID")
    return net.concat([three, threes, net.max_pool(x, 3, stride=2)])


def _factorised(net: Layers[T], x: T, width: int) -> T:
    """7 x 7 filters as 1 x 7 after 7 x 1; `width` is that of the convolutions between."""
    single = _conv(net, x, 192, 1, 1)
    seven = _conv(net, _conv(net, _conv(net, x, width, 1, 1), width, 1, 7), 192, 7, 1)
    sevens = _conv(net, _conv(net, _conv(net, x, width, 1, 1), width, 7, 1), width, 1, 7)
    sevens = _conv(net, _conv(net, sevens, width, 7, 1), 192, 1, 7)
    pool = _conv(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 192, 1, 1)
    return net.concat([single, seven, sevens, pool])


def _shrink_to_8(net: Layers[T], x: T) -> T:
    three = _conv(net, _conv(net, x, 192, 1, 1), 320, 3, 3, stride=2, padding="VALID")
    seven = _conv(net, _conv(net, _conv(net, x, 192, 1, 1), 192, 1, 7), 192, 7, 1)
    seven = _conv(net, seven, 192, 3, 3, stride=2, padding="VALID")
    return net.concat([three, seven, net.max_pool(x, 3, stride=2)])


def _expanded(net: Layers[T], x: T, pooled: T) -> T:
    """3 x 3 filters as 1 x 3 beside 3 x 1."""
    single = _conv(net, x, 320, 1, 1)
    three = _conv(net, x, 384, 1, 1)
    threes = _conv(net, _conv(net, x, 448, 1, 1), 384, 3, 3)
    sides = [_conv(net, branch, 384, height, width) for branch in (three, threes) for height, width in ((1, 3), (3, 1))]
    return net.concat([single, *sides, _conv(net, pooled, 192, 1, 1)])


def _conv(net: Layers[T], x: T, filters: int, height: int, width: int, *, stride: int = 1, padding: str = "SAME") -> T:
    return net.relu(net.batch_norm(net.conv(x, filters, height, width, stride=stride, padding=padding), _NORM))
