"""Define DenseNet for images of CIFAR's size (Huang et al., arXiv 1608.06993).

Its 40 or 100 layers each add 12 or 24 channels.
"""

from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T, by_outputs_of_relu

_NORM = BatchNorm(decay=0.9, epsilon=1e-5, scale=True)  # tf_cnn_benchmarks'


@dataclass(frozen=True)
class DenseNet:
    """The paper's plain networks, without bottlenecks and compression: 1,019,722, 6,979,642 and 27,249,082 parameters."""

    image_shape: tuple[int, int, int] = (32, 32, 3)
    classes: int = 10
    layers: int = 12  # in each of the three blocks
    growth: int = 12  # channels that each layer adds

    def logits(self, net: Layers[T], images: T) -> T:
        channels = 16
        x = net.conv(images, channels, 3, 3, weights=by_outputs_of_relu)  # 32 x 32 x 16
        for block in range(3):
            if block > 0:
                x = _transition(net, x, channels)  # half the pixels, as many channels
            for _ in range(self.layers):
                x = net.concat([x, _normed_conv(net, x, self.growth, 3)])
            channels += self.layers * self.growth
            x = net.stage(f"block{block + 1}", x)
        return net.dense(net.mean(net.relu(net.batch_norm(x, _NORM))), self.classes)


def _transition(net: Layers[T], x: T, channels: int) -> T:
    return net.avg_pool(_normed_conv(net, x, channels, 1), 2, stride=2)


def _normed_conv(net: Layers[T], x: T, filters: int, size: int) -> T:
    """Apply batch norm and ReLU, and then the convolution."""
    return net.conv(net.relu(net.batch_norm(x, _NORM)), filters, size, size, weights=by_outputs_of_relu)


densenet40_k12 = partial(DenseNet, layers=12, growth=12)
densenet100_k12 = partial(DenseNet, layers=32, growth=12)
densenet100_k24 = partial(DenseNet, layers=32, growth=24)
