"""A hidden layer and a layer of classes."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T


@dataclass(frozen=True)
class Perceptron:
    image_shape: tuple[int, int, int] = (28, 28, 1)  # height, width, channels
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        hidden = net.relu(net.dense(net.flatten(images), 32))
        return net.dense(hidden, self.classes)
