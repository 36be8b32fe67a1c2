"""OverFeat's fast network (Sermanet et al., arXiv 1312.6229, table 1)."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu


@dataclass(frozen=True)
class OverFeat:
    """145,920,872 parameters at 1000 classes: the paper says 145 million."""

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
