"""Define the Inception family as tf_cnn_benchmarks trains it, without auxiliary heads.

GoogLeNet: Szegedy et al., arXiv 1409.4842, table 1. InceptionV3: arXiv 1512.00567. InceptionV4: arXiv 1602.07261, figures 3 to
9.
"""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T

_NORM = BatchNorm(decay=0.999, epsilon=0.001, scale=False)  # tf_cnn_benchmarks' and Keras'


@dataclass(frozen=True)
class InceptionV3:
    """InceptionV3: 23,851,784 parameters at 1000 classes, batch norm's moving averages included.

    Blocks are named as in Keras.
    """

    image_shape: tuple[int, int, int] = (299, 299, 3)
    classes: int = 1001  # ImageNet's, and tf_cnn_benchmarks' background class

    def logits(self, net: Layers[T], images: T) -> T:
        x = _stem(net, images)  # 35 x 35 x 192
        x = net.stage("mixed0", _build_wide(net, x, 32))  # 35 x 35 x 256
        x = net.stage("mixed1", _build_wide(net, x, 64))  # 35 x 35 x 288
        x = net.stage("mixed2", _build_wide(net, x, 64))  # 35 x 35 x 288
        x = net.stage("mixed3", _shrink_to_17(net, x))  # 17 x 17 x 768
        x = net.stage("mixed4", _apply_factorised(net, x, 128))  # 17 x 17 x 768
        x = net.stage("mixed5", _apply_factorised(net, x, 160))  # 17 x 17 x 768
        x = net.stage("mixed6", _apply_factorised(net, x, 160))  # 17 x 17 x 768
        x = net.stage("mixed7", _apply_factorised(net, x, 192))  # 17 x 17 x 768
        x = net.stage("mixed8", _shrink_to_8(net, x))  # 8 x 8 x 1280
        x = net.stage("mixed9", _apply_expanded(net, x, net.avg_pool(x, 3, stride=1, padding="SAME")))  # 8 x 8 x 2048
        x = net.stage("mixed10", _apply_expanded(net, x, net.max_pool(x, 3, stride=1, padding="SAME")))  # 8 x 8 x 2048
        return net.dense(net.mean(x), self.classes)


def _stem(net: Layers[T], images: T) -> T:
    x = _conv(net, images, 32, 3, 3, stride=2, padding="VALID")  # 149 x 149 x 32
    x = _conv(net, x, 32, 3, 3, padding="VALID")  # 147 x 147 x 32
    x = _conv(net, x, 64, 3, 3)  # 147 x 147 x 64
    x = net.max_pool(x, 3, stride=2)  # 73 x 73 x 64
    x = _conv(net, x, 80, 1, 1, padding="VALID")  # 73 x 73 x 80
    x = _conv(net, x, 192, 3, 3, padding="VALID")  # 71 x 71 x 192
    return net.stage("stem", net.max_pool(x, 3, stride=2))  # 35 x 35 x 192


def _build_wide(net: Layers[T], x: T, pooled: int) -> T:
    """Apply a block with filters of 5 x 5, and of 3 x 3 twice; `pooled` is the width of the branch behind the pool."""
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


def _apply_factorised(net: Layers[T], x: T, width: int) -> T:
    """Apply a block with 7 x 7 filters as 1 x 7 after 7 x 1; `width` is that of the convolutions between."""
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


def _apply_expanded(net: Layers[T], x: T, pooled: T) -> T:
    """Apply a block with 3 x 3 filters as 1 x 3 beside 3 x 1."""
    single = _conv(net, x, 320, 1, 1)
    three = _conv(net, x, 384, 1, 1)
    threes = _conv(net, _conv(net, x, 448, 1, 1), 384, 3, 3)
    sides = [_conv(net, branch, 384, height, width) for branch in (three, threes) for height, width in ((1, 3), (3, 1))]
    return net.concat([single, *sides, _conv(net, pooled, 192, 1, 1)])


def _conv(net: Layers[T], x: T, filters: int, height: int, width: int, *, stride: int = 1, padding: str = "SAME") -> T:
    return net.relu(net.batch_norm(net.conv(x, filters, height, width, stride=stride, padding=padding), _NORM))


@dataclass(frozen=True)
class GoogLeNet:
    """GoogLeNet: 6,998,552 parameters at 1000 classes. Blocks are named as in the paper."""

    image_shape: tuple[int, int, int] = (224, 224, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = _googlenet_stem(net, images)  # 28 x 28 x 192
        x = net.stage("3a", _inception(net, x, 64, (96, 128), (16, 32), 32))  # 28 x 28 x 256
        x = net.stage("3b", _inception(net, x, 128, (128, 192), (32, 96), 64))  # 28 x 28 x 480
        x = net.max_pool(x, 3, stride=2, padding="SAME")  # 14 x 14 x 480
        x = net.stage("4a", _inception(net, x, 192, (96, 208), (16, 48), 64))  # 14 x 14 x 512
        x = net.stage("4b", _inception(net, x, 160, (112, 224), (24, 64), 64))  # 14 x 14 x 512
        x = net.stage("4c", _inception(net, x, 128, (128, 256), (24, 64), 64))  # 14 x 14 x 512
        x = net.stage("4d", _inception(net, x, 112, (144, 288), (32, 64), 64))  # 14 x 14 x 528
        x = net.stage("4e", _inception(net, x, 256, (160, 320), (32, 128), 128))  # 14 x 14 x 832
        x = net.max_pool(x, 3, stride=2, padding="SAME")  # 7 x 7 x 832
        x = net.stage("5a", _inception(net, x, 256, (160, 320), (32, 128), 128))  # 7 x 7 x 832
        x = net.stage("5b", _inception(net, x, 384, (192, 384), (48, 128), 128))  # 7 x 7 x 1024
        return net.dense(net.mean(x), self.classes)


def _googlenet_stem(net: Layers[T], images: T) -> T:
    x = _googlenet_conv(net, images, 64, 7, stride=2)  # 112 x 112 x 64
    x = net.max_pool(x, 3, stride=2, padding="SAME")  # 56 x 56 x 64
    x = _googlenet_conv(net, _googlenet_conv(net, x, 64, 1), 192, 3)  # 56 x 56 x 192
    return net.stage("stem", net.max_pool(x, 3, stride=2, padding="SAME"))  # 28 x 28 x 192


def _inception(net: Layers[T], x: T, single: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> T:
    """Apply a block with branches of 1 x 1, 3 x 3 and 5 x 5 convolutions and of a pool.

    Widths are of 1 x 1, of 3 x 3 and 5 x 5 with the convolutions before them, and of the branch behind the pool.
    """
    branches = [
        _googlenet_conv(net, x, single, 1),
        _googlenet_conv(net, _googlenet_conv(net, x, three[0], 1), three[1], 3),
        _googlenet_conv(net, _googlenet_conv(net, x, five[0], 1), five[1], 5),
        _googlenet_conv(net, net.max_pool(x, 3, stride=1, padding="SAME"), pooled, 1),
    ]
    return net.concat(branches)


def _googlenet_conv(net: Layers[T], x: T, filters: int, size: int, *, stride: int = 1) -> T:
    return net.relu(net.conv(x, filters, size, size, stride=stride, bias=0.0))


@dataclass(frozen=True)
class InceptionV4:
    """InceptionV4: 42,648,232 trained parameters at 1000 classes, and 63,168 moving averages."""

    image_shape: tuple[int, int, int] = (299, 299, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = _inception4_stem(net, images)  # 35 x 35 x 384
        for number in range(4):
            x = net.stage(f"a{number}", _a(net, x))  # 35 x 35 x 384
        x = net.stage("reduction_a", _reduction_a(net, x))  # 17 x 17 x 1024
        for number in range(7):
            x = net.stage(f"b{number}", _b(net, x))  # 17 x 17 x 1024
        x = net.stage("reduction_b", _reduction_b(net, x))  # 8 x 8 x 1536
        for number in range(3):
            x = net.stage(f"c{number}", _c(net, x))  # 8 x 8 x 1536
        return net.dense(net.dropout(net.mean(x), rate=0.2), self.classes)


def _inception4_stem(net: Layers[T], images: T) -> T:
    x = _conv4(net, images, 32, 3, 3, stride=2, padding="VALID")  # 149 x 149 x 32
    x = _conv4(net, x, 32, 3, 3, padding="VALID")  # 147 x 147 x 32
    x = _conv4(net, x, 64, 3, 3)  # 147 x 147 x 64
    x = net.concat([net.max_pool(x, 3, stride=2), _conv4(net, x, 96, 3, 3, stride=2, padding="VALID")])  # 73 x 73 x 160
    three = _conv4(net, _conv4(net, x, 64, 1, 1), 96, 3, 3, padding="VALID")
    seven = _conv4(net, _conv4(net, _conv4(net, x, 64, 1, 1), 64, 7, 1), 64, 1, 7)
    x = net.concat([three, _conv4(net, seven, 96, 3, 3, padding="VALID")])  # 71 x 71 x 192
    x = net.concat([_conv4(net, x, 192, 3, 3, stride=2, padding="VALID"), net.max_pool(x, 3, stride=2)])
    return net.stage("stem", x)  # 35 x 35 x 384


def _a(net: Layers[T], x: T) -> T:
    pool = _conv4(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 96, 1, 1)
    single = _conv4(net, x, 96, 1, 1)
    three = _conv4(net, _conv4(net, x, 64, 1, 1), 96, 3, 3)
    threes = _conv4(net, _conv4(net, _conv4(net, x, 64, 1, 1), 96, 3, 3), 96, 3, 3)
    return net.concat([pool, single, three, threes])


def _reduction_a(net: Layers[T], x: T) -> T:
    three = _conv4(net, x, 384, 3, 3, stride=2, padding="VALID")
    threes = _conv4(net, _conv4(net, x, 192, 1, 1), 224, 3, 3)
    threes = _conv4(net, threes, 256, 3, 3, stride=2, padding="VALID")
    return net.concat([net.max_pool(x, 3, stride=2), three, threes])


def _b(net: Layers[T], x: T) -> T:
    pool = _conv4(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 128, 1, 1)
    single = _conv4(net, x, 384, 1, 1)
    seven = _conv4(net, _conv4(net, _conv4(net, x, 192, 1, 1), 224, 1, 7), 256, 7, 1)
    sevens = _conv4(net, _conv4(net, _conv4(net, x, 192, 1, 1), 192, 1, 7), 224, 7, 1)
    sevens = _conv4(net, _conv4(net, sevens, 224, 1, 7), 256, 7, 1)
    return net.concat([pool, single, seven, sevens])


def _reduction_b(net: Layers[T], x: T) -> T:
    three = _conv4(net, _conv4(net, x, 192, 1, 1), 192, 3, 3, stride=2, padding="VALID")
    seven = _conv4(net, _conv4(net, _conv4(net, x, 256, 1, 1), 256, 1, 7), 320, 7, 1)
    seven = _conv4(net, seven, 320, 3, 3, stride=2, padding="VALID")
    return net.concat([net.max_pool(x, 3, stride=2), three, seven])


def _c(net: Layers[T], x: T) -> T:
    pool = _conv4(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 256, 1, 1)
    single = _conv4(net, x, 256, 1, 1)
    three = _conv4(net, x, 384, 1, 1)
    threes = _conv4(net, _conv4(net, _conv4(net, x, 384, 1, 1), 448, 1, 3), 512, 3, 1)
    tall, wide = (3, 1), (1, 3)
    sides = [_conv4(net, branch, 256, *size) for branch, size in ((three, wide), (three, tall), (threes, tall), (threes, wide))]
    return net.concat([pool, single, *sides])


def _conv4(net: Layers[T], x: T, filters: int, height: int, width: int, *, stride: int = 1, padding: str = "SAME") -> T:
    return net.relu(net.batch_norm(net.conv(x, filters, height, width, stride=stride, padding=padding), _NORM))
