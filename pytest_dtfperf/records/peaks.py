"""What a GPU can do at most, as its maker says: dense matrices (no sparsity), at the clock it may be boosted to.

Published speeds of others are no guess, but another GPU's are: one that is not in the table has no peak.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

NO_TF32 = "NVIDIA_TF32_OVERRIDE=0"  # in a task's environment: cuBLAS and cuDNN then compute fp32 as fp32, on any GPU


@dataclass(frozen=True, kw_only=True)
class Gpu:
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
    Gpu(
        name=r"K80",
        fp32=4.37,
        source="NVIDIA, Tesla K80 data sheet: 8.74 with boost for two GK210; nvidia-smi lists each of them",
    ),
    Gpu(name=r"P100-PCIE-1[26]GB", fp32=9.3, fp16=18.7, source="NVIDIA, Tesla P100 PCIe data sheet"),
    Gpu(name=r"P100-SXM2-16GB", fp32=10.6, fp16=21.2, source="NVIDIA, Tesla P100 data sheet"),
    Gpu(name=r"V100-PCIE-(16|32)GB", fp32=14.0, fp16=112.0, source="NVIDIA, Tesla V100 data sheet"),
    Gpu(name=r"V100-SXM2-(16|32)GB", fp32=15.7, fp16=125.0, source="NVIDIA, Tesla V100 data sheet"),
    Gpu(name=r"V100S-PCIE-32GB", fp32=16.4, fp16=130.0, source="NVIDIA, V100 data sheet of 2020"),
    Gpu(name=r"T4", fp32=8.1, fp16=65.0, source="NVIDIA, T4 data sheet"),
    Gpu(name=r"A10G", fp32=35.0, tf32=35.0, fp16=70.0, bf16=70.0, source="NVIDIA and AWS, A10G data sheet"),
    Gpu(name=r"L4", fp32=30.3, tf32=60.0, fp16=121.0, bf16=121.0, source="NVIDIA, L4 data sheet, halved"),
    Gpu(
        name=r"A100[- ](SXM4-40GB|SXM4-80GB|PCIE-40GB|80GB PCIe)",
        fp32=19.5,
        tf32=156.0,
        fp16=312.0,
        bf16=312.0,
        source="NVIDIA, A100 data sheet, the same for all four",
    ),
    Gpu(name=r"H100 PCIe", fp32=51.0, tf32=378.0, fp16=756.5, bf16=756.5, source="NVIDIA, H100 data sheet, halved"),
    Gpu(name=r"H100 NVL", fp32=60.0, tf32=417.5, fp16=835.5, bf16=835.5, source="NVIDIA, H100 data sheet, halved"),
    Gpu(name=r"H100 80GB HBM3", fp32=67.0, tf32=494.5, fp16=989.5, bf16=989.5, source="NVIDIA, H100 SXM data sheet, halved"),
    Gpu(name=r"H200", fp32=67.0, tf32=494.5, fp16=989.5, bf16=989.5, source="NVIDIA, H200 SXM data sheet, halved"),
    Gpu(name=r"H200 NVL", fp32=60.0, tf32=417.5, fp16=835.5, bf16=835.5, source="NVIDIA, H200 data sheet, halved"),
    Gpu(
        name=r"GH200 (480GB|120GB|144G HBM3e)",
        fp32=67.0,
        tf32=494.5,
        fp16=989.5,
        bf16=989.5,
        source="NVIDIA, GH200 Grace Hopper data sheet, halved",
    ),
)


def peak_of(name: str, precision: str, environment: Collection[str] = ()) -> Peak | None:
    """Of the GPU that nvidia-smi gives this name to; None where it is not known.

    fp32 is TF32 where there are units for it: so TensorFlow computes convolutions and products there, unless told not to.
    """
    gpu = next((gpu for gpu in GPUS if re.fullmatch(rf"(NVIDIA )?(Tesla )?{gpu.name}", name)), None)
    if gpu is None:
        return None
    chosen = "tf32" if precision == "fp32" and gpu.tf32 and NO_TF32 not in environment else precision
    tera: float | None = getattr(gpu, chosen)
    return None if tera is None else Peak(tera * 1e12, chosen.upper())
