"""Floating-point operations per second of a rate, and their share of the devices' peak.

    FLOP of a trained image = 2 x multiply-adds forward x 3

A multiply-add is two operations. Going backward takes two products as large as the one forward: the gradient of the weights
and that of what flowed in. (Kaplan et al., arXiv 2001.08361, section 2.1, count a transformer's training so.) Of convolutions
and dense layers alone; docs/numbers.md lists what is left out.

A GPU's peak is its maker's figure for dense matrices at the boost clock. A GPU that is not in the table has no peak.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.datamodel.task_report import NetworkFacts
from pytest_dtfperf.formats import percent, rate, with_prefix
from pytest_dtfperf.spec import MODELS, Spec
from pytest_dtfperf.spec.tables import can_feed
from pytest_dtfperf.training.models.outline import get_outline

NO_TF32 = "NVIDIA_TF32_OVERRIDE=0"  # in a task's environment: cuBLAS and cuDNN then compute fp32 as fp32, on any GPU


@dataclass(frozen=True, kw_only=True)
class PeakFlops:
    """TFLOP/s by format. None: it has no units for it."""

    name: str  # a pattern for all of the name that nvidia-smi gives, without its maker's
    fp32: float  # CUDA cores
    tf32: float | None = None  # tensor cores, as are the following but for Pascal
    fp16: float | None = (
        None  # the P100's adds up in fp16, for which TensorFlow has to be asked (TF_FP16_CONV_USE_FP32_COMPUTE=0)
    )
    bf16: float | None = None
    source: str


@dataclass(frozen=True)
class Peak:
    """What a device can do, and in which format."""

    flops_per_sec: float
    format: str


# A data sheet that gives numbers with sparsity alone is halved.
GPUS = (
    PeakFlops(
        name=r"K80",
        fp32=4.37,
        source="NVIDIA, Tesla K80 data sheet: 8.74 with boost for two GK210; nvidia-smi lists each of them",
    ),
    PeakFlops(name=r"P100-PCIE-1[26]GB", fp32=9.3, fp16=18.7, source="NVIDIA, Tesla P100 PCIe data sheet"),
    PeakFlops(name=r"P100-SXM2-16GB", fp32=10.6, fp16=21.2, source="NVIDIA, Tesla P100 data sheet"),
    PeakFlops(name=r"V100-PCIE-(16|32)GB", fp32=14.0, fp16=112.0, source="NVIDIA, Tesla V100 data sheet"),
    PeakFlops(name=r"V100-SXM2-(16|32)GB", fp32=15.7, fp16=125.0, source="NVIDIA, Tesla V100 data sheet"),
    PeakFlops(name=r"V100S-PCIE-32GB", fp32=16.4, fp16=130.0, source="NVIDIA, V100 data sheet of 2020"),
    PeakFlops(name=r"T4", fp32=8.1, fp16=65.0, source="NVIDIA, T4 data sheet"),
    PeakFlops(name=r"A10G", fp32=35.0, tf32=35.0, fp16=70.0, bf16=70.0, source="NVIDIA and AWS, A10G data sheet"),
    PeakFlops(name=r"L4", fp32=30.3, tf32=60.0, fp16=121.0, bf16=121.0, source="NVIDIA, L4 data sheet, halved"),
    PeakFlops(
        name=r"A100[- ](SXM4-40GB|SXM4-80GB|PCIE-40GB|80GB PCIe)",
        fp32=19.5,
        tf32=156.0,
        fp16=312.0,
        bf16=312.0,
        source="NVIDIA, A100 data sheet, the same for all four",
    ),
    PeakFlops(name=r"H100 PCIe", fp32=51.0, tf32=378.0, fp16=756.5, bf16=756.5, source="NVIDIA, H100 data sheet, halved"),
    PeakFlops(name=r"H100 NVL", fp32=60.0, tf32=417.5, fp16=835.5, bf16=835.5, source="NVIDIA, H100 data sheet, halved"),
    PeakFlops(
        name=r"H100 80GB HBM3", fp32=67.0, tf32=494.5, fp16=989.5, bf16=989.5, source="NVIDIA, H100 SXM data sheet, halved"
    ),
    PeakFlops(name=r"H200", fp32=67.0, tf32=494.5, fp16=989.5, bf16=989.5, source="NVIDIA, H200 SXM data sheet, halved"),
    PeakFlops(name=r"H200 NVL", fp32=60.0, tf32=417.5, fp16=835.5, bf16=835.5, source="NVIDIA, H200 data sheet, halved"),
    PeakFlops(
        name=r"GH200 (480GB|120GB|144G HBM3e)",
        fp32=67.0,
        tf32=494.5,
        fp16=989.5,
        bf16=989.5,
        source="NVIDIA, GH200 Grace Hopper data sheet, halved",
    ),
)


def peak_of(name: str, precision: str, environment: Collection[str] = ()) -> Peak | None:
    """Return the peak of the GPU with this nvidia-smi name; None where it is not known.

    fp32 is TF32 where there are units for it: so TensorFlow computes convolutions and products there, unless it is turned off.
    """
    gpu = next((gpu for gpu in GPUS if re.fullmatch(rf"(NVIDIA )?(Tesla )?{gpu.name}", name)), None)
    if gpu is None:
        return None
    chosen = "tf32" if precision == "fp32" and gpu.tf32 and NO_TF32 not in environment else precision
    tera: float | None = getattr(gpu, chosen)
    return None if tera is None else Peak(tera * 1e12, chosen.upper())


FLOP_OF_MULTIPLY_ADD = 2
PASSES = 3  # of equal cost in training: forward, gradients of weights, gradients of what flows

WHAT_COUNTS = "FLOP: 2 x multiply-adds of convolutions and dense layers, and 3 x as many in training as forward"


def flop_per_image(spec: Spec) -> int | None:
    """Return the FLOP of one device per image; None if they are not known.

    They are not known for an external command that trains none of this package's models, of which a name alone is not enough,
    and for an own model with uncounted operations. Raises `SpecError` for an own model that was not trained here.
    """
    if spec.command and (spec.model not in MODELS or not can_feed(spec.data, spec.model)):
        return None
    return _flop(spec, get_outline(spec).multiply_adds)


def flop_of(measurement: Measurement) -> int | None:
    """Return the same per image, from what its runs have reported of an own model."""
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
    """Return FLOP/s of the whole cluster."""
    flop = flop_of(measurement)
    return None if flop is None else flop * measurement.images_per_sec


def share_of_peak(measurement: Measurement) -> float | None:
    """`flops_per_sec` over what all its devices can do, as a fraction. None where that is not known, as of all CPUs."""
    flops, found = flops_per_sec(measurement), _devices(measurement)
    if flops is None or found is None:
        return None
    return flops / (measurement.spec.gpus * found[1].flops_per_sec)


def format_lines(measurements: Iterable[Measurement]) -> list[str]:
    """Return the fastest measurement of each model and precision, and what was counted. Nothing where nothing could be."""
    fastest: dict[_Kind, Measurement] = {}
    unknown: dict[str, None] = {}
    for measurement in measurements:
        kind = _Kind.from_measurement(measurement)
        if kind is None and measurement.spec.own_model:
            unknown[_describe_unknown(measurement)] = None
        if kind and (kind not in fastest or measurement.images_per_sec > fastest[kind].images_per_sec):
            fastest[kind] = measurement
    lines = [_format_line(kind, fastest[kind]) for kind in sorted(fastest, key=lambda kind: (str(kind), kind.flop))]
    return [*lines, *unknown, *([WHAT_COUNTS] if lines else [])]


def _describe_unknown(measurement: Measurement) -> str:
    facts = _facts(measurement)
    why = facts.uncounted if facts else "no run has reported its operations"
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
    def from_measurement(cls, measurement: Measurement) -> "_Kind | None":
        spec, flop = measurement.spec, flop_of(measurement)
        return None if flop is None else cls(spec.model, spec.precision, flop, spec.forward_only, bool(spec.command))

    def __str__(self) -> str:
        name = self.model if self.precision == "fp32" else f"{self.model} {self.precision}"
        return f"{name}, an external command's, counted as ours" if self.is_external else name


def _format_line(kind: _Kind, measurement: Measurement) -> str:
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
    """Return the GPUs that computed, and the peak of one. None: several kinds, an unknown one, or none.

    What precision an external command computes in is its own affair, so its devices have no peak.
    """
    spec, hardware = measurement.spec, measurement.fingerprint.hardware
    names = {gpu.name for gpu in hardware.gpus}
    if len(names) != 1 or hardware.cpu_devices or spec.command:
        return None
    (name,) = names
    peak = peak_of(name, spec.precision, spec.environment)
    return None if peak is None else (name, peak)
