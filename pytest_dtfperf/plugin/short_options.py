"""The short names of our options: `--gpus` means `--dtfperf-gpus` wherever nobody else wants that name.

pytest takes no option back, and others register theirs before us, after us, and from conftests even while tests are collected.
So a short name is never registered: once pytest has loaded what it loads at its start, those on the command line that nobody
has registered are written out as long ones.
"""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.files import read_text
from pytest_dtfperf.plugin.options import OPTIONS, WRITTEN, Option

INI = "dtfperf_short_options"
PREFIX = "--dtfperf-"
PYTESTS = ("pytest", "py.test", "__main__.py")  # sys.argv[0] of pytest's own programs; `python -m pytest` is the last

_NUMBER_BELOW_0 = re.compile(r"-\d+|-\d*\.\d+")  # a value for argparse, though it begins as an option does


@dataclass(frozen=True)
class GivenOption:
    """One of our options, as the command line has it."""

    option: Option
    name: str  # as it was written: "--gpus" or "--dtfperf-gpus"
    value: str | None  # None: it needs one and has none
    apart: bool = False  # its value stands behind a blank

    def word(self, name: str) -> str:
        """In one word, by that name."""
        return name if self.value is None else f"{name}={self.value}"


def add(parser: pytest.Parser) -> None:
    text = "whether the options of dtfperf may be written without their prefix, where nobody else has such an option"
    parser.addini(INI, text, type="bool", default=True)


def write_out_long(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Called before conftests are looked for beside the tests: `--dtfperf-dry-run test.py` names a test, not a value."""
    found = list(read(args, lambda word: False))
    if any(isinstance(each, GivenOption) for each in found):
        args[:] = _words(found)
        config.known_args_namespace.file_or_dir = parser.parse_known_args(args).file_or_dir


def write_out(config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Called when conftests have registered their options. Raises `UsageError`."""
    args[:] = _with_files(args)
    is_free = nobodys(config, parser, args)
    found = list(read(args, is_free))
    given = [each for each in found if isinstance(each, GivenOption)]
    keep_root(config, is_free)
    args[:] = _words(found)
    config.stash[WRITTEN] = {each.option.field: each.name for each in given}
    if config.known_args_namespace.help:
        _show(config, parser)


def read(words: Sequence[str], is_free: Callable[[str], bool]) -> Iterator[GivenOption | str]:
    """The command line with our options told apart. `is_free`: whether nobody else knows a word such as `--gpus=2`."""
    left = list(words)
    while left:
        word = left.pop(0)
        if word == "--":  # behind it are tests, whatever they look like
            yield from (word, *left)
            return
        name, has_value, value = word.partition("=")
        option = _option(name)
        if option is None or not (name.startswith(PREFIX) or is_free(word)):
            yield word
        elif has_value:
            yield GivenOption(option, name, value)
        elif left and _is_value(option, left[0]):
            yield GivenOption(option, name, left.pop(0), apart=True)
        else:
            yield GivenOption(option, name, option.bare)


def _option(name: str) -> Option | None:
    return next((option for option in OPTIONS if name in (f"--{option.name}", PREFIX + option.name)), None)


def _is_value(option: Option, word: str) -> bool:
    """Whether the word behind an option is its value. Where it needs none, only what it can read is: `--dry-run test.py`."""
    if option.bare is None:
        return not word.startswith("-") or bool(_NUMBER_BELOW_0.fullmatch(word))
    try:
        option.read(word)
    except UsageError:
        return False
    return True


def _words(found: Iterable[GivenOption | str]) -> list[str]:
    """For pytest's parser, which knows the long names."""
    return [each if isinstance(each, str) else each.word(PREFIX + each.option.name) for each in found]


def nobodys(config: pytest.Config, parser: pytest.Parser, args: Sequence[str]) -> Callable[[str], bool]:
    """Tells words apart that nobody knows. The parser is asked only if some word may be ours."""
    if not config.getini(INI) or not any(_option(word.partition("=")[0]) for word in args):
        return lambda word: False
    try:
        unknown = parser.parse_known_and_unknown_args(args)[1]
    except pytest.UsageError:  # pytest is about to say so itself
        unknown = []
    return frozenset(unknown).__contains__


def _with_files(args: Sequence[str]) -> list[str]:
    """With the words of `@FILE` in its place if some are ours; a file that cannot be read is left to pytest."""
    found = []
    for arg in args:
        words = [arg]
        if arg.startswith("@"):
            with suppress(OSError):
                words = read_text(arg[1:]).splitlines()
        found += words if any(_option(word.partition("=")[0]) for word in words) else [arg]
    return found


def keep_root(config: pytest.Config, is_free: Callable[[str], bool]) -> None:
    """Start pytest anew where it has taken a value of ours for the path of a test.

    It finds its root directory, and the ini file there, before it knows our options: in `--baselines ../theirs` the value looks
    like a test of another project. Raises `UsageError` where pytest is not a program of its own, which could be started anew.
    """
    given = [*config.invocation_params.args], shlex.split(os.environ.get("PYTEST_ADDOPTS", ""))
    own, added = (list(read([str(word) for word in words], is_free)) for words in given)
    folder = config.invocation_params.dir
    taken = [
        each for each in (*own, *added) if isinstance(each, GivenOption) and each.apart and _is_path(folder, each.value or "")
    ]
    if not taken:
        return
    in_one = [[each if isinstance(each, str) else each.word(each.name) for each in words] for words in (own, added)]
    start = len(sys.orig_argv) - len(given[0])
    if os.path.basename(sys.argv[0]) not in PYTESTS or sys.orig_argv[start:] != given[0]:
        one = taken[0]
        raise UsageError(
            f"{one.name} {one.value}: pytest takes what stands behind a blank for a test, and goes by the ini file above it: "
            f"write {one.word(one.name)}"
        )
    _start_anew(folder, [*sys.orig_argv[:start], *in_one[0]], shlex.join(in_one[1]))


def _start_anew(folder: Path, command: list[str], addopts: str) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.chdir(folder)
    os.execve(sys.executable, command, {**os.environ, "PYTEST_ADDOPTS": addopts})


def _is_path(folder: Path, text: str) -> bool:
    try:
        return (folder / text.partition("::")[0]).exists()
    except (OSError, ValueError):  # too long for a name, or not one: no path of a test either
        return False


def _show(config: pytest.Config, parser: pytest.Parser) -> None:
    """Register for `--help` what could be written: nothing is collected then, so nobody else comes later."""
    if not config.getini(INI):
        return
    group = parser.getgroup("dtfperf-short", "the same, where nobody else has such an option", after="dtfperf")
    for option in OPTIONS:
        name = f"--{option.name}"
        try:
            is_free = name in parser.parse_known_and_unknown_args([name])[1]
        except (pytest.UsageError, SystemExit):  # it lacks its value, or prints something and leaves: somebody has it
            continue
        if is_free:
            optional = {"nargs": "?"} if option.bare is not None else {}
            group.addoption(
                name,
                dest=f"dtfperf_{option.field}",
                default=None,
                metavar=option.metavar,
                help=f"{PREFIX}{option.name}",
                **optional,
            )
