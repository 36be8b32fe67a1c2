"""Tells whether distributed TensorFlow training on a cluster is as fast as it should be, and says why when it is not."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_dtfperf.report.frame import load as load
    from pytest_dtfperf.report.frame import published as published

__all__ = ["load", "published"]


def __getattr__(name: str) -> Any:
    """`load` and `published`, imported when they are asked for: this file is imported on every host, and by every pytest."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("pytest_dtfperf.report.frame"), name)
