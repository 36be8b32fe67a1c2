"""Efficiencies and overheads as published tables have them, from single rows."""

from typing import Any

from pytest_dtfperf.baselines.references import find
from pytest_dtfperf.datamodel.measurement import io_overhead
from pytest_dtfperf.errors import BaselineFileError


def published_efficiency(
    system: str, gpus: int, *, model: str = "inception3", batch_size: int = 64, data: str = "synthetic", **wanted: Any
) -> float:
    """Return a published system's scaling efficiency, relative to its own 1-device row. Raises `BaselineFileError`."""
    reference = find(system, gpus, model=model, batch_size=batch_size, data=data, **wanted)
    if reference.efficiency is None:
        raise BaselineFileError(f"{reference.citation} has no 1-device row to derive an efficiency from")
    return reference.efficiency


def published_overhead(
    system: str, gpus: int, *, model: str = "inception3", batch_size: int = 64, data: str = "imagenet", **wanted: Any
) -> float:
    """Return a published system's cost of real input, as a fraction of the synthetic rate; may be negative."""
    rates = [
        find(system, gpus, model=model, batch_size=batch_size, data=kind, **wanted).images_per_sec
        for kind in ("synthetic", data)
    ]
    return io_overhead(*rates)
