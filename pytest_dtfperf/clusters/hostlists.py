"""Lists of hosts as Slurm and most cluster tools write them: `n[1-2,08]-ib,b1` is n1-ib, n2-ib, n08-ib, b1. Pure."""

import re
from collections.abc import Iterator
from itertools import product

from pytest_dtfperf.errors import show_value

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
