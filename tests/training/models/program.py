"""Computes properties of networks with TensorFlow: a program of its own, for the tests.

Each line on stdin is a request, [kind, arguments]; each line on stdout is its answer. Layers run eagerly, because to build and
optimise a graph takes longer than the few steps of a request.
"""

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np
import tensorflow as tf

from pytest_dtfperf.spec import Spec, TaskOrder
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.models import Network, make_default_network, make_network
from pytest_dtfperf.training.models.tensors import TensorLayers, join_parts, parts_in, product_by_parts
from pytest_dtfperf.training.replica import build
from pytest_dtfperf.training.step_timestamps import list_fetches
from pytest_dtfperf.training.tower import weights_first

v1 = tf.compat.v1

DTYPES = {"fp32": tf.float32, "fp16": tf.float16, "bf16": tf.bfloat16}
BATCH = 4


class Trainee:
    """A network with its variables, a batch of noise, and labels."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.values: dict[str, tf.Variable] = {}
        self.averages: dict[str, tf.Variable] = {}
        drawn = np.random.default_rng(1)
        self._images = drawn.uniform(-1, 1, (BATCH, *network.image_shape)).astype(np.float32)
        self._labels = drawn.integers(network.classes, size=BATCH)

    def forward(
        self, *, data_format: str = "NHWC", precision: str = "fp32", device: str = "cpu"
    ) -> tuple[TensorLayers, tf.Tensor, tf.Tensor]:
        """Return the layers, the logits and the loss. Dropout is the same in each call."""
        tf.random.set_seed(1)  # operations with a seed of their own go on with their numbers, unless this begins them anew
        images = self._images if data_format == "NHWC" else np.transpose(self._images, [0, 3, 1, 2])
        net = TensorLayers(
            self._value, self._average, data_format=data_format, seed=1234, device=device, dtype=DTYPES[precision]
        )
        logits = net.compute_logits(self._network, tf.constant(images))
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self._labels, logits=logits))
        return net, logits, loss

    def outputs(self, **how: str) -> tuple[TensorLayers, tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        """The same, and the gradients."""
        with tf.GradientTape() as tape:
            net, logits, loss = self.forward(**how)
        return net, logits, loss, tape.gradient(loss, list(self.values.values()))

    def learn(self, gradients: Sequence[tf.Tensor], rate: float) -> None:
        for variable, gradient in zip(self.values.values(), gradients, strict=True):
            variable.assign_sub(rate * gradient)

    def _value(self, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self.values:
            self.values[name] = tf.Variable(initial())
        return self.values[name].read_value()

    def _average(self, name: str, channels: int, start: float) -> tf.Variable:
        return self.averages.setdefault(name, tf.Variable(tf.fill([channels], start)))


def train(model: str, size: Mapping[str, Any], steps: int, rate: float) -> dict[str, Any]:
    """The losses before and after so many steps, and what there was to see at first."""
    trainee = Trainee(make_network(model, **_make_tuples(size)))
    net, logits, loss, gradients = trainee.outputs()
    seen = {
        "variables": [[name, list(value.shape)] for name, value in trainee.values.items()],
        "averages": [[name, list(value.shape)] for name, value in trainee.averages.items()],
        "stages": {name: list(x.shape[1:]) for name, x in net.stages.items()},
        "idle": [name for name, g in zip(trainee.values, gradients, strict=True) if not np.any(g)],
        "variance": float(tf.reduce_mean(tf.math.reduce_variance(logits, 1))),
    }
    for _ in range(steps - 1):
        trainee.learn(gradients, rate)
        *_, gradients = trainee.outputs()
    trainee.learn(gradients, rate)
    return {**seen, "losses": [float(loss), float(trainee.forward()[2])]}


def compare(model: str, size: Mapping[str, Any], other: Mapping[str, str]) -> dict[str, Any]:
    """Outputs in NHWC and fp32, and another one at the same variables: both losses, and how far gradients agree."""
    trainee = Trainee(make_network(model, **_make_tuples(size)))
    _, _, loss, gradients = trainee.outputs()
    _, _, other_loss, others = trainee.outputs(**other)
    plain, different = (np.concatenate([np.ravel(g) for g in found]) for found in (gradients, others))
    return {
        "losses": [float(loss), float(other_loss)],
        "cosine": float(plain @ different / np.sqrt((plain @ plain) * (different @ different))),
        "farthest": float(np.max(np.abs(plain - different)) / np.max(np.abs(plain))),
        "dtypes": sorted({g.dtype.name for g in others}),
    }


@cache
def graph(model: str, device: str = "gpu") -> dict[str, Any]:
    """Return properties of a model's graph at its own size, forward, for one image, with the layers for such a device."""
    network = make_default_network(model)
    with tf.Graph().as_default() as built:
        net = TensorLayers(
            lambda name, shape, initial: v1.placeholder(tf.float32, shape),
            lambda name, channels, start: v1.Variable(tf.fill([channels], start), use_resource=True),
            data_format="NHWC",
            seed=1234,
            training=False,
            device=device,
        )
        net.compute_logits(network, v1.placeholder(tf.float32, (1, *network.image_shape)))
        options = v1.profiler.ProfileOptionBuilder.float_operation()
        options["output"] = "none"
        profile = v1.profiler.profile(built, cmd="op", options=options)
    operations = {node.name: node.float_ops for node in _list_nodes(profile)}
    convolutions = [op for op in built.get_operations() if op.type == "Conv2D"]
    return {
        "multiply_adds": (operations.get("Conv2D", 0) + operations.get("MatMul", 0)) / 2,
        "stages": {name: list(x.shape[1:]) for name, x in net.stages.items()},
        "explicit": [op.name for op in convolutions if op.get_attr("padding") == b"EXPLICIT"],
        "pointwise": sum(_is_pointwise(op) for op in convolutions),
        "products": sum(op.type == "MatMul" for op in built.get_operations()),
    }


def _is_pointwise(convolution: tf.Operation) -> bool:
    window, strides = convolution.inputs[1].shape[:2], convolution.get_attr("strides")
    return list(window) == [1, 1] and set(strides) == {1}


def order() -> dict[str, Any]:
    """Gradients of two convolutions and a matrix product, ours and TensorFlow's own, and which of ours must wait for which."""
    drawn = np.random.default_rng(3)
    values = [drawn.normal(size=shape) for shape in ((2, 9, 9, 3), (3, 3, 3, 4), (2, 1, 4, 5), (25, 6))]
    found: dict[str, Any] = {"gradients": {}}
    for whose, ordered in (("ours", weights_first), ("theirs", nullcontext)):
        with tf.Graph().as_default() as built, v1.Session() as session:
            x, *weights = (tf.constant(value, tf.float32) for value in values)
            with ordered():
                y = tf.raw_ops.Conv2D(input=x, filter=weights[0], strides=[1, 2, 2, 1], padding="SAME")
                above = {"padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 0, 0, 0, 0]}
                y = tf.raw_ops.Conv2D(input=y, filter=weights[1], strides=[1, 1, 1, 1], **above)
                y = tf.raw_ops.MatMul(a=tf.reshape(y, [-1, 25]), b=weights[2])
            gradients = tf.gradients(tf.reduce_sum(y**3), [x, *weights])
            found["gradients"][whose] = [each.tolist() for each in session.run(gradients)]
        found[whose] = [
            [op.type, *(before.type for before in op.control_inputs)]
            for op in built.get_operations()
            if op.type == "Conv2DBackpropInput" or (op.type == "MatMul" and op.get_attr("transpose_b"))
        ]
    return found


def products(precision: str) -> dict[str, Any]:
    """Vectors times a matrix in parts, once as these and once as the one that they are joined to; with the gradients."""
    drawn = np.random.default_rng(4)
    rows = (7, 1, 24)
    values = [drawn.normal(size=shape) for shape in ((3, sum(rows)), *((each, 5) for each in rows))]
    found = {}
    with tf.Graph().as_default(), v1.Session() as session:
        vectors, *parts = (tf.constant(value, DTYPES[precision]) for value in values)
        matrix = join_parts(parts)
        assert parts_in(matrix) == parts
        for how, factors in (("parts", parts), ("whole", [matrix])):
            y = product_by_parts(vectors, factors)
            seen = [y, *tf.gradients(tf.cast(y, tf.float32) ** 2, [vectors, *parts])]
            found[how] = [each.tolist() for each in session.run([tf.cast(tensor, tf.float32) for tensor in seen])]
    return found


def step(placement: str, between_hosts: bool, timestamped: bool, **changes: Any) -> dict[str, Any]:
    """Count the tensors that a worker's step on "mnist" computes with the width of its largest matrix, by their rows."""
    spec = Spec(model="mnist", batch_size=1, gpus=2, num_ps=2, variable_placement=placement, **changes)
    tasks = {job: [f"{job}{i}" for i in range(2)] for job in ("ps", "worker")}
    cluster = {job: tuple(f"{task if between_hosts else 'here'}:{task[-1]}" for task in tasks[job]) for job in tasks}
    order = TaskOrder(run="x", job="worker", index=0, spec=spec, cluster=cluster, timestamped=(timestamped,))
    with tf.Graph().as_default():
        replica = build(order, get_devices(order))
    assert replica.loss is not None
    front = [replica.loss.op, *replica.updates, *(tensor.op for tensor in list_fetches(replica.timestamps))]
    seen: set[tf.Operation] = set()
    while front:
        if (op := front.pop()) not in seen:
            seen.add(op)
            front += [*(tensor.op for tensor in op.inputs), *op.control_inputs]
    shapes = [tensor.shape for op in seen for tensor in op.outputs if tensor.shape.rank == 2]
    return dict(Counter(str(shape[0]) for shape in shapes if shape[1] == 1024))


def keras(application: str) -> dict[str, Any]:
    """A network of keras.applications at 1000 classes."""
    model = getattr(tf.keras.applications, application)(weights=None)
    layers = [layer for layer in model.layers if hasattr(layer, "kernel")]
    convolutions = [layer for layer in layers if len(layer.kernel.shape) == 4]
    return {
        "parameters": model.count_params(),
        "weights": sum(int(np.prod(layer.kernel.shape)) for layer in layers),
        "biases": sum(layer.kernel.shape[-1] for layer in convolutions if layer.use_bias),
        "multiply_adds": sum(int(np.prod(layer.kernel.shape) * np.prod(layer.output.shape[1:-1])) for layer in layers),
        "shapes": {layer.name: list(layer.output.shape[1:]) for layer in model.layers if layer.name.startswith("mixed")},
    }


def _list_nodes(node: Any) -> list[Any]:
    return [node, *(found for child in node.children for found in _list_nodes(child))]


def _make_tuples(size: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in size.items()}


QUESTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "train": train,
    "compare": compare,
    "graph": graph,
    "order": order,
    "products": products,
    "step": step,
    "keras": keras,
}

if __name__ == "__main__":
    for line in sys.stdin:
        kind, arguments = json.loads(line)
        try:
            answer = QUESTIONS[kind](**arguments)
        except Exception:  # the test of this request fails
            answer = {"failed": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
