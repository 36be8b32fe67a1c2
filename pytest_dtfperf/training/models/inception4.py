"""InceptionV4 (Szegedy et al., arXiv 1602.07261, figures 3 to 9)."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T

_NORM = BatchNorm(decay=0.999, epsilon=0.001, scale=False)  # tf_cnn_benchmarks'


@dataclass(frozen=True)
class InceptionV4:
    """42,648,232 trained parameters at 1000 classes, and 63,168 moving averages."""

    image_shape: tuple[int, int, int] = (299, 299, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = _stem(net, images)  # 35 x 35 x 384
        for number in range(4):
            x = net.stage(f"a{number}", _a(net, x))  # 35 x 35 x 384
        x = net.stage("reduction_a", _reduction_a(net, x))  # 17 x 17 x 1024
        for number in range(7):
            x = net.stage(f"b{number}", _b(net, x))  # 17 x 17 x 1024
        x = net.stage("reduction_b", _reduction_b(net, x))  # 8 x 8 x 1536
        for number in range(3):
            x = net.stage(f"c{number}", _c(net, x))  # 8 x 8 x 1536
        return net.dense(net.dropout(net.mean(x), rate=0.2), self.classes)


def _stem(net: Layers[T], images: T) -> T:
    x = _conv(net, images, 32, 3, 3, stride=2, padding="VALID")  # 149 x 149 x 32
    x = _conv(net, x, 32, 3, 3, padding="VALID")  # 147 x 147 x 32
    x = _conv(net, x, 64, 3, 3)  # 147 x 147 x 64
    x = net.concat([net.max_pool(x, 3, stride=2), _conv(net, x, 96, 3, 3, stride=2, padding="VALID")])  # 73 x 73 x 160
    three = _conv(net, _conv(net, x, 64, 1, 1), 96, 3, 3, padding="VALID")
    seven = _conv(net, _conv(net, _conv(net, x, 64, 1, 1), 64, 7, 1), 64, 1, 7)
    x = net.concat([three, _conv(net, seven, 96, 3, 3, padding="VALID")])  # 71 x 71 x 192
    x = net.concat([_conv(net, x, 192, 3, 3, stride=2, padding="VALID"), net.max_pool(x, 3, stride=2)])
    return net.stage("stem", x)  # 35 x 35 x 384


def _a(net: Layers[T], x: T) -> T:
    pool = _conv(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 96, 1, 1)
    single = _conv(net, x, 96, 1, 1)
    three = _conv(net, _conv(net, x, 64, 1, 1), 96, 3, 3)
    threes = _conv(net, _conv(net, _conv(net, x, 64, 1, 1), 96, 3, 3), 96, 3, 3)
    return net.concat([pool, single, three, threes])


def _reduction_a(net: Layers[T], x: T) -> T:
    three = _conv(net, x, 384, 3, 3, stride=2, padding="VALID")
    threes = _conv(net, _conv(net, x, 192, 1, 1), 224, 3, 3)
    threes = _conv(net, threes, 256, 3, 3, stride=2, padding="VALID")
    return net.concat([net.max_pool(x, 3, stride=2), three, threes])


def _b(net: Layers[T], x: T) -> T:
    pool = _conv(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 128, 1, 1)
    single = _conv(net, x, 384, 1, 1)
    seven = _conv(net, _conv(net, _conv(net, x, 192, 1, 1), 224, 1, 7), 256, 7, 1)
    sevens = _conv(net, _conv(net, _conv(net, x, 192, 1, 1), 192, 1, 7), 224, 7, 1)
    sevens = _conv(net, _conv(net, sevens, 224, 1, 7), 256, 7, 1)
    return net.concat([pool, single, seven, sevens])


def _reduction_b(net: Layers[T], x: T) -> T:
    three = _conv(net, _conv(net, x, 192, 1, 1), 192, 3, 3, stride=2, padding="VALID")
    seven = _conv(net, _conv(net, _conv(net, x, 256, 1, 1), 256, 1, 7), 320, 7, 1)
    seven = _conv(net, seven, 320, 3, 3, stride=2, padding="VALID")
    return net.concat([net.max_pool(x, 3, stride=2), three, seven])


def _c(net: Layers[T], x: T) -> T:
    pool = _conv(net, net.avg_pool(x, 3, stride=1, padding="SAME"), 256, 1, 1)
    single = _conv(net, x, 256, 1, 1)
    three = _conv(net, x, 384, 1, 1)
    threes = _conv(net, _conv(net, _conv(net, x, 384, 1, 1), 448, 1, 3), 512, 3, 1)
    tall, wide = (3, 1), (1, 3)
    sides = [_conv(net, branch, 256, *size) for branch, size in ((three, wide), (three, tall), (threes, tall), (threes, wide))]
    return net.concat([pool, single, *sides])


def _conv(net: Layers[T], x: T, filters: int, height: int, width: int, *, stride: int = 1, padding: str = "SAME") -> T:
    return net.relu(net.batch_norm(net.conv(x, filters, height, width, stride=stride, padding=padding), _NORM))
