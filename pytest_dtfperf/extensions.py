"""Add rows of other installed packages to tables, by entry points.

In the pyproject.toml of such a package:

    [project.entry-points."pytest_dtfperf.models"]
    linear = "my_models:LINEAR"          # a `pytest_dtfperf.spec.Model`

The name is known as soon as the package is installed, its row is imported at its first use, and entry points are
searched only for a name that this package lacks. An added row never replaces one of this package.
"""

import importlib
from collections import UserDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_dtfperf.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints

GROUPS = ("pytest_dtfperf.models", "pytest_dtfperf.inputs", "pytest_dtfperf.backends", "pytest_dtfperf.exports")

Row = TypeVar("Row")


class Table(UserDict[str, Row]):
    """Rows by name: this package's first, in their order, then those of others, by name.

    Looking up or iterating over values raises `UsageError` for a registered row that cannot be imported.
    """

    def __init__(self, group: str, kind: type[Row], rows: Mapping[str, Row]) -> None:
        self.group = group
        self._kind = kind
        self._added: dict[str, Row] = {}  # imported so far
        super().__init__(rows)

    def __missing__(self, name: str) -> Row:
        if name not in self._added:
            self._added[name] = _row(_entry_points(self.group)[name], self._kind)
        return self._added[name]

    def __contains__(self, name: object) -> bool:
        return name in self.data or name in _entry_points(self.group)

    def __iter__(self) -> Iterator[str]:
        yield from self.data
        yield from (name for name in _entry_points(self.group) if name not in self.data)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def package_of(self, name: str) -> str | None:
        """Return the package of a row, as "my-models 1.0"; None for this package's, and for unknown names."""
        points = () if name in self.data else _entry_points(self.group).get(name, ())
        return _package(points[0]) if points else None


def packages() -> dict[str, str]:
    """Return the versions of all installed packages that add rows, by name."""
    points = (point for group in GROUPS for named in _entry_points(group).values() for point in named)
    return {point.dist.name: point.dist.version for point in points if point.dist}


@cache
def _entry_points(group: str) -> Mapping[str, Sequence["EntryPoint"]]:
    """Return entry points by name, in order; several of one name if packages conflict."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in _read_entry_points().select(group=group):
        found[point.name].append(point)
    return dict(sorted(found.items()))


@cache
def _read_entry_points() -> "EntryPoints":
    """Return the entry points of all packages: the search reads a file of each."""
    from importlib.metadata import entry_points  # 30 ms, which a process that trains need not spend

    found: Any = entry_points()  # its type differs between Python 3.11 and later; both can select
    return cast("EntryPoints", found)


def _row(points: Sequence["EntryPoint"], kind: type[Row]) -> Row:
    point, *others = points
    where = f"the entry point {point.group}: {point.name} = {point.value!r} of {_package(point)}"
    if others:
        raise UsageError(f"{where} has a rival of the same name in {_package(others[0])}: uninstall one of the two packages.")
    try:
        row = point.load()
    except KeyboardInterrupt as error:  # show a user who has waited which package it was
        raise KeyboardInterrupt(f"while {where} was imported") from error
    except (Exception, SystemExit) as error:  # foreign code may fail in any way
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(row, kind):
        raise UsageError(f"{where} must be a {kind.__module__}.{kind.__qualname__}, not {type(row).__qualname__}.")
    return row


def _package(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"


def load(implementation: str) -> Any:
    """Return the object that "module:name" names."""
    module, _, name = implementation.partition(":")
    return getattr(importlib.import_module(module), name)
