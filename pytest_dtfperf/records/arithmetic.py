"""How much arithmetic a rate is: floating-point operations per second, and which part of the devices' peak.

    FLOP of a trained image = 2 x multiply-adds forward x 3

A multiply-add is two operations. Going backward takes two products as large as the one forward: the gradient of the weights
and that of what flowed in. (Kaplan et al., arXiv 2001.08361, section 2.1, count a transformer's training so.) Of convolutions
and dense layers alone; docs/numbers.md says what is left out.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_dtfperf.formats import percent, rate, with_prefix
from pytest_dtfperf.measurement import Measurement, NetworkFacts
from pytest_dtfperf.records.peaks import Peak, peak_of
from pytest_dtfperf.spec import MODELS, Spec
from pytest_dtfperf.spec.tables import can_feed
from pytest_dtfperf.training.models.outline import outline_of

FLOP_OF_MULTIPLY_ADD = 2
PASSES = 3  # of equal cost in training: forward, gradients of weights, gradients of what flows

WHAT_COUNTS = "FLOP: 2 x multiply-adds of convolutions and dense layers, and 3 x as many in training as forward"


def flop_per_image(spec: Spec) -> int | None:
    """None: an external command trains something that is no model of ours, and a name alone is no arithmetic; or an own model
    has something that nobody counts. Raises `SpecError` of an own model that nobody here has trained.
    """
    if spec.command and (spec.model not in MODELS or not can_feed(spec.data, spec.model)):
        return None
    return _flop(spec, outline_of(spec).multiply_adds)


def flop_of(measurement: Measurement) -> int | None:
    """Likewise per image, by what its runs have told of an own model."""
    if not measurement.spec.own_model:
        return flop_per_image(measurement.spec)
    facts = _facts(measurement)
    return _flop(measurement.spec, facts.multiply_adds) if facts else None


def _flop(spec: Spec, multiply_adds: int | None) -> int | None:
    if multiply_adds is None:
        return None
    forward = FLOP_OF_MULTIPLY_ADD * multiply_adds
    return forward if spec.forward_only else PASSES * forward


def _facts(measurement: Measurement) -> NetworkFacts | None:
    return next((run.network for run in measurement.runs if run.network), None)


def flops_per_sec(measurement: Measurement) -> float | None:
    """Of the whole cluster."""
    flop = flop_of(measurement)
    return None if flop is None else flop * measurement.images_per_sec


def share_of_peak(measurement: Measurement) -> float | None:
    """`flops_per_sec` over what all its devices can do, as a fraction. None where that is not known, as of all CPUs."""
    flops, found = flops_per_sec(measurement), _devices(measurement)
    if flops is None or found is None:
        return None
    return flops / (measurement.spec.gpus * found[1].flops_per_sec)


def lines(measurements: Iterable[Measurement]) -> list[str]:
    """The fastest measurement of each model and precision, and what was counted. Nothing where nothing could be."""
    fastest: dict[_Kind, Measurement] = {}
    unknown: dict[str, None] = {}
    for measurement in measurements:
        kind = _Kind.of(measurement)
        if kind is None and measurement.spec.own_model:
            unknown[_not_known(measurement)] = None
        if kind and (kind not in fastest or measurement.images_per_sec > fastest[kind].images_per_sec):
            fastest[kind] = measurement
    lines = [_line(kind, fastest[kind]) for kind in sorted(fastest, key=lambda kind: (str(kind), kind.flop))]
    return [*lines, *unknown, *([WHAT_COUNTS] if lines else [])]


def _not_known(measurement: Measurement) -> str:
    facts = _facts(measurement)
    why = facts.uncounted if facts else "no run has told what it is made of"
    return f"{measurement.spec.model}: FLOP not known: {why}"


@dataclass(frozen=True)
class _Kind:
    """What is counted alike and has the same peak."""

    model: str
    precision: str
    flop: int  # per image: a model's input may be of another size
    forward_only: bool
    is_external: bool  # trained by an external command

    @classmethod
    def of(cls, measurement: Measurement) -> "_Kind | None":
        spec, flop = measurement.spec, flop_of(measurement)
        return None if flop is None else cls(spec.model, spec.precision, flop, spec.forward_only, bool(spec.command))

    def __str__(self) -> str:
        name = self.model if self.precision == "fp32" else f"{self.model} {self.precision}"
        return f"{name}, an external command's, counted as ours" if self.is_external else name


def _line(kind: _Kind, measurement: Measurement) -> str:
    image = "image, forward only" if kind.forward_only else "training image"
    flops = kind.flop * measurement.images_per_sec
    text = (
        f"{kind}: {with_prefix(kind.flop, 'FLOP')} per {image}; "
        f"best {rate(measurement.images_per_sec)} images/sec = {with_prefix(flops, 'FLOP/s')}"
    )
    share, found = share_of_peak(measurement), _devices(measurement)
    if share is None or found is None:
        return text
    name, peak = found
    return f"{text}, {percent(share)} of the {peak.format} peak of {measurement.spec.gpus} x {name}"


def _devices(measurement: Measurement) -> tuple[str, Peak] | None:
    """The GPUs that computed, and the peak of one. None: several kinds, an unknown one, or none.

    What precision an external command computes in is its own affair, so its devices have no peak.
    """
    spec, hardware = measurement.spec, measurement.fingerprint.get("hardware") or {}
    names = {gpu["name"] for gpu in hardware.get("gpus") or ()}
    if len(names) != 1 or hardware.get("cpu_devices") or spec.command:
        return None
    (name,) = names
    peak = peak_of(name, spec.precision, spec.environment)
    return None if peak is None else (name, peak)
