"""LeNet-5 in the shape TensorFlow's tutorials gave it (after LeCun et al., 1998): ReLU, max pools, wider layers."""

from dataclasses import dataclass

from pytest_dtfperf.training.models.layers import Layers, T, by_inputs_of_relu


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
