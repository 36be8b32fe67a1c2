"""Count what makes the code hard to read, and fail where a count is above its limit.

    python ci/code_limits.py           counts beside their limits and goals
    python ci/code_limits.py --list    also the duplicate class names, function names and modules that were counted

Each limit is the count when it was last lowered, or a little more. A change may lower a limit and must not raise
one, but for the number of lines, which grows with a feature.
Frequencies are per 10,000 lines of the package and of docs/; a word inside an identifier does not count.
"""

import argparse
import ast
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "pytest_dtfperf"
LONGEST_MODULE = 500  # lines
# Names that are a participle alone say neither what is done nor to what. These are names of the field, or of a protocol.
FIELD_NAMES = frozenset(
    ("allocated", "cached", "closed", "done", "failed", "fixed", "isolated", "locked", "packed", "published", "shared")
)
IRREGULAR = frozenset(
    (
        "asked",
        "begun",
        "bound",
        "built",
        "found",
        "given",
        "heard",
        "held",
        "kept",
        "known",
        "left",
        "lent",
        "made",
        "meant",
        "read",
        "said",
        "seen",
        "sent",
        "shown",
        "taken",
        "told",
    )
)
# Word: limit in the package, limit in docs. The goal of each is 4.5.
WORDS: Mapping[str, tuple[float, float]] = {
    "words": (4.5, 4.5),
    "told": (4.5, 4.5),
    "tell": (4.5, 4.5),
    "tells": (4.5, 4.5),
    "said": (4.5, 4.5),
    "says": (4.5, 4.5),
    "say": (4.5, 4.5),
    "nobody": (4.5, 4.5),
    "whose": (4.5, 4.5),
    "whoever": (4.5, 4.5),
    "who": (4.5, 4.5),
    "lies": (3.1, 4.5),
    "stands": (4.5, 4.5),
    "lend": (2.2, 0.0),
    "lent": (4.5, 3.6),
    "borrow": (0.0, 0.0),
    "ever": (3.1, 1.9),
    "meanwhile": (4.5, 4.5),
}
GOAL_OF_WORDS = 4.5


@dataclass(frozen=True)
class Count:
    """One count, its limit now and the goal."""

    name: str
    value: float
    limit: float
    goal: float

    @property
    def is_above(self) -> bool:
        return self.value > self.limit

    def __str__(self) -> str:
        mark = "  ABOVE ITS LIMIT" if self.is_above else ""
        return f"{self.name:44} {self.value:9,} {self.limit:9,} {self.goal:9,}{mark}"


@dataclass(frozen=True)
class Code:
    """The package's modules and the pages of docs/, as tracked by git."""

    modules: Mapping[str, str]  # path -> text
    pages: Mapping[str, str]

    @cached_property
    def trees(self) -> Mapping[str, ast.Module]:
        """The syntax tree of each module, by its path."""
        return {path: ast.parse(text) for path, text in self.modules.items()}

    @cached_property
    def functions(self) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """The path and node of each function and method."""
        return [(path, node) for path, tree in self.trees.items() for node in _iterate_functions(tree)]

    def count(self) -> list[Count]:
        """Return all counts."""
        frequencies = [_measure_frequencies(texts) for texts in (self.modules, self.pages)]
        return [
            Count("modules", len(self.modules), 367, 350),
            Count("lines of the package", sum(len(text.splitlines()) for text in self.modules.values()), 78_200, 52_000),
            Count(f"modules of more than {LONGEST_MODULE} lines", len(self.find_long_modules()), 0, 0),
            Count("lines of a function, median", statistics.median(_count_lines(each) for _, each in self.functions), 8, 8),
            Count("class names in several modules", len(self.find_duplicate_classes()), 5, 10),
            Count("functions named by a participle", len(self.find_participles()), 0, 0),
            *(
                Count(f"{word!r} per 10,000 lines of {where}", found[word], limit, GOAL_OF_WORDS)
                for word, limits in WORDS.items()
                for where, found, limit in zip(("code", "docs"), frequencies, limits, strict=True)
            ),
        ]

    def find_long_modules(self) -> list[str]:
        """Return the paths of modules that are too long."""
        return [path for path, text in self.modules.items() if len(text.splitlines()) > LONGEST_MODULE]

    def find_duplicate_classes(self) -> dict[str, list[str]]:
        """Return public class names that are defined in several modules, with their paths."""
        found: dict[str, list[str]] = {}
        for path, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(path)
        return {name: paths for name, paths in found.items() if len(paths) > 1}

    def find_participles(self) -> list[str]:
        """Return "path: name" of functions whose name is one participle. Properties are none: they read as attributes."""
        return [
            f"{path}: {node.name}"
            for path, node in self.functions
            if _is_participle(node.name.strip("_")) and not any(_is_property(each) for each in node.decorator_list)
        ]


def read_code() -> Code:
    """Return the code of this repository."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [path for path in listed.split("\0") if (ROOT / path).is_file()]

    def read(folder: str, ending: str) -> dict[str, str]:
        chosen = (path for path in paths if path.startswith(f"{folder}/") and path.endswith(ending))
        return {path: (ROOT / path).read_text(encoding="utf-8") for path in chosen}

    return Code(read(PACKAGE, ".py"), read("docs", ".md"))


def _iterate_functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield each function and method. No expression contains one, and most nodes are expressions."""
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        nodes += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _count_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_participle(name: str) -> bool:
    return (
        "_" not in name
        and name not in FIELD_NAMES
        and (name in IRREGULAR or (name.endswith("ed") and not name.endswith("eed")))
    )


def _is_property(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).rpartition(".")[2] in {"property", "cached_property", "setter"}


def _measure_frequencies(texts: Mapping[str, str]) -> dict[str, float]:
    """Return how often each word occurs per 10,000 lines, alone and not as a part of an identifier."""
    pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(WORDS)})(?![\w(=-])")
    lines = sum(len(text.splitlines()) for text in texts.values())
    counts = Counter(word for text in texts.values() for word in pattern.findall(text.lower()))
    return {word: round(1e4 * counts[word] / max(lines, 1), 1) for word in WORDS}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Count what makes the code hard to read; fail where a count is above its limit."
    )
    parser.add_argument("--list", action="store_true", help="show what is counted, too")
    shown = parser.parse_args(arguments)
    code = read_code()
    counts = code.count()
    print(f"{'':44} {'now':>9} {'limit':>9} {'goal':>9}")
    print("\n".join(map(str, counts)))
    if shown.list:
        print("\n".join(f"{name}: {', '.join(paths)}" for name, paths in sorted(code.find_duplicate_classes().items())))
        print("\n".join(sorted(code.find_participles())))
        print("\n".join(code.find_long_modules()))
    return int(any(count.is_above for count in counts))


if __name__ == "__main__":
    sys.exit(main())
