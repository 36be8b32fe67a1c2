"""Import TensorFlow for the first time in a process. Import this module before any other that imports TensorFlow.

Keras, which TensorFlow imports, looks for optional packages that tasks do not use. Where they are installed they would take 3
of the import's 6.7 CPU seconds, and 120 MB of every host's zygote. Keras also gets TensorFlow as its backend, whatever the
host's environment sets: another backend would be imported, too, and an unknown one would end every import of TensorFlow.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = ("matplotlib", "pandas", "scipy", "sklearn")


@contextmanager
def hide_packages(names: tuple[str, ...]) -> Iterator[None]:
    """Within the context, treat packages that have not been imported yet as if they were not installed."""
    added = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(added))  # type: ignore[arg-type]  # None: Python's own mark for "not to be had"
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


@contextmanager
def use_tensorflow_backend() -> Iterator[None]:
    """Within the context, set TensorFlow as Keras' backend. Other backends are refused where a Keras model is trained."""
    before = os.environ.get("KERAS_BACKEND")
    os.environ["KERAS_BACKEND"] = "tensorflow"
    try:
        yield
    finally:
        if before is None:
            del os.environ["KERAS_BACKEND"]
        else:
            os.environ["KERAS_BACKEND"] = before


with hide_packages(HIDDEN), use_tensorflow_backend():
    import tensorflow as tf  # noqa: F401 - for its being there
