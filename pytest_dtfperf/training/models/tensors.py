"""Compute layers in TensorFlow, in NHWC and NCHW, over variables that the caller places.

The value of a variable may come in parts along its first axis. It is joined only where an operation needs all of it. Dense
layers multiply by its parts, so that they begin when the first part has arrived and copy nothing: VGG16's largest value has 411
MB, and a step over four servers at 0.5 Gbit/s waited 1.9 s for the copy that joined its parts, and for cutting the gradient.
"""

import math
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import tensorflow as tf

from pytest_dtfperf.training.models import Network
from pytest_dtfperf.training.models.layers import (
    BATCH_NORM,
    BatchNorm,
    Deviation,
    by_inputs,
    by_inputs_exactly,
    compute_padding,
)
from pytest_dtfperf.training.models.outline import Outline, Variable

DTYPES = {"fp32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}  # by the precision of a spec


def join_parts(parts: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return one tensor with the rows of all parts, in their order."""
    return parts[0] if len(parts) == 1 else tf.concat(parts, 0)


def parts_in(value: tf.Tensor) -> list[tf.Tensor]:
    """Return the tensors that are joined to this one; the tensor itself where it is not joined."""
    if not tf.is_symbolic_tensor(value) or value.op.type != "ConcatV2":
        return [value]
    *parts, axis = value.op.inputs
    return parts if tf.get_static_value(axis) == 0 else [value]


def product_by_parts(vectors: tf.Tensor, matrices: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return vectors (batch, rows) times the joined matrices (rows, columns), as (batch, columns).

    The products of the parts are added in float32, whatever their type.
    """
    if len(matrices) == 1:
        return tf.raw_ops.MatMul(a=vectors, b=matrices[0])
    columns = tf.split(vectors, [int(matrix.shape[0]) for matrix in matrices], axis=1)
    products = [tf.raw_ops.MatMul(a=theirs, b=matrix) for theirs, matrix in zip(columns, matrices, strict=True)]
    return tf.cast(tf.add_n([tf.cast(each, tf.float32) for each in products]), vectors.dtype)


v1 = tf.compat.v1


class MovingAverage(Protocol):
    """The part of a TensorFlow variable that layers use for a moving average."""

    def read_value(self) -> tf.Tensor:
        """Return the value before this step."""

    def assign(self, value: tf.Tensor, read_value: bool) -> tf.Operation | None:
        """Assign the moved value. Returns the operation that a step must run for it, if any. `read_value` is always False."""


Average = Callable[[str, int, float], MovingAverage]  # (name, channels, first value) -> the moving average of this name


class PackedAverages:
    """All moving averages of a tower in one variable.

    InceptionV3 has 188. As variables of their own, they would be a third of its graph's operations: each takes ten to make, to
    initialise, to read and to write. State that is not float32, such as that of an own model's random generator, has a variable
    of its own.
    """

    def __init__(self, outline: Outline, host: str = "") -> None:
        """Plan the variable. `host` is the CPU beside the tower."""
        self._host = host
        states = [variable for variable in outline.variables if not variable.trainable]
        self._members = [variable for variable in states if variable.dtype == "float32"]
        self._others = {variable.name: variable for variable in states if variable.dtype != "float32"}
        self._values: dict[str, tf.Tensor] = {}
        self._moved: dict[str, tf.Tensor] = {}
        self._made: dict[str, tf.Variable] = {}  # of the others

    def __call__(self, name: str, channels: int, start: float) -> MovingAverage:
        """Return one moving average. The first call makes the variable on the current device."""
        if name in self._others:
            return self._make_average(self._others[name])
        if not self._values:
            self._make()
        return _Member(self, name)

    def value(self, name: str) -> tf.Tensor:
        return self._values[name]

    def move(self, name: str, value: tf.Tensor) -> tf.Operation | None:
        """Note a moved value. The last one of a step writes all at once, by the returned operation."""
        self._moved[name] = value
        if len(self._moved) < len(self._members):
            return None
        moved = tf.concat([tf.reshape(self._moved[member.name], [-1]) for member in self._members], 0)
        return self._variable.assign(moved, read_value=False)

    def _make(self) -> None:
        sizes = [member.size for member in self._members]
        self._variable = make_variable(self._concat_first_values, "averages")
        values = tf.split(self._variable.read_value(), sizes)
        self._values = {
            member.name: tf.reshape(value, member.shape) for member, value in zip(self._members, values, strict=True)
        }

    def _concat_first_values(self) -> tf.Tensor:
        if not any(member.values for member in self._members):
            return tf.repeat([member.start for member in self._members], [member.size for member in self._members])
        return tf.concat([tf.reshape(member.values(), [-1]) for member in self._members if member.values], 0)

    def _make_average(self, variable: Variable) -> MovingAverage:
        """Return a variable of its own on the CPU beside the tower: GPUs support few integer types."""
        if variable.name not in self._made:
            with v1.device(None), v1.device(self._host):
                assert variable.values is not None
                self._made[variable.name] = make_variable(variable.values, variable.name)
        found: MovingAverage = self._made[variable.name]
        return found


def make_variable(first: Callable[[], tf.Tensor] | float, name: str, *, shared: bool = False) -> tf.Variable:
    """Return a variable on the current device, which the chief initialises if it is shared, and else each worker its own."""
    collection = v1.GraphKeys.GLOBAL_VARIABLES if shared else v1.GraphKeys.LOCAL_VARIABLES
    return v1.Variable(first, name=name, trainable=False, use_resource=True, collections=[collection])


class _Member:
    """One moving average of a pack."""

    def __init__(self, pack: PackedAverages, name: str) -> None:
        self._pack = pack
        self._name = name

    def read_value(self) -> tf.Tensor:
        return self._pack.value(self._name)

    def assign(self, value: tf.Tensor, read_value: bool) -> tf.Operation | None:
        return self._pack.move(self._name, value)


# (name, shape, initial value) -> the variable's value in float32, to compute with on this tower. The strategy decides where
# it lives.
Trained = Callable[[str, Sequence[int], Callable[[], tf.Tensor]], tf.Tensor]


class TensorLayers:
    """The layers of one tower. A second object over the same two stores sees the same variables, for evaluation.

    Images are (batch, height, width, channels) in NHWC and (batch, channels, height, width) in NCHW. Variables are float32:
    with a shorter `dtype`, their values are cast. Batch norm and means, which add up many values, compute in float32. `device`
    is "cpu" or "gpu", which have different kernels.
    """

    def __init__(
        self,
        trained: Trained,
        average: Average,
        *,
        data_format: str,
        seed: int,
        tower: str = "",
        training: bool = True,
        device: str = "gpu",
        dtype: tf.DType = tf.float32,
    ) -> None:
        self._trained = trained
        self._average = average
        self._format = data_format
        self._channel_axis = 3 if data_format == "NHWC" else 1
        self._seed = seed
        self._tower = tower
        self._training = training
        self._device = device
        self._dtype = dtype
        self._counts: dict[str, int] = {}
        self.stages: dict[str, tf.Tensor] = {}
        self.updates: list[tf.Operation] = []  # of the moving averages: to run once per step
        self.penalties: list[tf.Tensor] = []  # that an own model adds to its loss

    def compute_logits(self, network: Network, images: tf.Tensor) -> tf.Tensor:
        """Return (batch, classes) in float32, whatever the layers compute in, so that the loss is float32, too."""
        logits: tf.Tensor = network.logits(self, self._cast(images))
        return logits if self._dtype == tf.float32 else tf.cast(logits, tf.float32)

    # -- for an own model, which is not made of layers

    @property
    def training(self) -> bool:
        return self._training

    @property
    def tower(self) -> str:
        """Return the name of the tower's task and the tower's number there."""
        return self._tower

    def variable(self, variable: Variable) -> tf.Tensor:
        """Return the value of a trained variable, in float32."""
        return self._trained(variable.name, variable.shape, partial(make_first_value, variable, self._seed))

    def state(self, variable: Variable) -> MovingAverage:
        """Return a variable that is not trained, in its own type and shape: it is a tower's own, as a moving average is."""
        return self._average(variable.name, variable.size, variable.start)

    def move(self, state: MovingAverage, value: tf.Tensor) -> None:
        """Assign a new value to a state, once per step, after the step has read it."""
        if (update := state.assign(value, read_value=False)) is not None:
            self.updates.append(update)

    # -- layers

    def conv(
        self,
        images: tf.Tensor,
        filters: int,
        height: int,
        width: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        weights: Deviation = by_inputs_exactly,
        bias: float | None = None,
    ) -> tf.Tensor:
        name = self._name("conv")
        kernel = self._weights(name, (height, width, self._channels(images), filters), weights)

        def convolve(x: tf.Tensor, layout: str) -> tf.Tensor:
            if self._is_product(kernel, layout, stride) and bias is None:
                return _convolve_by_product(x, kernel, name)
            x, around = _pad_images(x, layout, padding, (height, width), stride)
            strides = _expand_spatial(stride, layout)
            return tf.raw_ops.Conv2D(input=x, filter=kernel, strides=strides, data_format=layout, name=name, **around)

        images = self._apply_spatially(images, convolve)
        if bias is None:
            return images
        return tf.raw_ops.BiasAdd(value=images, bias=self._bias(name, filters, bias), data_format=self._format)

    def batch_norm(self, images: tf.Tensor, settings: BatchNorm) -> tf.Tensor:
        name = self._name(BATCH_NORM)
        channels = self._channels(images)
        scale = self._constant(f"{name}/scale", (channels,), 1.0) if settings.scale else tf.ones([channels])
        offset = self._constant(f"{name}/offset", (channels,), 0.0)
        mean = self._average(f"{name}/mean", channels, 0.0)
        variance = self._average(f"{name}/variance", channels, 1.0)
        normed, new_mean, new_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=images,
            scale=scale,
            offset=offset,
            mean=mean.read_value(),
            variance=variance.read_value(),
            epsilon=settings.epsilon,
            exponential_avg_factor=1 - settings.decay if self._training else 1.0,  # the kernel moves the averages itself
            data_format=self._format,
            is_training=self._training,
        )
        if self._training:
            self.move(mean, new_mean)
            self.move(variance, new_variance)
        return normed

    def lrn(self, images: tf.Tensor, *, radius: int, bias: float, alpha: float, beta: float) -> tf.Tensor:
        images = tf.cast(images, tf.float32)  # there are no kernels for bfloat16, and none for NCHW
        images = tf.raw_ops.LRN(input=self._channels_last(images), depth_radius=radius, bias=bias, alpha=alpha, beta=beta)
        return self._cast(images if self._format == "NHWC" else tf.transpose(images, [0, 3, 1, 2]))

    def relu(self, x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Relu(features=x)

    def add(self, one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.AddV2(x=one, y=other)

    def max_pool(self, images: tf.Tensor, size: int, *, stride: int, padding: str = "VALID") -> tf.Tensor:
        return self._pool(tf.raw_ops.MaxPool, "input", images, size, stride, padding)

    def avg_pool(self, images: tf.Tensor, size: int, *, stride: int, padding: str = "VALID") -> tf.Tensor:
        return self._pool(tf.raw_ops.AvgPool, "value", images, size, stride, padding)

    def mean(self, images: tf.Tensor) -> tf.Tensor:
        space = [1, 2] if self._channel_axis == 3 else [2, 3]
        return self._cast(tf.reduce_mean(tf.cast(images, tf.float32), space))

    def concat(self, branches: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.concat(branches, self._channel_axis)

    def widen(self, images: tf.Tensor, by: int) -> tf.Tensor:
        around = [(0, 0)] * 4
        around[self._channel_axis] = (by // 2, by // 2)
        return tf.pad(images, around)

    def flatten(self, images: tf.Tensor) -> tf.Tensor:
        return tf.reshape(self._channels_last(images), [-1, math.prod(images.shape[1:])])

    def dense(self, vectors: tf.Tensor, units: int, *, weights: Deviation = by_inputs, bias: float = 0.0) -> tf.Tensor:
        name = self._name("dense")
        matrix = self._weights_in_float32(name, (int(vectors.shape[1]), units), weights)
        product = product_by_parts(vectors, [self._cast(part) for part in parts_in(matrix)])
        return tf.raw_ops.BiasAdd(value=product, bias=self._bias(name, units, bias))

    def dropout(self, vectors: tf.Tensor, rate: float) -> tf.Tensor:
        """Drop values: other ones in every tower, and the same in every run with one seed."""
        if not self._training:
            return vectors
        return tf.nn.dropout(vectors, rate, seed=_compute_op_seed(f"{self._name('dropout')} of tower {self._tower}"))

    def stage(self, name: str, x: tf.Tensor) -> tf.Tensor:
        self.stages[name] = x
        return x

    def _pool(self, op: Any, operand: str, images: tf.Tensor, size: int, stride: int, padding: str) -> tf.Tensor:
        return self._apply_spatially(
            images,
            lambda x, layout: op(
                ksize=_expand_spatial(size, layout),
                strides=_expand_spatial(stride, layout),
                padding=padding,
                data_format=layout,
                **{operand: x},
            ),
        )

    def _apply_spatially(self, images: tf.Tensor, op: Callable[[tf.Tensor, str], tf.Tensor]) -> tf.Tensor:
        """Apply `op` in the model's format, or between two transpositions where no kernel has that format."""
        if self._format == "NHWC" or self._device == "gpu":
            return op(images, self._format)
        return tf.transpose(op(tf.transpose(images, [0, 2, 3, 1]), "NHWC"), [0, 3, 1, 2])

    def _is_product(self, kernel: tf.Tensor, layout: str, stride: int) -> bool:
        """Return whether a convolution is computed as a matrix product: where it is one, and on CPUs.

        There oneDNN computes the gradient of weights of 1 x 1 1.3 times as fast so, and the rest as fast. In float16, which
        CPUs are slow at, it was not measured.
        """
        pointwise = list(kernel.shape[:2]) == [1, 1] and stride == 1
        return pointwise and layout == "NHWC" and self._device == "cpu" and self._dtype != tf.float16

    def _weights(self, name: str, shape: Sequence[int], stddev: Deviation) -> tf.Tensor:
        return self._cast(self._weights_in_float32(name, shape, stddev))

    def _weights_in_float32(self, name: str, shape: Sequence[int], stddev: Deviation) -> tf.Tensor:
        name = f"{name}/weights"
        return self._trained(name, shape, lambda: _draw_values(shape, stddev(shape), self._seed, _compute_op_seed(name)))

    def _bias(self, name: str, units: int, start: float) -> tf.Tensor:
        return self._cast(self._constant(f"{name}/bias", (units,), start))

    def _constant(self, name: str, shape: Sequence[int], start: float) -> tf.Tensor:
        return self._trained(name, shape, lambda: tf.constant(start, shape=shape))

    def _cast(self, x: tf.Tensor) -> tf.Tensor:
        return x if self._dtype == x.dtype else tf.cast(x, self._dtype)

    def _channels_last(self, images: tf.Tensor) -> tf.Tensor:
        return images if self._format == "NHWC" else tf.transpose(images, [0, 2, 3, 1])

    def _channels(self, images: tf.Tensor) -> int:
        return int(images.shape[self._channel_axis])

    def _name(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}{number}"


def make_first_value(variable: Variable, seed: int) -> tf.Tensor:
    """Return the first value of a network's variable, the same as its layer would give it."""
    if variable.values is not None:
        return variable.values()
    if variable.stddev is None:
        return tf.constant(variable.start, shape=variable.shape)
    return _draw_values(variable.shape, variable.stddev, seed, _compute_op_seed(variable.name))


def _draw_values(shape: Sequence[int], stddev: float, seed: int, op_seed: int) -> tf.Tensor:
    """Draw values by an operation of its own, once per process, so that they depend only on the seeds, not on the device.

    TensorFlow's stateless operation is not used: the graph optimiser computes all of its values again, and discards them.
    """
    return tf.raw_ops.TruncatedNormal(shape=shape, dtype=tf.float32, seed=seed, seed2=op_seed) * stddev


def _expand_spatial(size: int, layout: str) -> list[int]:
    """Return a window's or a stride's size in all four dimensions."""
    return [1, size, size, 1] if layout == "NHWC" else [1, 1, size, size]


def _convolve_by_product(images: tf.Tensor, kernel: tf.Tensor, name: str) -> tf.Tensor:
    """Return a convolution of 1 x 1 over (batch, height, width, channels), as a matrix product over pixels."""
    inputs, filters = kernel.shape[2:]
    product = tf.raw_ops.MatMul(a=tf.reshape(images, [-1, inputs]), b=tf.reshape(kernel, [inputs, filters]), name=name)
    return tf.reshape(product, [-1, *images.shape[1:3], filters])


def _compute_op_seed(name: str) -> int:
    return zlib.crc32(name.encode()) | 1  # with two seeds of zero TensorFlow would choose others in each run


def _pad_images(
    images: tf.Tensor, layout: str, padding: str, window: tuple[int, int], stride: int
) -> tuple[tf.Tensor, dict[str, Any]]:
    """Return the images, and the padding arguments of their convolution that select a fast kernel.

    oneDNN has none for the gradients of a convolution that pads explicitly, as TensorFlow 2.21 calls it: those of ResNet-50's
    strided ones took a sixth of the step.
    """
    if padding != "SAME_RESNET":
        return images, {"padding": padding}
    if stride == 1:  # then TensorFlow's padding of odd windows is the same
        return images, {"padding": "SAME"}
    height, width = (compute_padding(padding, size, 0, stride) for size in window)
    if not any((*height, *width)):
        return images, {"padding": "VALID"}
    if layout == "NCHW":  # cuDNN pads as it convolves
        return images, {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 0, 0, *height, *width]}
    return tf.pad(images, [(0, 0), height, width, (0, 0)]), {"padding": "VALID"}
