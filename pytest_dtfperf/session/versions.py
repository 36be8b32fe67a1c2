"""Versions of what decides over the numbers, without importing any of it."""

import platform
from collections.abc import Sequence
from importlib import metadata

from pytest_dtfperf import extensions

PACKAGES = ("pytest-dtfperf", "tensorflow", "tensorflow-cpu")


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Of Python, of `more` packages, of our own and TensorFlow's, and of those that add to our tables; as far as installed."""
    found = {"python": platform.python_version(), **extensions.packages()}
    for package in (*more, *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
