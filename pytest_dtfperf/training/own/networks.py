"""Make networks from own models: a function of TensorFlow operations, or a Keras 3 model.

The function is called anew for each tower with that tower's variables. The model is computed by `stateless_call`, which takes
all values and returns the changed ones.
"""

import inspect
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.training.models.outline import Outline, Variable
from pytest_dtfperf.training.models.tensors import TensorLayers
from pytest_dtfperf.training.own import describe_error
from pytest_dtfperf.training.own.counting import FirstValue, find_logits, trace_model

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
    def make_from_function(
        cls, spec: Spec, function: Callable[..., Any], shape: tuple[int, int, int], host: str
    ) -> "FunctionNetwork":
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
            return find_logits(
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


def _make_free_name(name: str, existing: list[tuple[str, Any]]) -> str:
    """Return the name without our scope, and with a number if it is taken."""
    name = name.removeprefix("own/").partition(":")[0]
    taken, found, number = {each for each, _ in existing}, name, 0
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    return found


COMPUTES_IN = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
SEEDS = "seed_generator_state"  # Keras' name for the state of a SeedGenerator, such as Dropout's
FIRST_TOWER = "worker:0/0"


class KerasNetwork:
    """A network from a Keras model. It equals only itself: it is made once."""

    def __init__(self, name: str, model: Any, image_shape: tuple[int, int, int], classes: int, outline: Outline) -> None:
        self._name = name
        self._model = model
        self.image_shape = image_shape
        self.classes = classes
        self.outline = outline
        self._states = [each for each in outline.variables if not each.trainable]

    @classmethod
    def make_from_model(cls, spec: Spec, model: Any, image_shape: tuple[int, int, int] | None, host: str) -> "KerasNetwork":
        """Make a network from a model. `image_shape` counts where the model leaves it open. Raises `SpecError`."""
        shape = _find_image_shape(spec, model, image_shape)
        _check_precision(spec, model)
        variables = [*_list_variables(spec, model, host)]
        found = trace_model(spec.model, shape, partial(_compute_logits, model))
        outline = Outline(tuple(variables), {"logits": (found.classes,)}, found.multiply_adds, found.uncounted)
        return cls(spec.model, model, shape, found.classes, outline)

    def logits(self, net: TensorLayers, images: tf.Tensor) -> tf.Tensor:
        trained = [net.variable(each) for each in self.outline.trained]
        kept = [net.state(each) for each in self._states]
        states = [_add_offset(each, kept_as.read_value(), net.tower) for each, kept_as in zip(self._states, kept, strict=True)]
        try:
            out, moved, losses = self._model.stateless_call(
                trained, states, images, **_make_training_argument(self._model, net.training), return_losses=True
            )
        except Exception as error:
            raise SpecError(f"{self._name} cannot be trained within a graph: {describe_error(error)}") from error
        net.penalties += [tf.cast(loss, tf.float32) for loss in losses]
        if net.training:
            for each, kept_as, value in zip(self._states, kept, moved, strict=True):
                net.move(kept_as, _subtract_offset(each, value, net.tower))
        return find_logits(out)


def _find_image_shape(spec: Spec, model: Any, image_shape: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return the shape of the model's images; build the model for one image where it is not built yet."""
    import keras

    if not model.built or not getattr(model, "inputs", None):  # a subclass of keras.Model may have none
        if image_shape is None:
            raise SpecError(
                f"{spec.model} does not define its image shape: begin it with keras.Input((height, width, channels)), or give "
                "what makes it an attribute image_shape"
            )
        try:
            model(keras.Input(image_shape))
        except Exception as error:
            raise SpecError(f"{spec.model} does not take images of {image_shape}: {describe_error(error)}") from error
        return image_shape
    inputs, outputs = list(model.inputs), list(model.outputs)
    if (len(inputs), len(outputs)) != (1, 1):
        raise SpecError(f"{spec.model} has {len(inputs)} inputs and {len(outputs)} outputs: images go in, and logits come out")
    shape = tuple(inputs[0].shape[1:])
    if len(shape) != 3:
        raise SpecError(
            f"{spec.model} looks at inputs of shape {shape}: images are (height, width, channels), which keras.layers.Flatten "
            "or Reshape as its first layer makes anything of"
        )
    if None not in shape:
        return shape
    if image_shape is None or any(own not in (None, other) for own, other in zip(shape, image_shape, strict=True)):
        raise SpecError(f"{spec.model} looks at images of {shape}: give what makes it an attribute image_shape with all three")
    return image_shape


def _check_precision(spec: Spec, model: Any) -> None:
    """Check that some layers compute in the spec's precision, and none in fp16 or bf16 without it."""
    wanted = COMPUTES_IN[spec.precision]
    found = sorted({layer.compute_dtype for layer in _iterate_layers(model) if layer.weights} or {model.compute_dtype})
    if wanted not in found or (wanted == "float32" and len(found) > 1):
        asked = [name for name, dtype in COMPUTES_IN.items() if dtype in found and dtype != "float32"]
        hint = f": set precision={asked[0]}" if asked else ", whatever Keras' dtype policy is"
        raise SpecError(f"{spec.model} has layers that compute in {' and '.join(found)}, precision={spec.precision}{hint}")


def _iterate_layers(model: Any) -> Iterator[Any]:
    """Yield all layers, including nested ones."""
    for layer in model.layers:
        yield layer
        if hasattr(layer, "layers"):
            yield from _iterate_layers(layer)


def _list_variables(spec: Spec, model: Any, host: str) -> Sequence[Variable]:
    """Return the variables in the order in which `stateless_call` takes their values: the trained ones first."""
    found, names = [], set[str]()
    for each in (*model.trainable_variables, *model.non_trainable_variables):
        dtype = str(each.dtype)
        if each.trainable and dtype != "float32":
            raise SpecError(
                f"{spec.model} keeps {each.path} in {dtype}: variables are trained in float32, whatever layers compute in"
            )
        name = each.path.removeprefix(f"{model.name}/")
        while name in names:
            name += "_"
        names.add(name)
        values = np.asarray(each.value.numpy())
        found.append(Variable(name, tuple(each.shape), bool(each.trainable), dtype=dtype, values=FirstValue(values, host)))
    if not any(each.trainable for each in found):
        raise SpecError(f"{spec.model} has no variables to train")
    return found


def _compute_logits(model: Any, images: tf.Tensor) -> tf.Tensor:
    """Return the model's result, with placeholders as its variables."""
    trained, states = (
        [v1.placeholder(str(each.dtype), each.shape) for each in group]
        for group in (model.trainable_variables, model.non_trainable_variables)
    )
    out, _ = model.stateless_call(trained, states, images, **_make_training_argument(model, training=False))
    return out


def _make_training_argument(model: Any, training: bool) -> dict[str, bool]:
    """Return the argument `training` if the model's `call` takes it, as Keras' own training does."""
    return {"training": training} if "training" in inspect.signature(model.call).parameters else {}


def _add_offset(variable: Variable, value: tf.Tensor, tower: str) -> tf.Tensor:
    """Return a random seed of the tower's own, so that each drops other values. The first tower's is the model's."""
    return value + _compute_offset(value, tower) if _is_seed(variable, tower) else value


def _subtract_offset(variable: Variable, value: tf.Tensor, tower: str) -> tf.Tensor:
    return value - _compute_offset(value, tower) if _is_seed(variable, tower) else value


def _is_seed(variable: Variable, tower: str) -> bool:
    return variable.name.endswith(SEEDS) and tower != FIRST_TOWER


def _compute_offset(value: tf.Tensor, tower: str) -> tf.Tensor:
    return tf.cast(tf.constant([zlib.crc32(tower.encode()) >> 2, 0], tf.int64), value.dtype)
