"""Train the user's own models: Keras models, and functions of tensors.

The configured backend of Keras is found without importing Keras: its import may fail with another backend.
"""

import json
import os
from contextlib import suppress

from pytest_dtfperf.errors import DtfPerfError, SpecError, show_value

MOST_CHARACTERS = 300


def describe_error(error: BaseException) -> str:
    """Return the kind of an error of the user's code and the first line of its message."""
    first = str(error).strip().partition("\n")[0][:MOST_CHARACTERS]
    return first if isinstance(error, DtfPerfError) else f"{type(error).__name__}: {first}".removesuffix(": ")


KERAS_BACKEND = "KERAS_BACKEND"
TENSORFLOW = "tensorflow"


def check_keras_backend(model: str) -> None:
    """Raise `SpecError` if the backend is not TensorFlow."""
    backend, where = find_keras_backend()
    if backend != TENSORFLOW:
        raise SpecError(
            f"{model}: on this host {where} defines that Keras' backend is {show_value(backend)}, and tasks "
            f"train with {TENSORFLOW} "
            f'alone: change it there, or set environment=["{KERAS_BACKEND}={TENSORFLOW}"]'
        )


def describe_missing_backend(module: str | None) -> str:
    """Return a hint for a missing package if only a Keras backend needs it; else an empty string."""
    backend, where = find_keras_backend()
    return f", the backend of Keras in {where}: it must be {TENSORFLOW}" if module == backend != TENSORFLOW else ""


def find_keras_backend() -> tuple[str, str]:
    """Return the backend's name and its source: the variable, or Keras' own file."""
    if name := os.environ.get(KERAS_BACKEND):
        return name, KERAS_BACKEND
    file = os.path.join(os.environ.get("KERAS_HOME") or os.path.expanduser("~/.keras"), "keras.json")
    found = None
    with suppress(OSError, ValueError, RecursionError), open(file, encoding="utf-8") as text:
        found = json.load(text)
    return (str(found.get("backend") or TENSORFLOW) if isinstance(found, dict) else TENSORFLOW), file
