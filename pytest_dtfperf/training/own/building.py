"""Build a network from the name of an own model, in the task that trains it.

It is made once, in a thread of its own: there TensorFlow is eager in any case, no strategy captures new variables, and Keras'
settings apply to no other thread. Only the first values and the arithmetic of this model are used. Its own variables are never
trained: each tower replaces them by those of the mode.
"""

import importlib.util
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import tensorflow as tf

from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import Spec, TaskOrder, VariableUpdate, tables
from pytest_dtfperf.spec.tables import OwnModel
from pytest_dtfperf.training import own
from pytest_dtfperf.training.devices import get_devices
from pytest_dtfperf.training.models import (
    Network,
    Size,
    call_with_size,
    get_network,
    keep_model,
    parse_image_shape,
    set_builder,
)
from pytest_dtfperf.training.own import SentCode, describe_error
from pytest_dtfperf.training.own.networks import FunctionNetwork, KerasNetwork
from pytest_dtfperf.training.strategies.base import set_up

SIZE = {"image_shape", "classes"}  # the parameters that a function or class which makes a model may have
POLICIES = {"fp32": "float32", "fp16": "mixed_float16", "bf16": "mixed_bfloat16"}  # Keras' names: variables stay float32


def register_own_model(order: TaskOrder) -> None:
    """Register the order's own model in this process, if it has one."""
    if order.own is None:
        return
    tables.add_own_model(order.own)
    if order.own.packed:
        SentCode(order.own.sources).install()
    set_builder(_Builder(order))


def is_missing(model: OwnModel) -> bool:
    """Return whether the model belongs to a package that is not installed on this host."""
    return not model.packed and importlib.util.find_spec(model.module.partition(".")[0]) is None


class _Builder:
    """A builder that makes each network of a task once."""

    def __init__(self, order: TaskOrder) -> None:
        self._order = order
        # TensorFlow's own strategies have set up the eager runtime before: they compute with it.
        self._is_set_up = order.spec.mode.engine != VariableUpdate.engine
        self._known: dict[tuple[object, ...], Network] = {}

    def __call__(self, spec: Spec, size: Size) -> Network:
        key = (spec.model, spec.precision, *sorted(size.items()))
        if key not in self._known:
            with ThreadPoolExecutor(1) as apart:
                self._known[key] = apart.submit(self._build_network, spec, size).result()
        return self._known[key]

    def _build_network(self, spec: Spec, size: Size) -> Network:
        if spec.own_model == tables.LAYERS:
            keep_model(spec.model, _import_model(spec))
            return get_network(spec)
        if not self._is_set_up:
            set_up(self._order, computes=False)
            self._is_set_up = True
        with tf.device("/CPU:0"):
            return self._build_from_tensors(spec, size)

    def _build_from_tensors(self, spec: Spec, size: Size) -> Network:
        own.check_keras_backend(spec.model)
        import keras

        keras.utils.set_random_seed(spec.seed)
        keras.config.set_dtype_policy(POLICIES[spec.precision])
        host = get_devices(self._order).host
        model = _import_model(spec)
        if not isinstance(model, keras.Model) and _is_function_of_images(model):
            return _build_from_function(spec, model, size, host)
        return _as_network(
            KerasNetwork.make_from_model(
                spec, _make_keras_model(spec, model, size), get_requested_shape(spec, model, size), host
            )
        )


def _import_model(spec: Spec) -> Any:
    found = tables.find_own_model(spec.model)
    assert found
    first, _, rest = found.attribute.partition(".")
    try:
        model: Any = load(f"{found.module}:{first}")
        for part in filter(None, rest.split(".")):
            model = getattr(model, part)
    except ModuleNotFoundError as error:
        raise SpecError(
            f"{spec.model} is in a module that needs {error.name}, which this host's Python has not: put the model into a "
            "module without it, or install it there, too (setup in clusters.toml)"
        ) from error
    except Exception as error:
        raise SpecError(f"{spec.model} cannot be imported on this host: {describe_error(error)}") from error
    return model


def _is_function_of_images(model: Any) -> bool:
    """Return whether a callable is a function of images, and not one that makes a model."""
    if isinstance(model, type):
        return False
    parameters = inspect.signature(model).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [each.name for each in parameters if each.kind in positional and each.default is inspect.Parameter.empty]
    return not {*wanted} <= SIZE


def get_requested_shape(spec: Spec, model: Any, size: Size) -> tuple[int, int, int] | None:
    """Return the image shape of the model's input, or else of its own attribute. Raises `SpecError`."""
    found = size.get("image_shape") or getattr(model, "image_shape", None)
    return None if found is None else parse_image_shape(spec.model, found)


def _make_keras_model(spec: Spec, model: Any, size: Size) -> Any:
    import keras

    if isinstance(model, keras.Model):
        return model
    try:
        found = call_with_size(model, size)
    except Exception as error:
        raise SpecError(f"{spec.model} makes no model: {describe_error(error)}") from error
    if not isinstance(found, keras.Model):
        raise SpecError(
            f"{spec.model} makes a {type(found).__module__}.{type(found).__qualname__}, where it must make a keras.Model of "
            "Keras 3, or be a function from images to logits"
        )
    return found


def _build_from_function(spec: Spec, function: Callable[..., Any], size: Size, host: str) -> Network:
    """Make a network from a function: a Keras model if it has only Keras layers; else it is called anew for each tower."""
    shape = get_requested_shape(spec, function, size)
    if shape is None:
        name = spec.model.rpartition(".")[2]  # a callable object may have no __name__
        raise SpecError(f"{spec.model} does not define its image shape: set {name}.image_shape = (height, width, channels)")
    try:
        model = _build_from_layers(function, shape)
    except Exception as of_layers:  # TensorFlow's operations do not take Keras' symbolic tensors
        try:
            return _as_network(FunctionNetwork.make_from_function(spec, function, shape, host))
        except SpecError as error:
            raise error from of_layers
    return _as_network(KerasNetwork.make_from_model(spec, model, shape, host))


def _build_from_layers(function: Callable[..., Any], shape: tuple[int, int, int]) -> Any:
    """Return a function of Keras layers as a Keras model, or raise any error if it has other operations or variables.

    A variable of its own would be a constant in the model. The function is called once, as in training: layers get the argument
    again whenever they are computed, and have only the variables that they make in this call.
    """
    import keras

    made: list[Any] = []

    def record_variable(create: Callable[..., Any], **wanted: Any) -> Any:
        made.append(create(**wanted))
        return made[-1]

    arguments = {"training": True} if "training" in inspect.signature(function).parameters else {}
    images = keras.Input(shape)
    with tf.variable_creator_scope(record_variable):
        model = keras.Model(images, function(images, **arguments))
    known = {id(variable.value) for variable in model.variables}
    if any(id(variable) not in known for variable in made):
        raise SpecError("it makes variables beside those of its layers")
    return model


def _as_network(found: KerasNetwork | FunctionNetwork) -> Network:
    """Return the network, typed as one of shapes, too, although its function only takes tensors."""
    return cast("Network", found)
