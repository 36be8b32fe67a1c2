"""Define the layers of networks. Needs no TensorFlow: `tensors` computes with these layers, `outline` counts them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")  # the values between layers: tensors, or their shapes

BATCH_NORM = "batch_norm"  # the prefix of its variables' names

# The standard deviation that weights of a shape start with: (height, width, inputs, outputs), or (inputs, outputs). They are
# drawn from a normal distribution that is cut off at two deviations.
Deviation = Callable[[Sequence[int]], float]


def deviation(value: float) -> Deviation:
    """Return the same deviation for every shape."""
    return lambda shape: value


def by_inputs(shape: Sequence[int]) -> float:
    """Return the deviation that keeps the variance through a linear layer: tf_cnn_benchmarks' choice for logits."""
    return math.sqrt(1.0 / math.prod(shape[:-1]))


def by_inputs_of_relu(shape: Sequence[int]) -> float:
    """Return the deviation that also makes up for the half that a ReLU removes (He et al., arXiv 1502.01852)."""
    return math.sqrt(2.0 / math.prod(shape[:-1]))


def by_inputs_exactly(shape: Sequence[int]) -> float:
    """Return `by_inputs` before a cut-off that leaves 0.8796 of it: TensorFlow's default, variance scaling."""
    return by_inputs(shape) / 0.87962566103423978


def by_outputs_of_relu(shape: Sequence[int]) -> float:
    """Return the deviation of `by_inputs_of_relu` for the variance of gradients in the backward pass."""
    return math.sqrt(2.0 / (math.prod(shape[:-2]) * shape[-1]))


@dataclass(frozen=True)
class BatchNorm:
    """The settings of batch norm."""

    decay: float  # of its moving averages
    epsilon: float  # added to its variances
    scale: bool  # learnt beside the offset; before a ReLU and further weights, the offset alone can do as much


def has_weight_decay(variable: str) -> bool:
    """Return whether weight decay applies to the variable of this name: to all except batch norm's, as in tf_cnn_benchmarks."""
    return not variable.startswith(BATCH_NORM)


class Layers(Protocol[T]):
    """The layers of one tower. They name their variables by kind and number, in the order of the calls."""

    def conv(
        self,
        images: T,
        filters: int,
        height: int,
        width: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        weights: Deviation = by_inputs_exactly,
        bias: float | None = None,
    ) -> T:
        """Convolve, without an activation. A bias is added where it has a first value. `padding`: see `compute_padding`."""

    def batch_norm(self, images: T, settings: BatchNorm) -> T:
        """Normalise over batch and space."""

    def lrn(self, images: T, *, radius: int, bias: float, alpha: float, beta: float) -> T:
        """Normalise the local response over 2 x `radius` + 1 channels (Krizhevsky et al., 2012)."""

    def relu(self, x: T) -> T: ...

    def add(self, one: T, other: T) -> T: ...

    def max_pool(self, images: T, size: int, *, stride: int, padding: str = "VALID") -> T: ...

    def avg_pool(self, images: T, size: int, *, stride: int, padding: str = "VALID") -> T:
        """Pool averages; padding outside of the image does not count."""

    def mean(self, images: T) -> T:
        """Return the mean over space: (batch, channels)."""

    def concat(self, branches: Sequence[T]) -> T:
        """Concatenate branches along the channels."""

    def widen(self, images: T, by: int) -> T:
        """Add `by` channels of zeros: half of them before, half after the others. `by` is even."""

    def flatten(self, images: T) -> T:
        """Return (batch, height x width x channels), in this order in all data formats.

        So the layers behind it have the same weights in all of them.
        """

    def dense(self, vectors: T, units: int, *, weights: Deviation = by_inputs, bias: float = 0.0) -> T:
        """Return (batch, units), without an activation."""

    def dropout(self, vectors: T, rate: float) -> T:
        """Set `rate` of the values to zero in training, and scale up the others accordingly."""

    def stage(self, name: str, x: T) -> T:
        """Note the tensor under a name, and return it unchanged."""


def compute_padding(padding: str, size: int, height_or_width: int, stride: int) -> tuple[int, int]:
    """Return the pixels added before and after: "VALID" none; "SAME" so that the result is ceil(pixels / stride) large.

    "SAME_RESNET", tf_cnn_benchmarks' name, adds the same before and after, whatever the stride, as ResNet's authors do.
    """
    if padding == "VALID":
        return 0, 0
    if padding == "SAME_RESNET":
        return (size - 1) // 2, size - 1 - (size - 1) // 2
    missing = max((math.ceil(height_or_width / stride) - 1) * stride + size - height_or_width, 0)
    return missing // 2, missing - missing // 2
