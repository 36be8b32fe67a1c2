"""Whether an external command can be started, checked before anything is allocated or waited for."""

import os
import re
import shutil
import sys
from collections.abc import Sequence

from pytest_dtfperf.clusters.backends import BACKENDS
from pytest_dtfperf.clusters.named import ClusterConfig
from pytest_dtfperf.errors import UsageError, nearest, shown
from pytest_dtfperf.spec import Spec
from pytest_dtfperf.spec.command import names_in

_INTERPRETER = re.compile(r"(?:python|pypy)[0-9.]*|(?:ba|da|z|k)?sh")
_WITH_VALUE = ("-W", "-X", "-O", "-o")  # options of interpreters whose value is the next word


def check(spec: Spec, config: ClusterConfig) -> None:
    """Raise `UsageError` where a program or its script is not there. Only of this machine that can be known."""
    if not spec.command or not BACKENDS[config.backend].here:
        return
    folder = spec.command_dir or os.getcwd()
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder} for the command to run in: command_dir")
    program, script = spec.command[0], _script(spec.command)
    if os.sep in program:
        _check_file(program, folder)
    elif not names_in([program]):
        own = os.path.dirname(sys.executable)
        if not shutil.which(program, path=os.pathsep.join([own, os.environ.get("PATH", os.defpath)])):
            raise UsageError(f"cannot start {program}: there is no such program on this machine's PATH. {_HOW}")
    if script is not None:
        _check_file(script, folder)


_HOW = "A program in the folder itself is ./NAME; one that ends in .py is run by Python"


def _script(command: Sequence[str]) -> str | None:
    """The file that an interpreter is given; None where it is given none, or no interpreter is known to be."""
    if not _INTERPRETER.fullmatch(os.path.basename(command[0])):
        return None
    words = iter(command[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or "c" in word[1:2] or "m" in word[1:2] or word == "-s":
            return None
    return None


def _check_file(name: str, folder: str) -> None:
    if names_in([name]) or os.path.exists(os.path.join(folder, name)):
        return
    where = os.path.dirname(os.path.join(folder, name))
    there = sorted(os.listdir(where)) if os.path.isdir(where) else []
    found = nearest(os.path.basename(name), there)
    hint = f" Did you mean {shown(os.path.join(os.path.dirname(name), found))}?" if found else ""
    raise UsageError(f"there is no file {name} in {folder}.{hint}")
