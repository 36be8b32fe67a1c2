"""GoogLeNet without its auxiliary heads (Szegedy et al., arXiv 1409.4842, table 1), as tf_cnn_benchmarks trains it."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T


@dataclass(frozen=True)
class GoogLeNet:
    """6,998,552 parameters at 1000 classes. Blocks are named as in the paper."""

    image_shape: tuple[int, int, int] = (224, 224, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = _stem(net, images)  # 28 x 28 x 192
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


def _stem(net: Layers[T], images: T) -> T:
    x = _conv(net, images, 64, 7, stride=2)  # 112 x 112 x 64
    x = net.max_pool(x, 3, stride=2, padding="SAME")  # 56 x 56 x 64
    x = _conv(net, _conv(net, x, 64, 1), 192, 3)  # 56 x 56 x 192
    return net.stage("stem", net.max_pool(x, 3, stride=2, padding="SAME"))  # 28 x 28 x 192


def _inception(net: Layers[T], x: T, single: int, three: tuple[int, int], five: tuple[int, int], pooled: int) -> T:
    """Widths of 1 x 1, of 3 x 3 and 5 x 5 with what comes before them, and behind the pool."""
    branches = [
        _conv(net, x, single, 1),
        _conv(net, _conv(net, x, three[0], 1), three[1], 3),
        _conv(net, _conv(net, x, five[0], 1), five[1], 5),
        _conv(net, net.max_pool(x, 3, stride=1, padding="SAME"), pooled, 1),
    ]
    return net.concat(branches)


def _conv(net: Layers[T], x: T, filters: int, size: int, *, stride: int = 1) -> T:
    return net.relu(net.conv(x, filters, size, size, stride=stride, bias=0.0))
