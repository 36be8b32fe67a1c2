"""The networks of TensorFlow's MNIST tutorials, which the 2017 report trains."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, deviation

_WEIGHTS = deviation(0.1)  # the tutorial's, as all that follows
_BIAS = 0.1  # slightly positive, lest a ReLU be dead from the start


@dataclass(frozen=True)
class DeepMnist:
    """Two convolutions with pools, 1024 hidden units, dropout: 3,274,634 parameters."""

    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.relu(net.conv(images, 32, 5, 5, weights=_WEIGHTS, bias=_BIAS))  # 28 x 28 x 32
        x = net.stage("pool1", net.max_pool(x, 2, stride=2, padding="SAME"))  # 14 x 14 x 32
        x = net.relu(net.conv(x, 64, 5, 5, weights=_WEIGHTS, bias=_BIAS))  # 14 x 14 x 64
        x = net.stage("pool2", net.max_pool(x, 2, stride=2, padding="SAME"))  # 7 x 7 x 64
        x = net.relu(net.dense(net.flatten(x), 1024, weights=_WEIGHTS, bias=_BIAS))
        return net.dense(net.dropout(x, rate=0.5), self.classes, weights=_WEIGHTS, bias=_BIAS)


@dataclass(frozen=True)
class MnistSoftmax:
    """Softmax regression, the beginners' tutorial: one dense layer that starts from zeros, 7,850 parameters."""

    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        return net.dense(net.flatten(images), self.classes, weights=deviation(0.0))
