"""Rates as arithmetic: FLOP of an image, FLOP/s, and the share of the devices' peak."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from pytest_dtfperf.baselines.files import validate
from pytest_dtfperf.datamodel.fingerprint import Fingerprint
from pytest_dtfperf.datamodel.measurement import Measurement
from pytest_dtfperf.formats import with_prefix
from pytest_dtfperf.records.arithmetic import (
    GPUS,
    NO_TF32,
    WHAT_COUNTS,
    flop_per_image,
    flops_per_sec,
    format_lines,
    peak_of,
    share_of_peak,
)
from pytest_dtfperf.records.record import Record
from pytest_dtfperf.spec import Spec
from tests.records.samples import measurement, spec

A100, V100 = "NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"
GFLOP = "34.3 GFLOP"  # of an image that Inception v3 is trained on
COMMAND: dict[str, Any] = {"command": ("python", "train.py")}


def measure_on(gpus: Sequence[str], rate: float = 1000.0, *, cpu_devices: int | None = None, **what: Any) -> Measurement:
    """Return a measurement of this rate on a host with these GPUs."""
    hardware = {"gpus": [{"name": name, "memory_gib": 40} for name in gpus], "cpu_devices": cpu_devices}
    return replace(
        measurement(spec(gpus=2, num_ps=1, **what), [rate]), fingerprint=Fingerprint.from_json({"hardware": hardware})
    )


# (5 x 5 x 1 x 32) x 28^2 + (5 x 5 x 32 x 64) x 14^2 + 7^2 x 64 x 1024 + 1024 x 10, as the TensorFlow tutorial's text has them
MNIST = 13_883_904


@pytest.mark.parametrize(
    "what, flop",
    [
        ({"model": "mnist_softmax"}, 28 * 28 * 10 * 2 * 3),
        ({"model": "mnist"}, MNIST * 2 * 3),
        ({"model": "mnist", "forward_only": True}, MNIST * 2),
        (
            {"model": "lenet", "data": "mnist", "data_dir": "/d"},
            (25 * 32 * 28**2 + 25 * 32 * 64 * 14**2 + 3136 * 512 + 5120) * 6,
        ),
        ({"model": "mnist", **COMMAND}, MNIST * 2 * 3),
        ({"model": "another", **COMMAND}, None),
    ],
    ids=["softmax", "training", "forward_only", "size_of_input", "command_of_known_model", "command_of_unknown_model"],
)
def test_flop_of_an_image_is_counted(what: dict[str, Any], flop: int | None) -> None:
    """An image has two FLOP for each multiply-add, three times as many in training; an unknown program has no count."""
    assert flop_per_image(Spec(**{"batch_size": 8, **what})) == flop


@pytest.mark.parametrize(
    "name, precision, tera, unit",
    [
        ("Tesla K80", "fp32", 4.37, "FP32"),
        ("Tesla P100-PCIE-16GB", "fp32", 9.3, "FP32"),
        ("Tesla P100-SXM2-16GB", "fp16", 21.2, "FP16"),
        (V100, "fp32", 15.7, "FP32"),
        (V100, "fp16", 125.0, "FP16"),
        ("Tesla T4", "fp16", 65.0, "FP16"),
        ("NVIDIA A10G", "fp32", 35.0, "TF32"),
        ("NVIDIA L4", "bf16", 121.0, "BF16"),
        (A100, "fp32", 156.0, "TF32"),
        ("A100-SXM4-40GB", "bf16", 312.0, "BF16"),
        ("NVIDIA H100 80GB HBM3", "fp32", 494.5, "TF32"),
        ("NVIDIA H100 PCIe", "bf16", 756.5, "BF16"),
        ("NVIDIA H200", "fp16", 989.5, "FP16"),
        ("NVIDIA GH200 120GB", "fp32", 494.5, "TF32"),
    ],
)
def test_peak_is_that_of_the_data_sheet(name: str, precision: str, tera: float, unit: str) -> None:
    """A GPU's peak is that of its data sheet without sparsity; fp32 is TF32 on GPUs that have it."""
    peak = peak_of(name, precision)
    assert peak
    assert peak.flops_per_sec == pytest.approx(tera * 1e12)
    assert peak.format == unit


@pytest.mark.parametrize(
    "name, precision",
    [("Tesla K80", "fp16"), (V100, "bf16"), ("NVIDIA GeForce RTX 4090", "fp32"), ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "fp32")],
)
def test_unknown_gpu_or_format_has_no_peak(name: str, precision: str) -> None:
    """An unknown GPU, a part of one, and a format without units have no peak."""
    assert peak_of(name, precision) is None


def test_peak_without_tf32() -> None:
    """Without TF32 the peak of fp32 is that of FP32; other formats are unchanged."""
    plain, half = peak_of(A100, "fp32", [NO_TF32]), peak_of(A100, "bf16", [NO_TF32])
    assert plain
    assert (plain.flops_per_sec, plain.format) == (19.5e12, "FP32")
    assert half == peak_of(A100, "bf16")


def test_peaks_of_each_gpu_are_consistent() -> None:
    """Each GPU has a source, and the peaks of shorter formats are 1 to 16 times those of longer ones."""
    for gpu in GPUS:
        known = [tera for tera in (gpu.fp32, gpu.tf32, gpu.fp16) if tera]
        assert all(1 <= short / long <= 16 for long, short in pairwise(known)), gpu
        assert gpu.bf16 in (None, gpu.fp16), gpu
        assert gpu.tf32 is None or gpu.fp16 == pytest.approx(2 * gpu.tf32, rel=0.02), gpu
        assert "data sheet" in gpu.source


def test_share_of_peak_is_of_all_devices() -> None:
    """The share of the peak is that of all devices."""
    flops = 6 * 5_713_218_144 * 1000.0
    measured = measure_on([A100, A100])
    assert flops_per_sec(measured) == flops
    assert share_of_peak(measured) == pytest.approx(flops / (2 * 156e12))
    assert share_of_peak(measure_on([A100, A100], environment=(NO_TF32,))) == pytest.approx(flops / (2 * 19.5e12))


@pytest.mark.parametrize(
    "measured",
    [
        measure_on([]),
        measure_on([A100, A100], cpu_devices=2),
        measure_on([A100, V100]),
        measure_on(["NVIDIA GeForce RTX 4090"] * 2),
        measure_on([V100], precision="bf16"),
        measure_on([A100], **COMMAND),
        measurement(spec(), [10.0]),
    ],
    ids=["cpu", "cpu_beside_gpus", "two_kinds", "unknown", "no_such_format", "another's_program", "nothing_known"],
)
def test_unknown_peak_has_no_share(measured: Measurement) -> None:
    """Without a known peak there are FLOP/s and no share."""
    assert flops_per_sec(measured)
    assert share_of_peak(measured) is None


def test_record_has_flops_and_share() -> None:
    """FLOP/s and share are in the record by its schema, null if unknown, and the record is read again."""
    for measured in (measure_on([A100]), measure_on([]), measure_on([], model="another", **COMMAND)):
        record = Record(id="a1", test="t", measurement=measured)
        data = record.to_json()
        assert (data["flops_per_sec"], data["share_of_peak"]) == (flops_per_sec(measured), share_of_peak(measured))
        validate(Record, data, "measurements.jsonl:1")
        assert Record.from_json(data) == record


def test_each_model_and_precision_has_a_line() -> None:
    """The fastest measurement of each model and precision has a line; an uncounted program has none."""
    lines = format_lines([
        measure_on([A100], rate=1000.0),
        measure_on([A100], rate=2000.0),
        measure_on([], rate=3.0, precision="bf16"),
        measure_on([], rate=30.0, model="mnist", batch_size=64, forward_only=True),
        measure_on([], rate=10.0, model="resnet50", **COMMAND),
        measure_on([], rate=99.0, model="another", **COMMAND),
    ])  # fmt: skip
    assert lines == [
        f"inception3: {GFLOP} per training image; best 2000 images/sec = 68.6 TFLOP/s, 22.0 % of the TF32 peak of 2 x {A100}",
        "inception3 bf16: 34.3 GFLOP per training image; best 3.00 images/sec = 103 GFLOP/s",
        "mnist: 27.8 MFLOP per image, forward only; best 30.00 images/sec = 833 MFLOP/s",
        "resnet50, an external command's, counted as ours: 23.1 GFLOP per training image; best 10.00 images/sec = 231 GFLOP/s",
        WHAT_COUNTS,
    ]
    assert format_lines([measure_on([], model="another", **COMMAND)]) == []


@pytest.mark.parametrize(
    "value, text",
    [(0.5, "0.50 F"), (47_040, "47.0 kF"), (999.4e6, "999 MF"), (999.9e6, "1.00 GF"), (1.234e12, "1.23 TF"), (5e18, "5000 PF")],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    """Numbers have three digits and a prefix with one to three of them before the point."""
    assert with_prefix(value, "F") == text


def test_flop_are_counted_without_tensorflow() -> None:
    """FLOP are counted without an import of TensorFlow."""
    code = (
        "import sys; from pytest_dtfperf.records.arithmetic import flop_per_image; from pytest_dtfperf.spec import Spec\n"
        "assert flop_per_image(Spec(model='resnet50', batch_size=1)); assert 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
