"""Small networks. Without batch norm and dropout, what one learns depends on its variables and its images alone."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import BatchNorm, Layers, T, deviation


@dataclass(frozen=True)
class Tiny:
    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        # To make an operation takes a training here more CPU time than to run it: no more layers than there are kinds.
        x = net.relu(net.conv(images, 12, 3, 3, stride=2, bias=0.1))  # 14 x 14 x 12
        x = net.max_pool(x, 2, stride=2)  # 7 x 7 x 12
        x = net.relu(net.dense(net.flatten(net.avg_pool(x, 3, stride=2)), 64))
        return net.dense(x, self.classes)


@dataclass(frozen=True)
class Colours(Tiny):
    """A network for ImageNet's kind of images."""

    image_shape: tuple[int, int, int] = (28, 28, 3)
    classes: int = 1001


@dataclass(frozen=True)
class Normed:
    """A network with batch norm and dropout, which differ in training."""

    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.conv(images, 8, 3, 3, stride=2)  # 14 x 14 x 8
        x = net.relu(net.batch_norm(x, BatchNorm(decay=0.9, epsilon=0.001, scale=True)))
        # Weights so large that the loss of a network that has learnt nothing depends on what batch norm does.
        return net.dense(net.dropout(net.mean(x), 0.5), self.classes, weights=deviation(5.0))


@dataclass(frozen=True)
class Wide:
    """Next to no arithmetic, and 2.7 MB of variables: 669,706 of them."""

    image_shape: tuple[int, int, int] = (28, 28, 1)
    classes: int = 10
    hidden: tuple[int, ...] = (512, 512)

    def logits(self, net: Layers[T], images: T) -> T:
        x = net.flatten(images)  # 784
        for units in self.hidden:
            x = net.relu(net.dense(x, units))
        return net.dense(x, self.classes)


@dataclass(frozen=True)
class Heavy(Wide):
    """Three large layers, 7.2 MB. Where two servers share them, the first is cut: each has gradients of 1.2 and of 2.4 MB."""

    hidden: tuple[int, ...] = (768, 768, 768)


@dataclass(frozen=True)
class Uneven(Wide):
    """Nearly all of it in one layer of 8.6 MB: what has that is cut in two where there are links."""

    hidden: tuple[int, ...] = (2752,)
