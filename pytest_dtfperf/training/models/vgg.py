"""VGG with 11, 16 and 19 layers (Simonyan and Zisserman, arXiv 1409.1556, table 1: A, D and E)."""

from dataclasses import dataclass
from functools import partial

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu

_FILTERS = (64, 128, 256, 512, 512)  # of the five stages, each of which ends with a pool


@dataclass(frozen=True)
class Vgg:
    """132,863,336, 138,357,544 and 143,667,240 parameters at 1000 classes."""

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
