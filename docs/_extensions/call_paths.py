"""The call paths of docs/how-a-run-works.md: read from its tables, checked against the code, and drawn as its figure.

    python docs/_extensions/call_paths.py     writes docs/how-a-run-works.svg

Each table of the page is one path: its rows name a module and the functions that run there, in the order of their first call.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "pytest_dtfperf"
PAGE = REPOSITORY / "docs" / "how-a-run-works.md"
FIGURE = PAGE.with_suffix(".svg")

ROW = re.compile(r"(?m)^\| `(?P<module>[\w/]+\.py)` \| (?P<functions>`.*?`) \| (?P<description>.*?) \|$")
ON_HOSTS = ("node/", "training/")  # folders with code that runs on the hosts


@dataclass(frozen=True)
class Step:
    """One row: a module, and the qualified names of the functions that run there."""

    module: str
    functions: Sequence[str]

    @property
    def path(self) -> Path:
        return REPOSITORY / PACKAGE / self.module

    @property
    def dotted_name(self) -> str:
        return f"{PACKAGE}.{self.module.removesuffix('.py').replace('/', '.')}"

    @property
    def is_on_host(self) -> bool:
        return self.module.startswith(ON_HOSTS)


@dataclass(frozen=True)
class CallPath:
    """One table of the page, with the heading of its section."""

    title: str
    steps: Sequence[Step]


def read_paths(page: str) -> list[CallPath]:
    """Return the call paths of a page, in its order. `.name` in a cell is a method of the class before it."""
    paths = []
    for section in page.split("\n## ")[1:]:
        steps = [Step(row["module"], _qualify(re.findall(r"`(.*?)`", row["functions"]))) for row in ROW.finditer(section)]
        if steps:
            paths.append(CallPath(section.partition("\n")[0], steps))
    return paths


def _qualify(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        found.append(f"{found[-1].partition('.')[0]}{name}" if name.startswith(".") else name)
    return found


def find_problems(path: CallPath) -> list[str]:
    """Return the modules and functions that do not exist, and those that the path's first function does not lead to."""
    problems = []
    left: list[tuple[Step, str, ast.AST]] = []
    for step in path.steps:
        if not step.path.is_file():
            problems.append(f"{step.module} does not exist")
            continue
        for name in step.functions:
            if node := find_function(step.path, name):
                left.append((step, name, node))
            else:
                problems.append(f"{step.module} has no {name}")
    called = _list_references(left.pop(0)[2]) if left else set()
    while found := [each for each in left if _is_called(each[0], each[1], called)]:
        left = [each for each in left if each not in found]
        called = called.union(*(_list_references(node) for _, _, node in found))
    return problems + [f"{path.title}: no function of the path calls {name} of {step.module}" for step, name, _ in left]


def find_function(path: Path, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return a function or a method of a module by its qualified name."""
    body: list[ast.stmt] = _parse(path).body
    *classes, function = name.split(".")
    for each in classes:
        body = next((node.body for node in body if isinstance(node, ast.ClassDef) and node.name == each), [])
    return next(
        (node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function), None
    )


def _is_called(step: Step, name: str, called: set[str]) -> bool:
    """Return whether a function is called by its name, as "module:name", by its row of a table, or as the module's program.

    Constructors and context managers are called by the name of their class.
    """
    owner, _, function = name.rpartition(".")
    names = {owner} if function.startswith("__") else {function}
    if names & called:
        return True
    tables = {
        reference
        for node in ast.walk(_parse(step.path))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value in called
        for reference in _list_references(value)
    }
    entries = {f"{step.dotted_name}:{owner or function}", *([step.dotted_name] if function == "main" else [])}
    return bool(names & tables or entries & _list_strings())


def _list_references(node: ast.AST) -> set[str]:
    """Return the names, attributes and strings in a piece of code."""
    found = set()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=str(name)):
                found.add(name)
    return found


@cache
def _list_strings() -> frozenset[str]:
    """Return the strings of the package that name a module, or a name in one."""
    paths = (REPOSITORY / PACKAGE).rglob("*.py")
    return frozenset(
        node.value
        for path in paths
        if f'"{PACKAGE}.' in path.read_text(encoding="utf-8")  # to parse all modules takes seconds
        for node in ast.walk(_parse(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(f"{PACKAGE}.")
    )


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# The figure. Sizes are in pixels; text is monospaced, 6.6 pixels a character at 11 pixels.
WIDTH, GAP, MARGIN = 310, 24, 16
LINE, PADDING, BETWEEN = 14, 8, 16
COLOURS = {False: "#e8f0fb", True: "#e9f6ea"}
LEGEND = {False: "in the process of pytest", True: "on a host"}


def draw(paths: Sequence[CallPath]) -> str:
    """Return the figure as SVG: a column for each path, a box for each module, from the first call to the last."""
    columns = [list(_draw_column(path, MARGIN + number * (WIDTH + GAP))) for number, path in enumerate(paths)]
    height = max(_measure_column(path) for path in paths) + 2 * MARGIN + LINE
    width = 2 * MARGIN + len(paths) * WIDTH + (len(paths) - 1) * GAP
    legend = [
        f'<rect x="{MARGIN + 220 * number}" y="{height - 22}" width="12" height="12" fill="{COLOURS[where]}" stroke="#555"/>'
        f'<text x="{MARGIN + 220 * number + 18}" y="{height - 12}">{LEGEND[where]}</text>'
        for number, where in enumerate(LEGEND)
    ]
    size = f'width="{width}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="monospace" font-size="11">',
            '<rect width="100%" height="100%" fill="#fff"/>',
            *(line for column in columns for line in column),
            *legend,
            "</svg>\n",
        ]
    )


def _measure_box(step: Step) -> int:
    return 2 * PADDING + LINE * (1 + len(step.functions)) - 4


def _measure_column(path: CallPath) -> int:
    return 30 + sum(_measure_box(step) + BETWEEN for step in path.steps)


def _draw_column(path: CallPath, x: int) -> Iterator[str]:
    yield f'<text x="{x}" y="{MARGIN + 12}" font-size="14" font-weight="bold">{escape(path.title)}</text>'
    y = MARGIN + 26
    for number, step in enumerate(path.steps):
        height = _measure_box(step)
        if number:
            middle = x + WIDTH // 2
            yield f'<path d="M{middle} {y - BETWEEN} V{y - 4} m-4 -5 l4 5 l4 -5" fill="none" stroke="#555"/>'
        yield f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{height}" fill="{COLOURS[step.is_on_host]}" stroke="#555"/>'
        yield f'<text x="{x + PADDING}" y="{y + PADDING + 9}" font-weight="bold">{escape(step.module)}</text>'
        for line, name in enumerate(step.functions, start=1):
            yield f'<text x="{x + 2 * PADDING}" y="{y + PADDING + 9 + LINE * line}">{escape(name)}()</text>'
        y += height + BETWEEN


if __name__ == "__main__":
    FIGURE.write_text(draw(read_paths(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
    print(FIGURE)
