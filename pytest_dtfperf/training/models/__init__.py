"""The networks that can be trained: one file per family, each with the members of `Network`. None imports TensorFlow."""

import importlib
from typing import Protocol, cast

from pytest_dtfperf.spec import INPUTS, MODELS, Spec
from pytest_dtfperf.training.models.layers import Layers, T


class Network(Protocol):
    """A network: what it looks at, what it tells apart, and how. Two equal ones have the same variables."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""

    @property
    def classes(self) -> int:
        """How many kinds of images it tells apart."""

    def __hash__(self) -> int: ...

    def logits(self, net: Layers[T], images: T) -> T:
        """(batch, classes) of a batch of images. Called once per tower, once to evaluate, and once for its outline."""


def network_of(spec: Spec) -> Network:
    """The network of a spec, in the size of its input where that fixes one."""
    fed = INPUTS[spec.data]
    fixed = {"image_shape": fed.image_shape, "classes": fed.classes}
    return made(spec.model, **{name: value for name, value in fixed.items() if value is not None})


def default_network(model: str) -> Network:
    """A model at its own size: on synthetic images and on ImageNet."""
    return made(model)


def made(model: str, **size: object) -> Network:
    """A model for images of another `image_shape`, or for other `classes`."""
    module, _, name = MODELS[model].implementation.partition(":")
    return cast("Network", getattr(importlib.import_module(module), name)(**size))
