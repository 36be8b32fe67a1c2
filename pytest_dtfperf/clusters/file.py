"""The file clusters.toml: its search path, its parser, the validators of its values, and its lists of hosts.

The keys themselves are in `named` and in the backends. Lists of hosts are as Slurm and most cluster tools write them:
`n[1-2,08]-ib,b1` is n1-ib, n2-ib, n08-ib, b1.
"""

import ipaddress
import json
import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from pytest_dtfperf.errors import ClusterFileError, show_value
from pytest_dtfperf.formats import TIME_BUDGET_FORM, parse_time_budget
from pytest_dtfperf.node.files import read_text

MAX_HOSTS = 65536  # hosts: Slurm's own limit; a longer list is a typing error

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_TOO_LONG = re.compile(r"[0-9]{19,}")
_BRACKET = re.compile(r"([\[\]])")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")


class HostListError(ValueError):
    """Text that is no list of hosts. Its message gives the reason."""


def expand_hostlist(hostlist: str) -> tuple[str, ...]:
    """Return all hosts in their order, with leading zeros. Raises `HostListError`."""
    names: list[str] = []
    for pattern in _split_items(hostlist):
        names += _expand_item(pattern, MAX_HOSTS - len(names))
    return tuple(names)


def _split_items(hostlist: str) -> Iterator[str]:
    """Split at the commas outside brackets. Reads every character once, independent of the number of hosts."""
    pattern = ""
    texts = _BRACKET.split(hostlist)
    for text, bracket in zip(texts[::2], [*texts[1::2], ""], strict=True):
        if bracket == "]":
            pattern += text  # the comma was in brackets
        else:
            *whole, rest = text.split(",")
            for each in whole:
                yield pattern + each
                pattern = ""
            pattern += rest
        pattern += bracket
    yield pattern


def _expand_item(pattern: str, most: int) -> list[str]:
    if not pattern.strip():
        raise HostListError("there is nothing where a host should be")
    literals_and_ranges = _BRACKETS.split(pattern)
    literals, ranges = literals_and_ranges[::2], literals_and_ranges[1::2]
    if any("[" in literal or "]" in literal for literal in literals):
        raise HostListError(f"{show_value(pattern)} has brackets that are not like [01-16,20]")
    numbers: list[list[str]] = []
    makes = 1
    for each in ranges:
        numbers.append(_expand_numbers(each, pattern))
        makes *= len(numbers[-1])
        if makes > most:  # checked before the expansion: several small pairs of brackets can make too many hosts
            break
    if makes > most:
        raise HostListError(f"{show_value(pattern)} makes more than {MAX_HOSTS} hosts")
    return [
        literals[0] + "".join(number + literal for number, literal in zip(chosen, literals[1:], strict=True))
        for chosen in product(*numbers)
    ]


def _expand_numbers(ranges: str, pattern: str) -> list[str]:
    """Expand `1-3,08`; leading zeros set the width of numbers."""
    numbers: list[str] = []
    for part in ranges.split(","):
        if long := _TOO_LONG.search(part):
            raise HostListError(f"{show_value(pattern)} has a number of {len(long[0])} digits; 18 are the most")
        ends = _RANGE.fullmatch(part)
        if not ends:
            raise HostListError(f"{show_value(pattern)} has brackets that are not like [01-16,20]")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise HostListError(f"{show_value(pattern)} counts backwards: {part}")
        if len(numbers) + last - first >= MAX_HOSTS:
            raise HostListError(f"{show_value(pattern)} makes more than {MAX_HOSTS} hosts")
        numbers += [str(number).zfill(len(ends[1])) for number in range(first, last + 1)]
    return numbers


CLUSTERS_FILE = "clusters.toml"
PERF_TESTS = "perf_tests"  # a project's folder of perf tests, searched from the project's root, too
MOST_BITS = 63  # of an integer: TOML's have 64 bits
DEEPEST = 50  # nesting of tables and lists; all keys need at most 4

_LONG_NUMBER = re.compile(r"[0-9][0-9_]{999,}")  # Python reads up to 4,300 digits


def find_cluster_file(explicit: str | Path | None, starts: Iterable[str | Path]) -> Path | None:
    """Return the cluster file: the named one, else the first of `candidates`. Raises `ClusterFileError`."""
    if explicit is not None:
        if not os.path.exists(explicit) or os.path.isdir(explicit):
            raise ClusterFileError(f"there is no cluster file {explicit}")
        return Path(explicit)
    # A broken link or a pipe is chosen, too: `read_cluster_file` reports the error.
    return next((path for path in list_candidates(starts) if os.path.lexists(path) and not path.is_dir()), None)


def list_candidates(starts: Iterable[str | Path]) -> Iterator[Path]:
    """Yield its possible paths in order: in a folder of `starts` or in `perf_tests` there, then in the folders above it."""
    for start in map(Path, starts):
        for folder in (start, *start.resolve().parents):
            yield folder / CLUSTERS_FILE
            if folder.name != PERF_TESTS:
                yield folder / PERF_TESTS / CLUSTERS_FILE


def format_searched(starts: Iterable[str | Path]) -> str:
    """Format the searched paths for an error message."""
    folders = dict.fromkeys(str(Path(start).resolve()) for start in starts)
    return f"no {CLUSTERS_FILE} was found in {' or '.join(folders)}, in {PERF_TESTS} there, or in the folders above"


def read_cluster_file(path: str | Path) -> dict[str, Any]:
    """Parse the file. Raises `ClusterFileError` with the line if it is known."""
    try:
        text = read_text(path, "utf-8-sig")  # some editors write a byte order mark
    except OSError as exc:
        raise ClusterFileError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ClusterFileError(f"cannot read {path}: {exc}") from exc
    except ValueError as exc:  # from Python's limits of integers and of years
        raise ClusterFileError(f"cannot read {path}: {_find_long_number(text) or exc}") from exc
    except RecursionError:
        raise _make_depth_error(path, _find_deepest_line(text)) from None
    for name, value in tables.items():
        _check_value(path, quote_key(name), value)
    return tables


def quote_key(key: str) -> str:
    """Return a key as TOML writes it."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)


def _check_value(path: str | Path, key: str, value: object, depth: int = 1) -> None:
    """Check numbers and nesting of any value, so that all values can be compared and shown."""
    if depth > DEEPEST:
        raise _make_depth_error(path, key)
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise ClusterFileError(f"{path}: {key} is a whole number of more than 64 bits")
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in below:
        _check_value(path, f"{key}.{quote_key(str(name))}", each, depth + 1)


def _make_depth_error(path: str | Path, where: str) -> ClusterFileError:
    return ClusterFileError(f"{path}: {where[:60]}: tables and lists are more than {DEEPEST} deep")


def _find_long_number(text: str) -> str | None:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := _LONG_NUMBER.search(line):
            key = line[: found.start()].partition("=")[0].strip()[:60]
            return f"{key} is a number of {len(found[0])} digits (at line {number})"
    return None


def _find_deepest_line(text: str) -> str:
    """Return the line with most opening brackets; dots nest, too."""
    numbered = enumerate(text.splitlines(), start=1)
    number, _ = max(chain([(0, "")], numbered), key=lambda pair: sum(map(pair[1].count, "[{.")))
    return f"line {number}"


@dataclass(frozen=True)
class Validator:
    """The type and range of a key's value."""

    allowed: str
    accepts: Callable[[Any], bool]


def one_of(*allowed: str) -> Validator:
    return Validator(" or ".join(f'"{word}"' for word in allowed), lambda value: value in allowed)


def _is_time(text: str) -> bool:
    try:
        parse_time_budget(text)
    except ValueError:
        return False
    return True


def _count_arguments(text: str) -> int:
    """Return the number of arguments that a shell would read; 0 if a quotation does not end."""
    try:
        return len(shlex.split(text))
    except ValueError:
        return 0


def _is_interface(text: str) -> bool:
    """Return whether this can be the name of an interface, or is a network."""
    if "/" not in text:
        return bool(re.fullmatch(r"\S{1,15}", text))
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


COUNT = Validator("a whole number of at least 1", lambda value: type(value) is int and value >= 1)
SECONDS = Validator("a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf)
FRACTION = Validator("a fraction, as 0.05 for 5 %", lambda value: type(value) in (int, float) and 0 < value < 1)
TEXT = Validator("text", lambda value: isinstance(value, str) and value != "" and "\0" not in value)
TEXTS = Validator(
    "a list of texts", lambda value: isinstance(value, list) and all(each == "" or TEXT.accepts(each) for each in value)
)
NAMES = Validator("a list of at least one text", lambda value: bool(value) and TEXTS.accepts(value))
FLAG = Validator("true or false", lambda value: isinstance(value, bool))
TABLE = Validator("a table", lambda value: isinstance(value, dict))
TIME = Validator(TIME_BUDGET_FORM, lambda value: isinstance(value, str) and _is_time(value))
COMMAND = Validator(
    "a command line of a program and at least one argument", lambda value: TEXT.accepts(value) and _count_arguments(value) > 1
)
INTERFACE = Validator(
    'the name of an interface like "ib0", or a network like "10.1.0.0/16"',
    lambda value: isinstance(value, str) and _is_interface(value),
)
# Characters that a shell leaves alone between double quotes, and variables of the host.
_FOLDER = re.compile(r'(?:~?/|\$\w|\$\{\w+\})(?:[^"`\\$\n\0]|\$\w|\$\{\w+\})*', re.ASCII)
FOLDER = Validator(
    'the path of a folder, like "/scratch/$USER" or "~/dtfperf": it begins with /, ~/ or a variable',
    lambda value: isinstance(value, str) and bool(_FOLDER.fullmatch(value)),
)
CODE = Validator('"module:function"', lambda value: isinstance(value, str) and value.count(":") == 1)
S3 = Validator(
    '"s3://bucket" or "s3://bucket/prefix"',
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/.*)?", value)),
)
