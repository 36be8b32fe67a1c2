"""Make a network from a function of TensorFlow operations, called anew for each tower with that tower's variables."""

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.models.outline import Outline, Variable
from pytest_dtfperf.training.models.tensors import TensorLayers
from pytest_dtfperf.training.own import describe_error
from pytest_dtfperf.training.own.counting import FirstValue, logits_of, trace_model

v1 = tf.compat.v1


class FunctionNetwork:
    """A network from a function. It equals only itself: it is made once."""

    def __init__(
        self, name: str, function: Callable[..., Any], image_shape: tuple[int, int, int], classes: int, outline: Outline
    ) -> None:
        self._name = name
        self._function = function
        self.image_shape = image_shape
        self.classes = classes
        self.outline = outline

    @classmethod
    def of(cls, spec: Spec, function: Callable[..., Any], shape: tuple[int, int, int], host: str) -> "FunctionNetwork":
        """Make the network of a function. Raises `SpecError`."""
        made: list[tuple[str, Any]] = []

        def record_variable(_: Any, **wanted: Any) -> tf.Tensor:
            if wanted.get("trainable") is False:
                raise SpecError(
                    f"{spec.model} makes a variable that is not trained, {wanted.get('name')!r}: a function has none that it "
                    "could move. Return a Keras model from a function without arguments for batch normalisation and its like"
                )
            first = wanted["initial_value"]
            value = tf.convert_to_tensor(first() if callable(first) else first, dtype=wanted.get("dtype"))
            if value.dtype != tf.float32 or not value.shape.is_fully_defined():
                raise SpecError(
                    f"{spec.model} makes a variable of {value.dtype.name} and shape {value.shape}, {wanted.get('name')!r}: "
                    "they are trained in float32, in a shape that is known"
                )
            made.append((_make_free_name(wanted.get("name") or "variable", made), value))
            return tf.identity(value)

        def forward(images: tf.Tensor) -> tf.Tensor:
            v1.set_random_seed(spec.seed)
            return _call_function(function, images, training=False, creator=record_variable)

        found = trace_model(spec.model, shape, forward, fetched=lambda: [value for _, value in made])
        if not made:
            raise SpecError(
                f"{spec.model} makes no variables by tf.Variable or tf.compat.v1.get_variable: there is nothing to train"
            )
        variables = [
            Variable(name, tuple(values.shape), values=FirstValue(values, host))
            for (name, _), values in zip(made, found.values, strict=True)
        ]
        outline = Outline(tuple(variables), {"logits": (found.classes,)}, found.multiply_adds, found.uncounted)
        return cls(spec.model, function, shape, found.classes, outline)

    def logits(self, net: TensorLayers, images: tf.Tensor) -> tf.Tensor:
        left = iter(self.outline.variables)
        is_ours = False

        def value() -> tf.Tensor:
            nonlocal is_ours
            is_ours = True
            try:
                return tf.cast(net.variable(next(left)), images.dtype)
            finally:
                is_ours = False

        def create_variable(create: Any, **wanted: Any) -> Any:
            """Create one of the mode's variables as usual, and return its value instead of the model's own variable."""
            return create(**wanted) if is_ours else value()

        known: dict[str, tf.Tensor] = {}

        def get_value(*_: Any, name: str, **__: Any) -> tf.Tensor:
            if name not in known:  # else the variable is reused
                known[name] = value()
            return known[name]

        try:
            return logits_of(
                _call_function(self._function, images, training=net.training, creator=create_variable, getter=get_value)
            )
        except Exception as error:
            raise SpecError(f"{self._name} cannot be trained within a graph: {describe_error(error)}") from error


def _call_function(
    function: Callable[..., Any],
    images: tf.Tensor,
    *,
    training: bool,
    creator: Callable[..., Any],
    getter: Callable[..., Any] | None = None,
) -> Any:
    """Call the function in a variable scope of its own. `getter` answers `get_variable`, and `creator` makes variables."""
    arguments = {"training": training} if "training" in inspect.signature(function).parameters else {}
    with v1.variable_scope(None, default_name="own", custom_getter=getter), tf.variable_creator_scope(creator):
        return function(images, **arguments)


def _make_free_name(name: str, made: list[tuple[str, Any]]) -> str:
    """Return the name without our scope, and with a number if it is taken."""
    name = name.removeprefix("own/").partition(":")[0]
    taken, found, number = {each for each, _ in made}, name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found
