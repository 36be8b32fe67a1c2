"""tf_cnn_benchmarks' trivial model: next to no arithmetic, so that what remains is everything else."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu


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
