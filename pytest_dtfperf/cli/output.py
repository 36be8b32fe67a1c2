"""Write JSON for programs, and files, and ask questions.

With --json, stdout has JSON and nothing else. All other output goes to stderr, including that of packages that add models.
Errors are the same as without --json: one line on stderr and the exit code, as with gh, docker, kubectl and uv.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.files import replace_file
from pytest_dtfperf.node.owner import Owner

_YES = ("y", "yes")
_for_programs: TextIO | None = None  # stdout, while other output is redirected


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Let only `print_json` write to stdout, within the context."""
    global _for_programs
    before, _for_programs = _for_programs, sys.stdout
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _for_programs = before


def print_json(document: Mapping[str, Any]) -> None:
    """Print on one line, and flush. Characters that are not ASCII are escaped, so that any locale can print it."""
    print(json.dumps(document, allow_nan=False), file=_for_programs or sys.stdout, flush=True)


def print_remark(message: str) -> None:
    """Print a remark on stderr."""
    print(f"dtfperf: {message}", file=sys.stderr)


def format_other_machines(owners: Iterable[Owner]) -> str:
    """Return a hint on jobs or runs of sessions on other machines, which were left alone; empty if there are none."""
    hosts = sorted({owner.location for owner in owners})
    if not hosts:
        return ""
    return f" Of those of {', '.join(hosts)} the state is not known here: run this command there, or add --all if you are sure."


def write_file(path: Path, content: bytes) -> None:
    """Write a file atomically, and report it on stderr. Raises `UsageError`."""
    with _translate_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a pipe or a device is written to, not replaced
            path.write_bytes(content)
        else:
            with replace_file(path) as file:
                file.write(content)
    print_remark(f"written: {path}")


def write_new_file(path: Path, content: bytes) -> bool:
    """Write a file atomically; return False if it exists already. Raises `UsageError`."""
    with _translate_errors(path):
        if path.exists() or path.is_symlink():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as file:
            file.write(content)
    return True


@contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror or exc}") from exc


def confirm(question: str) -> bool:
    """Ask on stderr, and return whether the user agrees. Raises `UsageError` if no user can be asked."""
    if not sys.stdin.isatty():
        raise UsageError("nothing was changed: there is no terminal for the question; add --yes to confirm")
    print(f"dtfperf: {question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = sys.stdin.readline()
    except UnicodeDecodeError:  # undecodable input is no agreement
        return False
    if not answer:  # Ctrl-D, which does not move the cursor
        print(file=sys.stderr)
    return answer.strip().lower() in _YES
