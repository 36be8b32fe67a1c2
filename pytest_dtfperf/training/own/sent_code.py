"""Import modules that came with an order, as if they were in a folder. They are never written to disk."""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import spec_from_loader
from types import CodeType, ModuleType


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
