"""Find the configured backend of Keras on this host, without importing Keras: its import may fail with another backend."""

import json
import os
from contextlib import suppress

from pytest_dtfperf.errors import SpecError, show_value

VARIABLE = "KERAS_BACKEND"
TENSORFLOW = "tensorflow"


def check(model: str) -> None:
    """Raise `SpecError` if the backend is not TensorFlow."""
    backend, where = find_configured_backend()
    if backend != TENSORFLOW:
        raise SpecError(
            f"{model}: on this host {where} defines that Keras' backend is {show_value(backend)}, and tasks "
            f"train with {TENSORFLOW} "
            f'alone: change it there, or set environment=["{VARIABLE}={TENSORFLOW}"]'
        )


def describe_missing_backend(module: str | None) -> str:
    """Return a hint for a missing package if only a Keras backend needs it; else an empty string."""
    backend, where = find_configured_backend()
    return f", the backend of Keras in {where}: it must be {TENSORFLOW}" if module == backend != TENSORFLOW else ""


def find_configured_backend() -> tuple[str, str]:
    """Return the backend's name and its source: the variable, or Keras' own file."""
    if name := os.environ.get(VARIABLE):
        return name, VARIABLE
    file = os.path.join(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"), "keras.json")
    found = None
    with suppress(OSError, ValueError, RecursionError), open(file, encoding="utf-8") as text:
        found = json.load(text)
    return (str(found.get("backend") or TENSORFLOW) if isinstance(found, dict) else TENSORFLOW), file
