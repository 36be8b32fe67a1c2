"""Define ResNet for images of CIFAR's size, 20 to 110 layers: v1 (arXiv 1512.03385, section 4.2), v2 (arXiv 1603.05027)."""

from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T

# tf_cnn_benchmarks': in v2, those that follow no convolution, before each unit and at the end, are another kind.
_NORM = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)
_BEFORE = BatchNorm(decay=0.999, epsilon=0.001, scale=False)
_FILTERS = (16, 32, 64)  # in the three stages


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
        unit, channels = (_unit_v2 if self.version == "v2" else _unit_v1), _FILTERS[0]
        x = _normed_conv(net, images, channels)  # 32 x 32 x 16
        x = net.relu(x) if self.version == "v2" else x  # as in tf_cnn_benchmarks, though the paper has one in v1, too
        for number, filters in enumerate(_FILTERS):
            for _ in range(self.units):
                x = unit(net, x, channels, filters)
                channels = filters
            x = net.stage(f"stage{number + 1}", x)  # 32 x 32 x 16, 16 x 16 x 32, 8 x 8 x 64
        if self.version == "v2":
            x = net.relu(net.batch_norm(x, _BEFORE))
        return net.dense(net.mean(x), self.classes)


def _unit_v1(net: Layers[T], x: T, channels: int, filters: int) -> T:
    shortcut = _shortcut(net, x, channels, filters)
    x = net.relu(_normed_conv(net, x, filters, stride=_stride(channels, filters)))
    return net.relu(net.add(shortcut, _normed_conv(net, x, filters)))


def _unit_v2(net: Layers[T], x: T, channels: int, filters: int) -> T:
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


_UNITS = (3, 5, 7, 9, 18)  # of two layers in each stage, beside the first convolution and the dense layer

resnet20, resnet32, resnet44, resnet56, resnet110 = (partial(CifarResNet, units=units) for units in _UNITS)
resnet20_v2, resnet32_v2, resnet44_v2, resnet56_v2, resnet110_v2 = (
    partial(CifarResNet, units=units, version="v2") for units in _UNITS
)
