"""Build one replica of the network on one device: its loss and its gradients, those of the weights first.

The gradients of a layer's weights are computed before those of its inputs. Both need the same tensor, and TensorFlow computes
them side by side. Where several towers share the cores of a CPU, each then finds its data in the caches: AlexNet on two logical
devices of two cores trains 1.1 times as fast, deeper networks as fast as before. This does not apply to towers with threads of
their own: with a single thread, TensorFlow would send weights' gradients only when all of them are there.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import NamedTuple, Protocol

import tensorflow as tf

from pytest_dtfperf.spec import TaskOrder
from pytest_dtfperf.training.evaluation import EvaluationTensors, build_evaluation
from pytest_dtfperf.training.inputs import TrainingInput
from pytest_dtfperf.training.models import Network
from pytest_dtfperf.training.models.outline import OutlinedNetwork, compute_outline
from pytest_dtfperf.training.models.tensors import (
    DTYPES,
    Average,
    PackedAverages,
    TensorLayers,
    join_parts,
    make_first_value,
    parts_in,
)
from pytest_dtfperf.training.optimizers import make_loss_scale

v1 = tf.compat.v1

_GRADIENTS = {"Conv2D": "DtfperfWeightsFirstConv2D", "MatMul": "DtfperfWeightsFirstMatMul"}


@contextmanager
def weights_first() -> Iterator[None]:
    """Within the context, compute gradients of weights first for new convolutions and matrix products of the current graph.

    Weights are their second operand.
    """
    with v1.get_default_graph().gradient_override_map(_GRADIENTS):
        yield


@tf.RegisterGradient(_GRADIENTS["Conv2D"])  # type: ignore[untyped-decorator]  # TensorFlow has no types
def _compute_conv2d_gradients(op: tf.Operation, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    images, weights = op.inputs
    same = {name: op.get_attr(name) for name in ("strides", "explicit_paddings", "dilations")}
    same |= {name: op.get_attr(name).decode() for name in ("padding", "data_format")} | {"out_backprop": gradient}
    sizes, filter_sizes = tf.shape(images), tf.shape(weights)
    of_weights = tf.raw_ops.Conv2DBackpropFilter(input=images, filter_sizes=filter_sizes, **same)
    with v1.control_dependencies([of_weights]):
        of_images = tf.raw_ops.Conv2DBackpropInput(input_sizes=sizes, filter=weights, **same)
    return of_images, of_weights


@tf.RegisterGradient(_GRADIENTS["MatMul"])  # type: ignore[untyped-decorator]  # TensorFlow has no types
def _compute_matmul_gradients(op: tf.Operation, gradient: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    vectors, weights = op.inputs
    of_weights = tf.raw_ops.MatMul(a=vectors, b=gradient, transpose_a=True)
    with v1.control_dependencies([of_weights]):
        of_vectors = tf.raw_ops.MatMul(a=gradient, b=weights, transpose_b=True)
    return of_vectors, of_weights


class Pass(NamedTuple):
    """The results of a batch on a tower."""

    loss: tf.Tensor  # cross-entropy, float32
    gradients: dict[str, tf.Tensor]  # by variable, float32
    updates: list[tf.Operation]  # of the moving averages: to run once per step
    computed: list[tf.Tensor]  # their devices are those on which the tower computes


class TowerVariables(Protocol):
    """The source of the values that a tower computes with: an `UpdateStrategy`, or the variables of a strategy."""

    def variable(self, tower: int, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        """Return a variable's value, as `UpdateStrategy.variable` does."""


class Tower:
    """One replica of the network, made on its device.

    `number` is its index among the towers of this task's graph, `local` that among the towers of its worker.
    """

    def __init__(
        self,
        order: TaskOrder,
        network: Network,
        feed: TrainingInput,
        update: TowerVariables,
        *,
        number: int,
        local: int,
        device: str,
        average: Average | None = None,
    ) -> None:
        self._order = order
        self._network = network
        self.feed = feed
        self._update = update
        self._number = number
        self._device = device
        self._values: dict[str, tf.Tensor] = {}
        self._average = average or PackedAverages(compute_outline(network), _get_host(device))
        self._scale = make_loss_scale(order)
        for values in (
            variable.values for variable in compute_outline(network).variables if variable.values and average is None
        ):
            values.prepare()
        with v1.device(device), v1.name_scope(f"tower{number}"):
            images, labels = feed.batch(local)
            done = (self._compile_pass if order.spec.xla_compile else self._pass)(images, labels)
        self.loss = done.loss
        self.gradients = done.gradients
        self.updates = done.updates
        self.computed = done.computed

    def _pass(self, images: tf.Tensor, labels: tf.Tensor) -> "Pass":
        """Compute the forward pass, and the backward pass unless the spec is `forward_only`."""
        forward_only = self._order.spec.forward_only
        net = self._layers(training=not forward_only)
        with weights_first() if self._shares_cores and not isinstance(self._network, OutlinedNetwork) else nullcontext():
            logits = net.compute_logits(self._network, images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)  # (batch,), float32
        loss = tf.reduce_mean(losses)
        if forward_only:
            return Pass(loss, {}, [], [losses])
        gradients = self._gradients(tf.add_n([loss, *net.penalties]) if net.penalties else loss)
        computed = [_undo_cast(part) for gradient in gradients.values() for part in parts_in(gradient)]
        return Pass(loss, gradients, net.updates, computed)

    @property
    def _shares_cores(self) -> bool:
        """Return whether other towers of the worker compute on the same cores."""
        return self._order.device == "cpu" and self._order.num_devices > 1

    def _gradients(self, loss: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return gradients by the parts of values, so that each is known when it is computed."""
        parts = {name: parts_in(value) for name, value in self._values.items()}
        values = [part for theirs in parts.values() for part in theirs]
        found = _make_dense(tf.gradients(self._scale.scale_loss(loss) if self._scale else loss, values), values)
        if self._scale:
            found = self._scale.unscale_gradients(found)
        each = iter(found)
        return {name: join_parts([next(each) for _ in theirs]) for name, theirs in parts.items()}

    def _compile_pass(self, images: tf.Tensor, labels: tf.Tensor) -> "Pass":
        """Return the whole pass as one function that XLA compiles; the moving averages move within it."""
        self._make_variables()

        @tf.function(jit_compile=True, autograph=False)  # type: ignore[untyped-decorator]  # TensorFlow has no types
        def run_pass(images: tf.Tensor, labels: tf.Tensor) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
            done = self._pass(images, labels)
            return done.loss, done.gradients

        loss, gradients = run_pass(images, labels)
        return Pass(loss, gradients, [], [loss, *gradients.values()])

    def _make_variables(self) -> None:
        """Make all variables of the network: within a compiled function, none can be made."""
        for variable in compute_outline(self._network).variables:
            if variable.trainable:
                first = partial(make_first_value, variable, self._order.spec.seed)
                self._variable(variable.name, variable.shape, first)
            else:
                self._average(variable.name, variable.size, variable.start)

    def _layers(self, *, training: bool) -> TensorLayers:
        spec = self._order.spec
        return TensorLayers(
            self._variable,
            self._average,
            data_format=spec.data_format,
            seed=spec.seed,
            tower=f"{self._order.name}/{self._number}",
            training=training,
            device=self._order.device,
            dtype=DTYPES[spec.precision],
        )

    def _variable(self, name: str, shape: Sequence[int], initial: Callable[[], tf.Tensor]) -> tf.Tensor:
        if name not in self._values:
            self._values[name] = self._update.variable(self._number, name, shape, initial)
        return self._values[name]

    @property
    def values(self) -> Sequence[tf.Tensor]:
        """Return the values of all variables, with which this tower computes."""
        return list(self._values.values())

    def evaluate(self) -> EvaluationTensors:
        """Return an evaluation with the same variables, without dropout and with batch norm's moving averages."""
        test_set = self.feed.test_set()
        with v1.device(self._device), v1.name_scope("evaluation"):
            logits = self._layers(training=False).compute_logits(self._network, test_set.images)
            return build_evaluation(self._order.spec, logits, test_set, self._values)


def _get_host(device: str) -> str:
    """Return the CPU beside a device."""
    return str(tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string())


def _make_dense(gradients: Sequence[tf.Tensor | tf.IndexedSlices | None], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return gradients as tensors in the values' shapes.

    Those of an own model's embeddings are slices, and those of variables that it does not use are None.
    """
    return [
        tf.zeros_like(value) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, value in zip(gradients, values, strict=True)
    ]


def _undo_cast(gradient: tf.Tensor) -> tf.Tensor:
    """Return the gradient as it was computed, for example in bf16.

    TensorFlow may move the cast to wherever it is cheaper, under another name.
    """
    return gradient.op.inputs[0] if gradient.op.type == "Cast" else gradient
