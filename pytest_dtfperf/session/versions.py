"""Versions of what decides over the numbers, without importing any of it."""

import platform
from collections.abc import Sequence
from importlib import metadata

PACKAGES = ("pytest-dtfperf", "tensorflow", "tensorflow-cpu")


def versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Of Python, of `more` packages and of our own and TensorFlow's, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in (*more, *PACKAGES):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
