"""Define sequential networks: each layer's input is the output of the layer before it.

AlexNet in one column: Krizhevsky, arXiv 1404.5997, and tf_cnn_benchmarks' form of it for small images. OverFeat's fast network:
Sermanet et al., arXiv 1312.6229, table 1. VGG with 11, 16 and 19 layers: Simonyan and Zisserman, arXiv 1409.1556, table 1.
"""

from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu, deviation

LEAST_PIXELS = 67  # of a side: with fewer, the last of three pools has no input


@dataclass(frozen=True)
class AlexNet:
    """AlexNet: 61,838,248 parameters at 1000 classes. Its 3 pixels more than 224 replace the first layer's padding."""

    image_shape: tuple[int, int, int] = (227, 227, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        large = min(self.image_shape[:2]) >= LEAST_PIXELS
        return net.dense((_build_imagenet_network if large else _build_cifar10_network)(net, images), self.classes)


def _build_imagenet_network(net: Layers[T], images: T) -> T:
    x = net.relu(net.conv(images, 64, 11, 11, stride=4, padding="VALID", bias=0.0))  # 55 x 55 x 64
    x = net.stage("pool1", net.max_pool(x, 3, stride=2))  # 27 x 27 x 64
    x = net.relu(net.conv(x, 192, 5, 5, bias=0.0))  # 27 x 27 x 192
    x = net.stage("pool2", net.max_pool(x, 3, stride=2))  # 13 x 13 x 192
    for filters in (384, 384, 256):
        x = net.relu(net.conv(x, filters, 3, 3, bias=0.0))  # 13 x 13
    x = net.stage("pool5", net.max_pool(x, 3, stride=2))  # 6 x 6 x 256
    x = net.flatten(x)  # 9,216
    for _ in range(2):
        x = net.dropout(net.relu(net.dense(x, 4096, weights=by_inputs_of_relu)), rate=0.5)
    return x


def _build_cifar10_network(net: Layers[T], images: T) -> T:
    """Return the network of TensorFlow's CIFAR-10 tutorial, after Krizhevsky's cuda-convnet, with its first values."""
    x = net.relu(net.conv(images, 64, 5, 5, weights=deviation(0.05), bias=0.0))  # 32 x 32 x 64
    x = net.stage("pool1", net.max_pool(x, 3, stride=2, padding="SAME"))  # 16 x 16 x 64
    x = net.lrn(x, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
    x = net.relu(net.conv(x, 64, 5, 5, weights=deviation(0.05), bias=0.1))  # 16 x 16 x 64
    x = net.lrn(x, radius=4, bias=1.0, alpha=0.001 / 9, beta=0.75)
    x = net.stage("pool2", net.max_pool(x, 3, stride=2, padding="SAME"))  # 8 x 8 x 64
    x = net.flatten(x)  # 4,096
    for units in (384, 192):
        x = net.relu(net.dense(x, units, weights=deviation(0.04), bias=0.1))
    return x


@dataclass(frozen=True)
class OverFeat:
    """OverFeat: 145,920,872 parameters at 1000 classes; the paper gives 145 million."""

    image_shape: tuple[int, int, int] = (231, 231, 3)
    classes: int = 1001

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.relu(net.conv(images, 96, 11, 11, stride=4, padding="VALID", bias=0.0))  # 56 x 56 x 96
        x = net.stage("pool1", net.max_pool(x, 2, stride=2))  # 28 x 28 x 96
        x = net.relu(net.conv(x, 256, 5, 5, padding="VALID", bias=0.0))  # 24 x 24 x 256
        x = net.stage("pool2", net.max_pool(x, 2, stride=2))  # 12 x 12 x 256
        for filters in (512, 1024, 1024):
            x = net.relu(net.conv(x, filters, 3, 3, bias=0.0))  # 12 x 12
        x = net.stage("pool5", net.max_pool(x, 2, stride=2))  # 6 x 6 x 1024
        x = net.flatten(x)  # 36,864
        for units in (3072, 4096):
            x = net.dropout(net.relu(net.dense(x, units, weights=by_inputs_of_relu)), rate=0.5)
        return net.dense(x, self.classes)


_FILTERS = (64, 128, 256, 512, 512)  # of the five stages, each of which ends with a pool


@dataclass(frozen=True)
class Vgg:
    """VGG: 132,863,336, 138,357,544 and 143,667,240 parameters at 1000 classes."""

    image_shape: tuple[int, int, int] = (224, 224, 3)
    classes: int = 1001
    convolutions: tuple[int, ...] = (2, 2, 3, 3, 3)  # in each stage

    def logits(self, net: Layers[T], images: T) -> T:
        x = images
        for number, (filters, convolutions) in enumerate(zip(_FILTERS, self.convolutions, strict=True), 1):
            for _ in range(convolutions):
                x = net.relu(net.conv(x, filters, 3, 3, bias=0.0))
            x = net.stage(f"pool{number}", net.max_pool(x, 2, stride=2))  # 112, 56, 28, 14, 7 pixels
        x = net.flatten(x)  # 25,088
        for _ in range(2):
            x = net.dropout(net.relu(net.dense(x, 4096, weights=by_inputs_of_relu)), rate=0.5)
        return net.dense(x, self.classes)


vgg11 = partial(Vgg, convolutions=(1, 1, 2, 2, 2))
vgg16 = partial(Vgg, convolutions=(2, 2, 3, 3, 3))
vgg19 = partial(Vgg, convolutions=(2, 2, 4, 4, 4))


_WEIGHTS = deviation(0.1)  # the tutorial's, as all that follows
_BIAS = 0.1  # slightly positive, so that no ReLU is dead from the start


@dataclass(frozen=True)
class DeepMnist:
    """Two convolutions with pools, 1024 hidden units and dropout: 3,274,634 parameters."""

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
    """LeNet: 1,663,370 parameters on MNIST. On synthetic images it is as large as in tf_cnn_benchmarks, which has no MNIST."""

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
