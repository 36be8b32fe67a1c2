"""Define the networks that can be trained: one module per family, each with the members of `Network`.

None imports TensorFlow.
"""

import inspect
from collections.abc import Callable, Mapping
from operator import index
from typing import Any, Protocol, cast

from pytest_dtfperf.errors import SpecError, show_value
from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import INPUTS, MODELS, Spec
from pytest_dtfperf.training.models.layers import Layers, T


class Network(Protocol):
    """A network: its images, its classes, and its layers. Two equal ones have the same variables."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Return the shape of an image: height, width, channels."""

    @property
    def classes(self) -> int:
        """Return the number of classes."""

    def __hash__(self) -> int: ...

    def logits(self, net: Layers[T], images: T) -> T:
        """Return (batch, classes) of a batch of images. Called once per tower, once to evaluate, and once for its outline."""


Size = Mapping[str, Any]  # image_shape and classes, as far as an input fixes them
Builder = Callable[[Spec, Size], Network]

_kept: dict[str, Any] = {}  # own models that this process was given, by name
_builders: list[Builder] = []  # the builder of other own models, only in a task


def keep_model(name: str, model: Any) -> None:
    """Keep an own model as it was given, so that it need not be imported again."""
    _kept[name] = model


def set_builder(builder: Builder) -> None:
    """Set the builder of own models that this process was not given."""
    _builders[:] = [builder]


def get_network(spec: Spec) -> Network:
    """Return the network of a spec, for its input's images and classes. Raises `SpecError` for an unusable own model."""
    fed = INPUTS[spec.data]
    fixed = {"image_shape": fed.image_shape, "classes": fed.classes}
    size = {name: value for name, value in fixed.items() if value is not None}
    if not spec.own_model:
        return make_network(spec.model, **size)
    return check_fit(spec, _make_own_network(spec, size), size)


def make_default_network(model: str) -> Network:
    """Return a model at its default size, as for synthetic images and ImageNet."""
    return make_network(model)


def make_network(model: str, **size: object) -> Network:
    """Return a model for images of another `image_shape`, or for other `classes`."""
    return cast("Network", load(MODELS[model].implementation)(**size))


def call_with_size(model: Any, size: Size) -> Any:
    """Call a class or function with those sizes that it has parameters for, and return the result."""
    named = inspect.signature(model).parameters
    return model(**{name: value for name, value in size.items() if name in named})


def check_fit(spec: Spec, network: Network, size: Size) -> Network:
    """Return the network if its input can feed it. Raises `SpecError` otherwise."""
    shape, classes = parse_image_shape(spec.model, network.image_shape), network.classes
    if not isinstance(classes, int) or classes < 1:
        raise SpecError(f"{spec.model} has classes = {show_value(classes)}: it must be a whole number, 1 or more")
    wanted = tuple(size.get("image_shape", shape))
    if shape != wanted or classes < size.get("classes", 0):
        has = f"images of {wanted}" + (f" in {size['classes']} classes" if "classes" in size else "")
        raise SpecError(
            f"{spec.model} looks at images of {shape} and tells {classes} classes apart, data={spec.data} has {has}: let what "
            "makes it take the parameters image_shape and classes, or feed it from made-up images, data=synthetic"
        )
    return network


def parse_image_shape(model: str, given: Any) -> tuple[int, int, int]:
    """Return the image shape that an own model declares. Raises `SpecError` if it is no shape of images."""
    try:
        height, width, channels = map(index, given)
    except (TypeError, ValueError):
        height = width = channels = 0
    if min(height, width, channels) < 1:
        raise SpecError(
            f"{model} has image_shape = {show_value(given)}: it must be (height, width, channels), three whole "
            "numbers, each 1 or more"
        )
    return height, width, channels


def _make_own_network(spec: Spec, size: Size) -> Network:
    if spec.model in _kept:
        model = _kept[spec.model]
        return cast("Network", call_with_size(model, size) if isinstance(model, type) else model)
    if not _builders:
        raise SpecError(f"what {spec.model} is made of is not known here before it has been trained in this session")
    return _builders[0](spec, size)
