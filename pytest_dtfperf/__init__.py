"""Tells whether distributed TensorFlow training on a cluster is as fast as it should be, and says why when it is not."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dtfperf.report.frame import load as load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`load`, imported when it is asked for: this file is imported on every host, and by every pytest."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return import_module("pytest_dtfperf.report.frame").load
