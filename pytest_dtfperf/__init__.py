"""Detect when distributed TensorFlow training on a cluster is slower than its baseline, and explain why."""

from __future__ import annotations

TYPE_CHECKING = False  # every agent imports this file: the import of typing would be a fifth of its start
if TYPE_CHECKING:
    from typing import Any

    from pytest_dtfperf.report.dataframe import load as load
    from pytest_dtfperf.report.dataframe import published as published

__all__ = ["load", "published"]


def __getattr__(name: str) -> Any:
    """Import `load` and `published` at their first use: every host and every pytest imports this file."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("pytest_dtfperf.report.dataframe"), name)
