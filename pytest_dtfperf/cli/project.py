"""The project's configuration of pytest, read for commands that run without pytest.

The file is searched as pytest does, from the current folder: https://docs.pytest.org/en/stable/reference/customize.html
"""

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import iniconfig

from pytest_dtfperf.errors import UNEXPANDED, UsageError
from pytest_dtfperf.history.where import NEVER
from pytest_dtfperf.node.files import read_text

Values = Mapping[str, Any]


def find_configured_path(name: str, start: Path | None = None) -> Path | None:
    """Return the path of an option such as `dtfperf_baselines`; a relative one is relative to the file.

    None if it is not set. Raises `UsageError` if the file cannot be read, or the value is no path.
    """
    found = _find_configuration(start)
    return _make_path(found[0], name, found[1].get(name)) if found else None


def find_configured_history(start: Path | None = None) -> Path | str | None:
    """Return the same for `dtfperf_history`, which may also be a URL or a keyword."""
    found = _find_configuration(start)
    name = "dtfperf_history"
    value = found[1].get(name) if found else None
    if isinstance(value, str) and ("://" in value or value == NEVER):
        return value
    return _make_path(found[0], name, value) if found else None


def find_configuration_file(start: Path) -> Path | None:
    """Return pytest's configuration file in this folder or one above. Raises `UsageError` if it cannot be read."""
    found = _find_configuration(start)
    return found[0] if found else None


def _find_configuration(start: Path | None) -> tuple[Path, Values] | None:
    """Return pytest's configuration file and its values."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        for file, read in _FILES.items():
            path = folder / file
            if not path.is_file():
                continue
            try:
                values = read(path)
            except OSError as exc:
                raise UsageError(f"cannot read {path}: {exc.strerror}") from exc
            except (ValueError, iniconfig.ParseError) as exc:
                raise UsageError(f"cannot read {path}: {exc}") from exc
            if values is not None:
                return path, values
    return None


def _make_path(file: Path, name: str, value: object) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str) or "\0" in value:
        raise UsageError(f"{file}: {name} takes a path, not {value!r}")
    if UNEXPANDED.match(value):
        raise UsageError(f"{file}: {name} takes a path, not {value!r}: ~ and $NAME are not expanded. Give the full path")
    return file.parent / value


def _read_pytest_toml(path: Path) -> Values | None:
    table = tomllib.loads(read_text(path)).get("pytest")
    return table if isinstance(table, dict) else {}  # this file counts even if it is empty


def _read_pyproject(path: Path) -> Values | None:
    tool = tomllib.loads(read_text(path)).get("tool")
    table = tool.get("pytest") if isinstance(tool, dict) else None
    if not isinstance(table, dict):
        return None
    old = table.get("ini_options")
    return old if isinstance(old, dict) else table


def _make_section_reader(name: str, *, counts_if_empty: bool = False) -> Callable[[Path], Values | None]:
    def read_section(path: Path) -> Values | None:
        sections = iniconfig.IniConfig(str(path), data=read_text(path)).sections
        return sections.get(name, {} if counts_if_empty else None)

    return read_section


_FILES: Mapping[str, Callable[[Path], Values | None]] = {  # in pytest's order: the first file with pytest's section counts
    "pytest.toml": _read_pytest_toml,
    ".pytest.toml": _read_pytest_toml,
    "pytest.ini": _make_section_reader("pytest", counts_if_empty=True),
    ".pytest.ini": _make_section_reader("pytest", counts_if_empty=True),
    "pyproject.toml": _read_pyproject,
    "tox.ini": _make_section_reader("pytest"),
    "setup.cfg": _make_section_reader("tool:pytest"),
}
