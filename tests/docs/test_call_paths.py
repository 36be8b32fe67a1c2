"""docs/how-a-run-works.md is a map of the code as it is: its modules, its functions, its call paths and its figure."""

import importlib
import sys
from types import ModuleType

import pytest

from tests.docs.pages import REPOSITORY, source

MOST_MODULES = 15  # of one path


def load_call_paths() -> ModuleType:
    """Import the module that reads and draws the paths, which is not in a package."""
    extensions = str(REPOSITORY / "docs" / "_extensions")
    sys.path.insert(0, extensions)
    try:
        return importlib.import_module("call_paths")
    finally:
        sys.path.remove(extensions)


call_paths = load_call_paths()
PATHS = {path.title: path for path in call_paths.read_paths(source("docs/how-a-run-works.md"))}


def test_map_has_three_paths() -> None:
    """The page has the paths of a measurement, an allocation and an explanation."""
    assert list(PATHS) == ["A measurement", "An allocation", "An explanation"]


@pytest.mark.parametrize("title", PATHS)
def test_path_is_short(title: str) -> None:
    """A path has at most 15 modules, each of them once."""
    modules = [step.module for step in PATHS[title].steps]
    assert len(modules) == len(set(modules)) <= MOST_MODULES


@pytest.mark.parametrize("title", PATHS)
def test_path_is_that_of_the_code(title: str) -> None:
    """Each module and function of a path exists, and the first function leads to it."""
    assert call_paths.find_problems(PATHS[title]) == []


def test_figure_is_drawn_from_the_page() -> None:
    """The figure is what `python docs/_extensions/call_paths.py` draws."""
    drawn = call_paths.draw(list(PATHS.values()))
    assert call_paths.FIGURE.read_text(encoding="utf-8") == drawn, "run python docs/_extensions/call_paths.py"


TABLE = "\n## A path\n\n| Module | Functions | Description |\n|---|---|---|\n"
FIRST = "| `session/context.py` | `SessionContext.run` | x |\n"
BROKEN = {
    "| `session/nowhere.py` | `run` | x |": ["session/nowhere.py does not exist"],
    "| `launch/launcher.py` | `Launcher.walk` | x |": ["launch/launcher.py has no Launcher.walk"],
    "| `launch/launcher.py` | `Launcher.run`, `.layout` | x |": [
        "A path: no function of the path calls Launcher.layout of launch/launcher.py"
    ],
    "| `launch/launcher.py` | `Launcher.run` | x |": [],
}


@pytest.mark.parametrize("row", BROKEN)
def test_path_that_is_not_of_the_code_is_found(row: str) -> None:
    """A missing module, a missing function and a function without a caller are problems."""
    (path,) = call_paths.read_paths(f"{TABLE}{FIRST}{row}\n")
    assert call_paths.find_problems(path) == BROKEN[row]
