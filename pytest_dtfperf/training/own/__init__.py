"""Train the user's own models: Keras models, and functions of tensors.

The configured backend of Keras is found without importing Keras: its import may fail with another backend. Modules that came
with an order are imported as if they were in a folder, and are never written to disk.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import CodeType, ModuleType

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


class SentCode(MetaPathFinder, InspectLoader):
    """A finder of sent modules. It precedes installed modules of the same name: the importer meant the sent one."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        """Make a finder of `sources`, the text of each file by its path."""
        self._sources = {_name_module(path): (path, text) for path, text in sources.items()}
        self._packages = {_name_module(path) for path in sources if path.endswith("__init__.py")}
        # A module in a folder that is no package is found below its name all the same.
        folders = {".".join(path.split("/")[:depth]) for path in sources for depth in range(1, path.count("/") + 1)}
        self._folders = folders - self._packages

    def install(self) -> None:
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name in self._sources:
            return spec_from_loader(name, self, origin=self._origin(name), is_package=name in self._packages)
        if name in self._folders and PathFinder.find_spec(name, path) is None:
            return spec_from_loader(name, None, is_package=True)
        return None

    def is_package(self, name: str) -> bool:
        return name in self._packages

    def get_source(self, name: str) -> str:
        return self._sources[name][1]

    def get_code(self, name: str) -> CodeType:
        return self.source_to_code(self.get_source(name), self._origin(name))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self._origin(module.__name__)
        super().exec_module(module)

    def _origin(self, name: str) -> str:
        """Return the file name in tracebacks, which Python asks for here."""
        return f"<sent>/{self._sources[name][0]}"


def _name_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
