"""Which code trained: a hash of those parts of our training program that affect its speed.

A change of them makes another program, whose rates say nothing of the hosts'. Comments, docstrings and the way it is set out on
the page are no part of it. Read by path: training/ itself needs TensorFlow, which is not here, or takes seconds.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from pytest_dtfperf.spec import Spec

TRAINING = Path(__file__).parent.parent / "training"
# What makes data sets, and what runs another's program in the place of ours: no measured step passes through it.
_WITHOUT = ("making", "command.py", "program.py", "output.py")
_DIGITS = 12
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def program_of(spec: Spec) -> Mapping[str, str]:
    """The part of a fingerprint that says what was run; empty for another's program, whose changes are what is tested."""
    return {} if spec.command else {"training": training_hash()}


@cache
def training_hash(folder: Path = TRAINING) -> str:
    """The hash of the code in this folder. Takes some tenths of a second, once per process."""
    digest = hashlib.sha256()
    for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py")):
        if name.partition("/")[0] not in _WITHOUT:
            digest.update(f"{name}\n{meaning(Path(folder, name).read_text(encoding='utf-8'))}\n".encode())
    return digest.hexdigest()[:_DIGITS]


def meaning(source: str) -> str:
    """What a module says to Python, as text: the same for every version of Python that reads it, and however it is written."""
    return "".join(_words(ast.parse(source)))


def _words(node: object) -> Iterator[str]:
    """As `ast.dump`, but for empty fields, which that writes or not, and has or not, from version to version."""
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            said = _without_docstring(node) if name == "body" else value
            if said is not None and said != [] and name != "kind":  # "kind": whether a string was written as u"..."
                yield f" {name}="
                yield from _words(said)
        yield ")"
    elif isinstance(node, list):
        for each in node:
            yield from _words(each)
    else:
        yield repr(node)


def _without_docstring(node: ast.AST) -> object:
    body: object = getattr(node, "body", None)
    if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
        return node.body[1:]
    return body
