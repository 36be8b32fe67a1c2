"""Lists of hosts as Slurm and most cluster tools write them: `n[1-2,08]-ib,b1` is n1-ib, n2-ib, n08-ib, b1. Pure."""

import re
from collections.abc import Iterator
from itertools import product
from math import prod

MOST = 65536  # hosts: Slurm's own limit; what is longer is a slip of the finger

_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_BRACKETS = re.compile(r"\[([0-9,-]+)\]")


class HostListError(ValueError):
    """Text that is no list of hosts. Its words say why."""


def expand(hostlist: str) -> tuple[str, ...]:
    """All hosts, in their order, with the leading zeros that they have. Raises `HostListError`."""
    names: list[str] = []
    for pattern in _top_level(hostlist):
        names += _names(pattern, MOST - len(names))
    return tuple(names)


def _top_level(hostlist: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    return re.split(r",(?![^\[\]]*\])", hostlist)


def _names(pattern: str, most: int) -> Iterator[str]:
    literals_and_ranges = _BRACKETS.split(pattern)
    literals, ranges = literals_and_ranges[::2], literals_and_ranges[1::2]
    if not pattern.strip():
        raise HostListError("there is nothing where a host should be")
    if any(set(literal) & set("[]") for literal in literals):
        raise HostListError(f"{pattern!r} has brackets that are not like [01-16,20]")
    numbers = [_numbers(each, pattern) for each in ranges]
    if prod(len(each) for each in numbers) > most:
        raise HostListError(f"{pattern!r} makes more than {MOST} hosts")
    for chosen in product(*numbers):
        yield literals[0] + "".join(number + literal for number, literal in zip(chosen, literals[1:], strict=True))


def _numbers(ranges: str, pattern: str) -> list[str]:
    """`1-3,08` in full; leading zeros say how wide numbers are."""
    numbers: list[str] = []
    for part in ranges.split(","):
        ends = _RANGE.fullmatch(part)
        if not ends:
            raise HostListError(f"{pattern!r} has brackets that are not like [01-16,20]")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if last < first:
            raise HostListError(f"{pattern!r} counts backwards: {part}")
        if last - first >= MOST:
            raise HostListError(f"{pattern!r} makes more than {MOST} hosts")
        numbers += [str(number).zfill(len(ends[1])) for number in range(first, last + 1)]
    return numbers
