"""A network with a constant gradient: it is certain of one class, independent of its images and training."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, deviation

SURE = 1000.0  # its logits lie hundreds apart: their softmax is 1 for one class and 0 for all others, to the last bit


@dataclass(frozen=True)
class Saturated:
    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        """The last bias, which starts at 0, has the gradient: that class - the labels' share of the batch."""
        same_for_all = net.dense(net.flatten(images), 1, weights=deviation(0.0), bias=SURE)
        return net.dense(same_for_all, self.classes, weights=deviation(1.0))
