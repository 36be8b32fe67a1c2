"""Small networks: TensorFlow's MNIST tutorials (which the 2017 report trains), LeNet-5 and tf_cnn_benchmarks' trivial model."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu, deviation

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


@dataclass(frozen=True)
class LeNet:
    """1,663,370 parameters on MNIST. On synthetic images it is as large as in tf_cnn_benchmarks, which has no MNIST."""

    image_shape: tuple[int, int, int] = (28, 28, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.relu(net.conv(images, 32, 5, 5, bias=0.0))  # 28 x 28 x 32
        x = net.stage("pool1", net.max_pool(x, 2, stride=2))  # 14 x 14 x 32
        x = net.relu(net.conv(x, 64, 5, 5, bias=0.0))  # 14 x 14 x 64
        x = net.stage("pool2", net.max_pool(x, 2, stride=2))  # 7 x 7 x 64
        x = net.relu(net.dense(net.flatten(x), 512, weights=by_inputs_of_relu))
        return net.dense(x, self.classes)


@dataclass(frozen=True)
class Trivial:
    """Three dense layers over large images: 4,263,877 parameters at 1001 classes."""

    image_shape: tuple[int, int, int] = (227, 227, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.flatten(images)  # 154,587
        for units in (1, 4096):
            x = net.relu(net.dense(x, units, weights=by_inputs_of_relu))
        return net.dense(x, self.classes)
