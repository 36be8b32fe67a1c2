"""Define ResNet: v1 (He et al., arXiv 1512.03385), v2 (arXiv 1603.05027), and for ImageNet v1.5 between them.

It has 50, 101 or 152 layers for ImageNet, and 20 to 110 for images of CIFAR's size (section 4.2 of v1's paper).
"""

from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T

# As in tf_cnn_benchmarks. In v2, batch norms before a unit and at the end have other parameters than those after a convolution.
_NORM = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
_BEFORE = BatchNorm(decay=0.999, epsilon=0.001, scale=False)
_FILTERS = (64, 128, 256, 512)  # of a unit's 3 x 3 convolution, in the four stages; the unit's output has four times as many


@dataclass(frozen=True)
class ResNet:
    """ResNet for ImageNet.

    Trained parameters: 25,559,081, 44,551,209 and 60,194,857 in v1 and v1.5; 25,536,361, 44,511,081 and 60,139,369 in v2.
    """

    image_shape: tuple[int, int, int] = (224, 224, 3)
    classes: int = 1001
    units: tuple[int, ...] = (3, 4, 6, 3)  # in each stage
    version: str = "v1"  # of _UNITS

    def logits(self, net: Layers[T], images: T) -> T:
        x = _conv(net, images, 64, 7, stride=2)  # 112 x 112 x 64
        x = net.stage("stem", net.max_pool(net.relu(net.batch_norm(x, _NORM)), 3, stride=2, padding="SAME"))  # 56 x 56 x 64
        for number, (filters, units) in enumerate(zip(_FILTERS, self.units, strict=True)):
            for unit in range(units):
                stride = 2 if unit == 0 and number > 0 else 1
                x = self._unit(net, x, filters, stride, projected=unit == 0)
            x = net.stage(f"stage{number + 1}", x)  # 56 x 56 x 256, 28 x 28 x 512, 14 x 14 x 1024, 7 x 7 x 2048
        if self.version == "v2":
            x = net.relu(net.batch_norm(x, _BEFORE))
        return net.dense(net.mean(x), self.classes)

    def _unit(self, net: Layers[T], x: T, filters: int, stride: int, *, projected: bool) -> T:
        if self.version == "v2":
            return _unit_v2(net, x, filters, stride, projected)
        return _unit_v1(net, x, filters, *((stride, 1) if self.version == "v1" else (1, stride)), projected)


def _unit_v1(net: Layers[T], x: T, filters: int, first_stride: int, second_stride: int, projected: bool) -> T:
    """Apply 1 x 1, 3 x 3 and 1 x 1 convolutions, and a shortcut, which is projected where the shape changes.

    v1 steps by two in the first convolution, and so ignores three quarters of its input; v1.5 (Goyal et al., arXiv 1706.02677)
    does so in the second, at 6 % more arithmetic in 50 layers.
    """
    stride = first_stride * second_stride
    shortcut = net.batch_norm(_conv(net, x, 4 * filters, 1, stride=stride), _NORM) if projected else x
    x = net.relu(net.batch_norm(_conv(net, x, filters, 1, stride=first_stride), _NORM))
    x = net.relu(net.batch_norm(_conv(net, x, filters, 3, stride=second_stride), _NORM))
    x = net.batch_norm(_conv(net, x, 4 * filters, 1), _NORM)
    return net.relu(net.add(shortcut, x))


def _unit_v2(net: Layers[T], x: T, filters: int, stride: int, projected: bool) -> T:
    """Apply batch norm and ReLU before the convolutions, so that the shortcut stays an identity."""
    before = net.relu(net.batch_norm(x, _BEFORE))
    shortcut = _conv(net, before, 4 * filters, 1, stride=stride) if projected else x
    x = net.relu(net.batch_norm(_conv(net, before, filters, 1, stride=stride), _NORM))
    x = net.relu(net.batch_norm(_conv(net, x, filters, 3), _NORM))
    return net.add(shortcut, _conv(net, x, 4 * filters, 1))


def _conv(net: Layers[T], x: T, filters: int, size: int, *, stride: int = 1) -> T:
    return net.conv(x, filters, size, size, stride=stride, padding="SAME_RESNET")


_UNITS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}

resnet50, resnet101, resnet152 = (partial(ResNet, units=units, version="v1") for units in _UNITS.values())
resnet50_v1_5, resnet101_v1_5, resnet152_v1_5 = (partial(ResNet, units=units, version="v1.5") for units in _UNITS.values())
resnet50_v2, resnet101_v2, resnet152_v2 = (partial(ResNet, units=units, version="v2") for units in _UNITS.values())


_CIFAR_FILTERS = (16, 32, 64)  # in the three stages


@dataclass(frozen=True)
class CifarResNet:
    """ResNet for CIFAR.

    Trained parameters: 269,722 with 20 layers in v1, 269,402 in v2; 1,727,962 and 1,725,962 with 110.
    """

    image_shape: tuple[int, int, int] = (32, 32, 3)
    classes: int = 10
    units: int = 3  # in each stage
    version: str = "v1"

    def logits(self, net: Layers[T], images: T) -> T:
        unit, channels = (_cifar_unit_v2 if self.version == "v2" else _cifar_unit_v1), _CIFAR_FILTERS[0]
        x = _normed_conv(net, images, channels)  # 32 x 32 x 16
        x = net.relu(x) if self.version == "v2" else x  # as in tf_cnn_benchmarks, though the paper has one in v1, too
        for number, filters in enumerate(_CIFAR_FILTERS):
            for _ in range(self.units):
                x = unit(net, x, channels, filters)
                channels = filters
            x = net.stage(f"stage{number + 1}", x)  # 32 x 32 x 16, 16 x 16 x 32, 8 x 8 x 64
        if self.version == "v2":
            x = net.relu(net.batch_norm(x, _BEFORE))
        return net.dense(net.mean(x), self.classes)


def _cifar_unit_v1(net: Layers[T], x: T, channels: int, filters: int) -> T:
    shortcut = _shortcut(net, x, channels, filters)
    x = net.relu(_normed_conv(net, x, filters, stride=_stride(channels, filters)))
    return net.relu(net.add(shortcut, _normed_conv(net, x, filters)))


def _cifar_unit_v2(net: Layers[T], x: T, channels: int, filters: int) -> T:
    """Apply batch norm and ReLU before the convolutions, so that the shortcut stays an identity."""
    shortcut = _shortcut(net, x, channels, filters)
    x = net.relu(net.batch_norm(x, _BEFORE))
    x = net.relu(_normed_conv(net, x, filters, stride=_stride(channels, filters)))
    return net.add(shortcut, net.conv(x, filters, 3, 3))


def _shortcut(net: Layers[T], x: T, channels: int, filters: int) -> T:
    """Apply the paper's option A, which has no variables: one pixel in four, and zeros for additional channels."""
    if channels == filters:
        return x
    return net.widen(net.avg_pool(x, 1, stride=_stride(channels, filters)), filters - channels)


def _stride(channels: int, filters: int) -> int:
    """Return the stride of a unit: a stage begins with more channels and fewer pixels."""
    return 1 if channels == filters else 2


def _normed_conv(net: Layers[T], x: T, filters: int, *, stride: int = 1) -> T:
    return net.batch_norm(net.conv(x, filters, 3, 3, stride=stride), _NORM)


_CIFAR_UNITS = (3, 5, 7, 9, 18)  # of two layers in each stage, beside the first convolution and the dense layer

resnet20, resnet32, resnet44, resnet56, resnet110 = (partial(CifarResNet, units=units) for units in _CIFAR_UNITS)
resnet20_v2, resnet32_v2, resnet44_v2, resnet56_v2, resnet110_v2 = (
    partial(CifarResNet, units=units, version="v2") for units in _CIFAR_UNITS
)
