"""Tables to which other installed packages add rows, by entry points. In the pyproject.toml of such a package:

    [project.entry-points."pytest_dtfperf.models"]
    linear = "my_models:LINEAR"          # a `pytest_dtfperf.spec.Model`

The name is known as soon as the package is installed, its row is imported when somebody asks for it, and no entry point is
looked for before a name is asked for that this package has not. What a package adds never takes the place of a row of ours.
"""

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

    Looking up or iterating over values raises `UsageError` for a row that is promised and cannot be had.
    """

    def __init__(self, group: str, kind: type[Row], rows: Mapping[str, Row]) -> None:
        self.group = group
        self._kind = kind
        self._added: dict[str, Row] = {}  # as far as somebody has asked for them
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
        """Whose row it is, as "my-models 1.0"; None for ours, and for a name that nobody has."""
        points = () if name in self.data else _entry_points(self.group).get(name, ())
        return _package(points[0]) if points else None


def packages() -> dict[str, str]:
    """The versions of all installed packages that add something, by name."""
    points = (point for group in GROUPS for named in _entry_points(group).values() for point in named)
    return {point.dist.name: point.dist.version for point in points if point.dist}


@cache
def _entry_points(group: str) -> Mapping[str, Sequence["EntryPoint"]]:
    """By name, in order; several of one name where packages are at odds."""
    found: dict[str, list[EntryPoint]] = defaultdict(list)
    for point in _read_entry_points().select(group=group):
        found[point.name].append(point)
    return dict(sorted(found.items()))


@cache
def _read_entry_points() -> "EntryPoints":
    """All there are, of all packages: to look for them reads a file of each."""
    from importlib.metadata import entry_points  # 30 ms, which a process that trains need not spend

    found: Any = entry_points()  # of another type in Python 3.11 than in later ones; both can select
    return cast("EntryPoints", found)


def _row(points: Sequence["EntryPoint"], kind: type[Row]) -> Row:
    point, *others = points
    where = f"the entry point {point.group}: {point.name} = {point.value!r} of {_package(point)}"
    if others:
        raise UsageError(f"{where} has a rival of the same name in {_package(others[0])}: uninstall one of the two packages.")
    try:
        row = point.load()
    except KeyboardInterrupt as error:  # whoever has waited for it long enough is told what for
        raise KeyboardInterrupt(f"while {where} was imported") from error
    except (Exception, SystemExit) as error:  # it is another's code, which may fail in any way
        raise UsageError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(row, kind):
        raise UsageError(f"{where} must be a {kind.__module__}.{kind.__qualname__}, not {type(row).__qualname__}.")
    return row


def _package(point: "EntryPoint") -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown package"
