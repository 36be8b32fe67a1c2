"""Outline a network without TensorFlow: its variables, the shapes of its stages, and its arithmetic for an image."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol, runtime_checkable

from pytest_dtfperf.datamodel.task_report import NetworkFacts
from pytest_dtfperf.errors import SpecError
from pytest_dtfperf.spec import Spec, tables
from pytest_dtfperf.training.models import Network, get_network, make_default_network
from pytest_dtfperf.training.models.layers import (
    BATCH_NORM,
    BatchNorm,
    Deviation,
    by_inputs,
    by_inputs_exactly,
    compute_padding,
)

Shape = tuple[int, ...]  # of one image: (height, width, channels), or (units,)


class Values(Protocol):
    """First values that are known before the graph is built."""

    def prepare(self) -> None:
        """Add the values to the current graph, before a variable with them is made there."""

    def __call__(self) -> Any:
        """Return the values as a tensor."""


class Variable(NamedTuple):
    """The description of a variable of a network."""

    name: str
    shape: Shape
    trainable: bool = True  # False: a moving average, state of a tower
    start: float = 0.0  # first value of all its elements, or, where they are drawn,
    stddev: float | None = None  # their standard deviation about zero, before the cut-off at two of them
    dtype: str = "float32"  # other types are only of state
    values: Values | None = None  # instead of both: the values that an own model has made

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Outline:
    """The variables, stages and arithmetic of a network."""

    variables: tuple[Variable, ...]  # in the order in which the network makes them
    stages: Mapping[str, Shape]
    # Forward, per image, of convolutions and dense layers; all else is one or two per value, and left out. None: not known.
    multiply_adds: int | None
    uncounted: str = ""  # the reason why that is not known
    work: Mapping[str, int] = field(default_factory=dict)  # the same by variable; empty: not known

    @property
    def trained(self) -> tuple[Variable, ...]:
        return tuple(variable for variable in self.variables if variable.trainable)

    @property
    def parameters(self) -> int:
        """Return the number of parameters, batch norm's moving averages included, as Keras counts them."""
        return sum(variable.size for variable in self.variables)

    @property
    def trained_parameters(self) -> int:
        """Return the number of trained parameters, which replicas exchange."""
        return sum(variable.size for variable in self.trained)


@runtime_checkable
class OutlinedNetwork(Protocol):
    """A network that is not made of layers, and gets its outline from its creator."""

    outline: Outline


_seen: dict[tuple[str, ...], Outline] = {}  # of own models that tasks have reported


def keep_outline(spec: Spec, found: Outline) -> None:
    """Keep the outline that a task reported of an own model, for a process that cannot make it."""
    _seen[_make_key(spec)] = found


def _make_key(spec: Spec) -> tuple[str, ...]:
    mine = tables.find_own_model(spec.model)
    return spec.model, spec.data, mine.digest if mine else ""


def get_outline(spec: Spec) -> Outline:
    """Return the outline of the spec's network. Raises `SpecError` for an own model with no reported outline yet."""
    found = _seen.get(_make_key(spec)) if spec.own_model else None
    return found or compute_outline(get_network(spec))


@cache
def compute_outline(network: Network) -> Outline:
    """Return the outline of a network. Raises `SpecError` if its images are too small for it."""
    if isinstance(network, OutlinedNetwork):
        return network.outline
    shapes = Shapes()
    logits = network.logits(shapes, network.image_shape)
    return Outline(tuple(shapes.variables), shapes.stages | {"logits": logits}, shapes.multiply_adds, work=shapes.work)


def multiply_adds(model: str) -> int:
    """Return the forward multiply-adds per image of a model at its default size."""
    found = compute_outline(make_default_network(model)).multiply_adds
    assert found is not None  # of layers all is counted
    return found


class Shapes:
    """`Layers` that compute shapes, and count variables and multiply-adds."""

    def __init__(self) -> None:
        self.variables: list[Variable] = []
        self.stages: dict[str, Shape] = {}
        self.work: dict[str, int] = {}  # multiply-adds by variable
        self._counts: dict[str, int] = {}

    @property
    def multiply_adds(self) -> int:
        return sum(self.work.values())

    def conv(
        self,
        images: Shape,
        filters: int,
        height: int,
        width: int,
        *,
        stride: int = 1,
        padding: str = "SAME",
        weights: Deviation = by_inputs_exactly,
        bias: float | None = None,
    ) -> Shape:
        name = self._name("conv")
        kernel = (height, width, images[2], filters)
        self._variable(f"{name}/weights", kernel, stddev=weights(kernel))
        if bias is not None:
            self._variable(f"{name}/bias", (filters,), start=bias)
        out = (
            _count_positions(images[0], height, stride, padding),
            _count_positions(images[1], width, stride, padding),
            filters,
        )
        self.work[f"{name}/weights"] = out[0] * out[1] * math.prod(kernel)
        return out

    def batch_norm(self, images: Shape, settings: BatchNorm) -> Shape:
        name = self._name(BATCH_NORM)
        if settings.scale:
            self._variable(f"{name}/scale", images[-1:], start=1.0)
        self._variable(f"{name}/offset", images[-1:])
        self._variable(f"{name}/mean", images[-1:], trainable=False)
        self._variable(f"{name}/variance", images[-1:], trainable=False, start=1.0)
        return images

    def lrn(self, images: Shape, *, radius: int, bias: float, alpha: float, beta: float) -> Shape:
        return images

    def relu(self, x: Shape) -> Shape:
        return x

    def add(self, one: Shape, other: Shape) -> Shape:
        if one != other:
            raise ValueError(f"{one} and {other} cannot be added")
        return one

    def max_pool(self, images: Shape, size: int, *, stride: int, padding: str = "VALID") -> Shape:
        return (
            _count_positions(images[0], size, stride, padding),
            _count_positions(images[1], size, stride, padding),
            images[2],
        )

    avg_pool = max_pool

    def mean(self, images: Shape) -> Shape:
        return images[2:]

    def concat(self, branches: Sequence[Shape]) -> Shape:
        if len({branch[:2] for branch in branches}) > 1:
            raise ValueError(f"{', '.join(map(str, branches))} cannot be joined")
        return (*branches[0][:2], sum(branch[2] for branch in branches))

    def widen(self, images: Shape, by: int) -> Shape:
        return (*images[:2], images[2] + by)

    def flatten(self, images: Shape) -> Shape:
        return (math.prod(images),)

    def dense(self, vectors: Shape, units: int, *, weights: Deviation = by_inputs, bias: float = 0.0) -> Shape:
        name = self._name("dense")
        self._variable(f"{name}/weights", (*vectors, units), stddev=weights((*vectors, units)))
        self._variable(f"{name}/bias", (units,), start=bias)
        self.work[f"{name}/weights"] = math.prod(vectors) * units
        return (units,)

    def dropout(self, vectors: Shape, rate: float) -> Shape:
        return vectors

    def stage(self, name: str, x: Shape) -> Shape:
        self.stages[name] = x
        return x

    def _variable(
        self, name: str, shape: Shape, *, trainable: bool = True, start: float = 0.0, stddev: float | None = None
    ) -> None:
        self.variables.append(Variable(name, shape, trainable, start, stddev))

    def _name(self, kind: str) -> str:
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        return f"{kind}{number}"


def _count_positions(pixels: int, size: int, stride: int, padding: str) -> int:
    """Return the number of positions of a window of `size` along a side of `pixels`."""
    positions = (pixels + sum(compute_padding(padding, size, pixels, stride)) - size) // stride + 1
    if positions < 1:
        raise SpecError(f"images are too small for this network: a window of {size} does not fit into {pixels} pixels")
    return positions


def collect_facts(spec: Spec) -> NetworkFacts:
    """Return the facts about the spec's network that its task reports."""
    network = get_network(spec)
    found = compute_outline(network)
    return NetworkFacts(
        image_shape=network.image_shape,
        classes=network.classes,
        parameters=found.parameters,
        trained_parameters=found.trained_parameters,
        multiply_adds=found.multiply_adds,
        uncounted=found.uncounted,
        variables={variable.name: variable.shape for variable in found.trained},
    )


def outline_in(facts: NetworkFacts) -> Outline:
    """Return the part of an outline that planning needs, from reported facts: the trained variables."""
    variables = tuple(Variable(name, tuple(shape)) for name, shape in facts.variables.items())
    return Outline(variables, {"logits": (facts.classes,)}, facts.multiply_adds, facts.uncounted)
