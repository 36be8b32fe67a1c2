"""How much arithmetic a model's graph is, as `models/outline.py` counts layers: multiply-adds of convolutions and products.

An operation that is neither counted nor known to be light leaves the whole unknown: a number that is too low is worse.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf


class Uncounted(Exception):
    """What is in the graph that nobody counts."""


def multiply_adds(result: tf.Tensor) -> int:
    """Of all that the result needs, computed for one image. Raises `Uncounted`."""
    return sum(_of(operation) for operation in _needed(result.op))


def _needed(result: tf.Operation) -> Iterator[tf.Operation]:
    seen, left = {result.name}, [result]
    while left:
        operation = left.pop()
        yield operation
        for source in (*(each.op for each in operation.inputs), *operation.control_inputs):
            if source.name not in seen:
                seen.add(source.name)
                left.append(source)


def _of(operation: tf.Operation) -> int:
    if count := _COUNTED.get(operation.type):
        return count(operation)
    if operation.type in _LIGHT:
        return 0
    raise Uncounted(f"its graph has an operation that is not counted, {operation.type}")


def _size(operation: tf.Operation, tensor: tf.Tensor) -> int:
    return math.prod(_shape(operation, tensor))


def _shape(operation: tf.Operation, tensor: tf.Tensor) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise Uncounted(f"its graph has a {operation.type} of a shape that is not known before it runs")
    found: list[int] = tensor.shape.as_list()
    return found


def _conv(operation: tf.Operation) -> int:
    """Each value of the result is a sum over a window and the inputs of its group."""
    filters = _shape(operation, operation.inputs[1])
    return _size(operation, operation.outputs[0]) * math.prod(filters[:-1])


def _conv_transposed(operation: tf.Operation) -> int:
    """The gradient of a convolution, as a layer: as much as that convolution."""
    filters = _shape(operation, operation.inputs[1])
    return _size(operation, operation.inputs[2]) * math.prod(filters[:-1])


def _depthwise(operation: tf.Operation) -> int:
    return _size(operation, operation.outputs[0]) * math.prod(_shape(operation, operation.inputs[1])[:2])


def _product(operation: tf.Operation) -> int:
    left = _shape(operation, operation.inputs[0])
    transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
    return _size(operation, operation.outputs[0]) * left[-2 if transposed else -1]


def _einsum(operation: tf.Operation) -> int:
    """One multiply-add for each combination of all its indices."""
    equation = operation.get_attr("equation").decode()
    operands, _, _ = equation.partition("->")
    sizes: dict[str, int] = {}
    for labels, operand in zip(operands.split(","), operation.inputs, strict=True):
        if "." in labels:
            raise Uncounted(f"its graph has an Einsum that is not counted, {equation}")
        sizes |= zip(labels, _shape(operation, operand), strict=True)
    return math.prod(sizes.values())


_COUNTED: Mapping[str, Callable[[Any], int]] = {
    "BatchMatMulV2": _product,
    "BatchMatMulV3": _product,
    "Conv2D": _conv,
    "Conv2DBackpropInput": _conv_transposed,
    "DepthwiseConv2dNative": _depthwise,
    "Einsum": _einsum,
    "MatMul": _product,
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
