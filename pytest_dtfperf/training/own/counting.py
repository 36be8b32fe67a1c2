"""Trace the graph of an own model: its classes, its first values, and its multiply-adds as `models/outline.py` counts layers.

An operation that is neither counted nor known to be cheap makes the whole count unknown: too low a count would be worse.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.training.own import describe_error


class CountError(Exception):
    """An error for operations in the graph that are not counted."""


def multiply_adds(result: tf.Tensor) -> int:
    """Count the multiply-adds for one image of all operations that the result needs. Raises `CountError`."""
    return sum(_count_operation(operation) for operation in _iterate_needed(result.op))


def _iterate_needed(result: tf.Operation) -> Iterator[tf.Operation]:
    seen, left = {result.name}, [result]
    while left:
        operation = left.pop()
        yield operation
        for source in (*(each.op for each in operation.inputs), *operation.control_inputs):
            if source.name not in seen:
                seen.add(source.name)
                left.append(source)


def _count_operation(operation: tf.Operation) -> int:
    if count := _COUNTED.get(operation.type):
        return count(operation)
    if operation.type in _LIGHT:
        return 0
    raise CountError(f"its graph has an operation that is not counted, {operation.type}")


def _get_size(operation: tf.Operation, tensor: tf.Tensor) -> int:
    return math.prod(_get_shape(operation, tensor))


def _get_shape(operation: tf.Operation, tensor: tf.Tensor) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise CountError(f"its graph has a {operation.type} of a shape that is not known before it runs")
    found: list[int] = tensor.shape.as_list()
    return found


def _count_conv(operation: tf.Operation) -> int:
    """Count a convolution: each value of the result is a sum over a window and the inputs of its group."""
    filters = _get_shape(operation, operation.inputs[1])
    return _get_size(operation, operation.outputs[0]) * math.prod(filters[:-1])


def _count_conv_transposed(operation: tf.Operation) -> int:
    """Count a convolution's gradient, used as a layer: as many as of that convolution."""
    filters = _get_shape(operation, operation.inputs[1])
    return _get_size(operation, operation.inputs[2]) * math.prod(filters[:-1])


def _count_depthwise(operation: tf.Operation) -> int:
    return _get_size(operation, operation.outputs[0]) * math.prod(_get_shape(operation, operation.inputs[1])[:2])


def _count_product(operation: tf.Operation) -> int:
    left = _get_shape(operation, operation.inputs[0])
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return _get_size(operation, operation.outputs[0]) * left[-2 if transposed else -1]


def _count_einsum(operation: tf.Operation) -> int:
    """Count one multiply-add for each combination of all its indices."""
    equation = operation.get_attr("equation").decode()
    operands, _, _ = equation.partition("->")
    sizes: dict[str, int] = {}
    for labels, operand in zip(operands.split(","), operation.inputs, strict=True):
        if "." in labels:
            raise CountError(f"its graph has an Einsum that is not counted, {equation}")
        sizes |= zip(labels, _get_shape(operation, operand), strict=True)
    return math.prod(sizes.values())


_COUNTED: Mapping[str, Callable[[Any], int]] = {
    "BatchMatMulV2": _count_product,
    "BatchMatMulV3": _count_product,
    "Conv2D": _count_conv,
    "Conv2DBackpropInput": _count_conv_transposed,
    "DepthwiseConv2dNative": _count_depthwise,
    "Einsum": _count_einsum,
    "MatMul": _count_product,
}

# One or two operations for each value, or none.
_LIGHT = frozenset(
    {
        "Abs", "Add", "AddN", "AddV2", "All", "Any", "ArgMax", "AvgPool", "BatchToSpaceND", "BiasAdd", "BroadcastArgs",
        "BroadcastTo", "Cast", "CheckNumerics", "ClipByValue", "Concat", "ConcatV2", "Const", "DepthToSpace", "Div",
        "Elu", "EnsureShape", "Equal", "Erf", "Exp", "ExpandDims", "Fill", "Floor", "FloorDiv", "FloorMod",
        "FusedBatchNormV3", "Gather", "GatherNd", "GatherV2", "Greater", "GreaterEqual", "Identity", "IdentityN",
        "L2Loss", "LRN", "LeakyRelu", "Less", "LessEqual", "Log", "Log1p", "LogSoftmax", "LogicalAnd", "LogicalNot",
        "LogicalOr", "Max", "MaxPool", "Maximum", "Mean", "Min", "Minimum", "MirrorPad", "Mul", "Neg", "NoOp",
        "NotEqual", "OneHot", "OnesLike", "Pack", "Pad", "PadV2", "Placeholder", "PlaceholderWithDefault", "Pow",
        "PreventGradient", "Prod", "RandomStandardNormal", "RandomUniform", "Range", "Rank", "RealDiv", "Reciprocal",
        "Relu", "Relu6", "Reshape", "ResizeBilinear", "ResizeNearestNeighbor", "ReverseV2", "Round", "Rsqrt", "Select",
        "SelectV2", "Selu", "Shape", "ShapeN", "Sigmoid", "Sign", "Size", "Slice", "Softmax", "Softplus", "Softsign",
        "SpaceToBatchND", "SpaceToDepth", "Split", "SplitV", "Sqrt", "Square", "SquaredDifference", "Squeeze",
        "StatelessRandomGetKeyCounter", "StatelessRandomUniformV2", "StopGradient", "StridedSlice", "Sub", "Sum",
        "Tanh", "Tile", "TopKV2", "Transpose", "TruncatedNormal", "Unpack", "Where", "Xdivy", "ZerosLike",
    }
)  # fmt: skip


v1 = tf.compat.v1


class ModelTrace(NamedTuple):
    """The facts of a model that its graph shows."""

    classes: int
    multiply_adds: int | None  # forward, per image
    uncounted: str  # why that is not known
    values: Sequence[Any]  # of what was fetched: numpy arrays


def trace_model(
    name: str,
    image_shape: tuple[int, int, int],
    forward: Callable[[tf.Tensor], Any],
    fetched: Callable[[], Sequence[tf.Tensor]] = lambda: (),
) -> ModelTrace:
    """Return the facts of `forward` for one image, from a graph of its own. Raises `SpecError` if it is no model of images."""
    with tf.Graph().as_default() as graph:
        images = v1.placeholder(tf.float32, (1, *image_shape))
        try:
            logits = find_logits(forward(images))
        except SpecError:
            raise
        except Exception as error:
            raise SpecError(f"{name} cannot be computed within a graph: {describe_error(error)}") from error
        shape = logits.shape.as_list() if logits.shape.rank is not None else None
        if shape is None or len(shape) != 2 or shape[1] is None or shape[0] not in (1, None):
            raise SpecError(f"{name} makes {shape} of an image: it must be (batch, classes), with a fixed number of classes")
        values = []
        if tensors := list(fetched()):
            with v1.Session(graph=graph) as session:
                values = session.run(tensors)
        try:
            return ModelTrace(shape[1], multiply_adds(logits), "", values)
        except CountError as why:
            return ModelTrace(shape[1], None, str(why), values)


def find_logits(out: Any) -> tf.Tensor:
    """Return the input of a final softmax, or else the tensor itself: cross-entropy needs logits."""
    if not isinstance(out, tf.Tensor):
        raise SpecError(f"a model of images returns one tensor, (batch, classes), not a {type(out).__qualname__}")
    last = out
    while last.op.type in ("Identity", "Cast"):
        last = last.op.inputs[0]
    return last.op.inputs[0] if last.op.type == "Softmax" else out


class FirstValue:
    """The first values of a variable that a model has made.

    Eagerly they are a constant. In a graph, a constant would make the graph as large as the values. So they are fetched out of
    this process by an operation on `host`, made by `prepare`: a variable elsewhere colocates whatever is made in its
    initialiser.
    """

    def __init__(self, values: Any, host: str) -> None:
        self._values = values
        self._host = host
        self._prepared: dict[tf.Graph, tf.Tensor] = {}

    def prepare(self) -> None:
        """Add the values to the current graph."""
        graph = v1.get_default_graph()
        if graph not in self._prepared:
            with v1.device(None), v1.device(self._host):
                found = tf.numpy_function(lambda: self._values, [], tf.as_dtype(self._values.dtype))
            found.set_shape(self._values.shape)
            self._prepared[graph] = found

    def __call__(self) -> tf.Tensor:
        if tf.executing_eagerly():
            return tf.constant(self._values)
        return tf.identity(self._prepared[v1.get_default_graph()])  # which may be wherever the variable is
