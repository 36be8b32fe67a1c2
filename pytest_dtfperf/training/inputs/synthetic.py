"""Images that cost nothing: made once, kept on the device."""

from collections.abc import Callable

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.inputs import Input
from pytest_dtfperf.training.models import Network

v1 = tf.compat.v1


class Synthetic(Input):
    """One batch per tower in variables, as tf_cnn_benchmarks has it: a constant would be folded into the graph.

    Pixels lie evenly between -1 and 1, as those of preprocessed images do: with positive ones alone, a narrow ReLU may be dead
    from the start; normally distributed ones would take five times as long to draw.
    """

    resident = True

    def __init__(self, order: TaskOrder, network: Network, host: str) -> None:
        self._order = order
        self._network = network
        self._host = host

    def batch(self, tower: int) -> tuple[tf.Tensor, tf.Tensor]:
        images, labels = self._drawn(tower)
        with v1.device(None), v1.device(self._host):  # GPUs keep no variables of int32
            kept_labels = _kept(labels, "synthetic_labels")
        return _kept(images, "synthetic_images"), kept_labels

    def dataset(self, tower: int) -> tf.data.Dataset:
        images, labels = self._drawn(tower)
        return tf.data.Dataset.from_tensors((images(), labels())).repeat()

    def _drawn(self, tower: int) -> tuple[Callable[[], tf.Tensor], Callable[[], tf.Tensor]]:
        spec = self._order.spec
        seeds = {"seed": spec.seed, "seed2": 1 + self._order.index * 1000 + tower}  # every tower has its own images

        def images() -> tf.Tensor:
            shape = (spec.batch_size, *self._network.image_shape)
            drawn = 2 * tf.raw_ops.RandomUniform(shape=shape, dtype=tf.float32, **seeds) - 1
            return drawn if spec.data_format == "NHWC" else tf.transpose(drawn, [0, 3, 1, 2])

        def labels() -> tf.Tensor:
            return tf.raw_ops.RandomUniformInt(shape=[spec.batch_size], minval=0, maxval=self._network.classes, **seeds)

        return images, labels


def _kept(initial: object, name: str) -> tf.Tensor:
    variable = v1.Variable(initial, name=name, trainable=False, use_resource=True, collections=[v1.GraphKeys.LOCAL_VARIABLES])
    return variable.read_value()
