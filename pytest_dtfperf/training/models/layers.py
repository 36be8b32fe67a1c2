"""The layers models are made of, in NHWC and NCHW, over variables that somebody else places."""

import math
import zlib
from collections.abc import Callable, Sequence

import tensorflow as tf

v1 = tf.compat.v1

# (name, shape, initial value) -> the variable's value, to compute with on this tower. The strategy decides where it lives.
Trained = Callable[[str, Sequence[int], Callable[[], tf.Tensor]], tf.Tensor]
Initial = Callable[[Sequence[int], tuple[int, int]], tf.Tensor]  # (shape, seeds) -> first value

BATCH_NORM = "batch_norm"  # stands in the names of all its variables
DECAY = 0.999  # of batch norm's moving averages, and
EPSILON = 0.001  # added to its variances: tf_cnn_benchmarks' and Keras' InceptionV3's


def constant(value: float) -> Initial:
    return lambda shape, seed: tf.constant(value, shape=shape)


def truncated_normal(stddev: float) -> Initial:
    """Drawn once per process by an operation of its own, so that it depends on the seeds alone, not on where it lives.

    Not by TensorFlow's stateless one: of that, the graph optimiser computes all values once more, and throws them away.
    """
    return lambda shape, seed: tf.raw_ops.TruncatedNormal(shape=shape, dtype=tf.float32, seed=seed[0], seed2=seed[1]) * stddev


def by_fan_in(fan_in: int) -> Initial:
    """Truncated normal that keeps the variance of what passes through. 0.8796 is the deviation left after truncation."""
    return truncated_normal(math.sqrt(1.0 / fan_in) / 0.87962566103423978)


class Layers:
    """The layers of one tower. A second object over the same two stores sees the same variables: for evaluation.

    Images are (batch, height, width, channels) in NHWC and (batch, channels, height, width) in NCHW, float32.
    """

    def __init__(
        self,
        trained: Trained,
        averages: dict[str, tf.Variable],
        *,
        data_format: str,
        seed: int,
        tower: str = "",
        training: bool = True,
        native_nchw: bool = True,
    ) -> None:
        self._trained = trained
        self._averages = averages
        self._format = data_format
        self._seed = seed
        self._tower = tower
        self._training = training
        self._native = data_format == "NHWC" or native_nchw
        self._counts: dict[str, int] = {}
        self.updates: list[tf.Operation] = []  # of the moving averages: to run once per step

    def conv(
        self,
        images: tf.Tensor,
        filters: int,
        height: int,
        width: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        weights: Initial | None = None,
        bias: Initial | None = None,
    ) -> tf.Tensor:
        """Convolution and ReLU; between them a bias where one is given, else batch norm."""
        name = self._name("conv")
        channels = self._channels(images)
        kernel = self._variable(
            f"{name}/weights", (height, width, channels, filters), weights or by_fan_in(height * width * channels)
        )
        images = self._spatially(
            images, lambda x, layout: tf.nn.conv2d(x, kernel, stride, padding, data_format=layout, name=name)
        )
        if bias is None:
            return tf.nn.relu(self._batch_norm(images, name))
        return tf.nn.relu(tf.nn.bias_add(images, self._variable(f"{name}/bias", (filters,), bias), data_format=self._format))

    def _batch_norm(self, images: tf.Tensor, name: str) -> tf.Tensor:
        """Over batch and space, with an offset and no scale, as Keras' InceptionV3 has it: the ReLU is followed by weights."""
        name = f"{name}/{BATCH_NORM}"
        channels = self._channels(images)
        offset = self._variable(f"{name}/offset", (channels,), constant(0.0))
        mean = self._average(f"{name}/mean", channels, 0.0)
        variance = self._average(f"{name}/variance", channels, 1.0)
        normed, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=tf.ones([channels]),
            offset=offset,
            mean=mean.read_value(),
            variance=variance.read_value(),
            epsilon=EPSILON,
            exponential_avg_factor=1 - DECAY if self._training else 1.0,  # the kernel moves the averages itself
            data_format=self._format,
            is_training=self._training,
        )
        if self._training:
            self.updates += [mean.assign(new_mean, read_value=False), variance.assign(new_variance, read_value=False)]
        return normed

    def max_pool(self, images: tf.Tensor, size: int, *, stride: int, padding: str = "VALID") -> tf.Tensor:
        return self._spatially(images, lambda x, layout: tf.nn.max_pool2d(x, size, stride, padding, data_format=layout))

    def avg_pool(self, images: tf.Tensor, size: int, *, stride: int, padding: str = "VALID") -> tf.Tensor:
        return self._spatially(images, lambda x, layout: tf.nn.avg_pool2d(x, size, stride, padding, data_format=layout))

    def mean(self, images: tf.Tensor) -> tf.Tensor:
        """Over space: (batch, channels)."""
        return tf.reduce_mean(images, [1, 2] if self._format == "NHWC" else [2, 3])

    def concat(self, branches: Sequence[tf.Tensor], name: str) -> tf.Tensor:
        """Along the channels."""
        return tf.concat(branches, 3 if self._format == "NHWC" else 1, name=name)

    def flatten(self, images: tf.Tensor) -> tf.Tensor:
        """(batch, height x width x channels), in this order in both formats, so that what follows has the same weights."""
        images = images if self._format == "NHWC" else tf.transpose(images, [0, 2, 3, 1])
        return tf.reshape(images, [-1, math.prod(images.shape[1:])])

    def dense(
        self, vectors: tf.Tensor, units: int, *, weights: Initial | None = None, bias: Initial | None = None
    ) -> tf.Tensor:
        """(batch, units), without an activation."""
        name = self._name("dense")
        inputs = int(vectors.shape[1])
        matrix = self._variable(f"{name}/weights", (inputs, units), weights or by_fan_in(inputs))
        offset = self._variable(f"{name}/bias", (units,), bias or constant(0.0))
        return tf.nn.bias_add(tf.matmul(vectors, matrix), offset)

    def dropout(self, vectors: tf.Tensor, rate: float) -> tf.Tensor:
        """Every tower drops its own, and the same in every run under one seed."""
        if not self._training:
            return vectors
        return tf.nn.dropout(vectors, rate, seed=self._op_seed(f"{self._name('dropout')} of tower {self._tower}"))

    def _spatially(self, images: tf.Tensor, op: Callable[[tf.Tensor, str], tf.Tensor]) -> tf.Tensor:
        """`op` in the model's format, or around a pair of transpositions where there is no such kernel."""
        if self._native:
            return op(images, self._format)
        return tf.transpose(op(tf.transpose(images, [0, 2, 3, 1]), "NHWC"), [0, 3, 1, 2])

    def _variable(self, name: str, shape: Sequence[int], initial: Initial) -> tf.Tensor:
        return self._trained(name, shape, lambda: initial(shape, (self._seed, self._op_seed(name))))

    def _average(self, name: str, channels: int, start: float) -> tf.Variable:
        """A moving average: state of this tower, which nobody else reads, so it never crosses the wire."""
        if name not in self._averages:
            self._averages[name] = v1.Variable(
                lambda: tf.constant(start, shape=[channels]),
                name=name,
                trainable=False,
                use_resource=True,
                collections=[v1.GraphKeys.LOCAL_VARIABLES],
            )
        return self._averages[name]

    def _channels(self, images: tf.Tensor) -> int:
        return int(images.shape[3 if self._format == "NHWC" else 1])

    def _name(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}{number}"

    @staticmethod
    def _op_seed(name: str) -> int:
        return zlib.crc32(name.encode()) | 1  # two seeds of nought would mean: a new one each time
