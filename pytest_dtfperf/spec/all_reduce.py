"""How gradients are added over devices, in tf_cnn_benchmarks' notation: `pscpu:32k:xring#2`. Pure.

spec      = range { ":" size ":" range }    each range is for tensors up to the size behind it, the last for all larger ones
range     = algorithm [ "#" shards ]
size      = number [ "K" | "k" | "M" | "G" | "T" ]    elements; each suffix is 1024 times the one before
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from pytest_dtfperf.errors import SpecError, describe_unknown_name
from pytest_dtfperf.spec.fields import Fields
from pytest_dtfperf.spec.tables import ALGORITHMS

_FACTORS = {"": 1, "k": 1024, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True)
class Range:
    """What is done with tensors that are no larger than `limit`, and larger than the limit of the range before."""

    algorithm: str
    shards: int = 1  # into how many parts each tensor is cut, which travel at the same time
    limit: int | None = None  # elements; None: any number


def parse(text: str) -> tuple[Range, ...]:
    """Parse an all_reduce_spec. Raises `SpecError` with a caret under the first mistake."""
    reader = _Reader(text)
    ranges = [_range(reader)]
    smallest = 1  # that is left for the last of them
    while reader.take(":"):
        limit = _size(reader, smallest)
        ranges[-1] = replace(ranges[-1], limit=limit)
        smallest = limit + 1
        if not reader.take(":"):
            reader.refuse("expected ':' and the algorithm for all larger tensors")
        ranges.append(_range(reader))
    if not reader.at_end:
        reader.refuse("expected the end, '#' and a number of shards, or ':' and the largest size that this is for")
    return tuple(ranges)


def check(spec: Fields) -> None:
    """Raise `SpecError` if the spec's mode cannot add so."""
    if spec.all_reduce_spec is None:
        return
    ranges = parse(spec.all_reduce_spec)
    _check_mode(spec, ranges)
    for name, alone in (("hierarchical_copy", False), ("local_parameter_device", "cpu")):
        if getattr(spec, name) != alone:
            raise SpecError(f"{name} and all_reduce_spec both define how gradients are added: leave one of them out")


def _check_mode(spec: Fields, ranges: Sequence[Range]) -> None:
    allowed = spec.mode.all_reduce
    for algorithm in (each.algorithm for each in ranges):
        if algorithm not in allowed:
            raise SpecError(
                f"all_reduce_spec={spec.all_reduce_spec}: variable_update={spec.variable_update} cannot add by {algorithm}. "
                f"Allowed: {', '.join(allowed)}."
            )
    able = allowed if spec.mode.all_reduce_shards is None else spec.mode.all_reduce_shards
    if cut := next((each.algorithm for each in ranges if each.shards > 1 and each.algorithm not in able), None):
        but = f" but of {', '.join(able)}" if able else ""
        raise SpecError(
            f"all_reduce_spec={spec.all_reduce_spec}: variable_update={spec.variable_update} knows no shards{but}: set {cut}"
        )
    if len(ranges) > 1 and not spec.mode.all_reduce_by_size:
        raise SpecError(
            f"all_reduce_spec={spec.all_reduce_spec}: variable_update={spec.variable_update} adds tensors of all sizes alike: "
            f"name one algorithm, {ranges[0].algorithm} or {ranges[-1].algorithm}"
        )


def _range(reader: "_Reader") -> Range:
    start = reader.position
    algorithm = reader.match(r"[^:#]*")
    if algorithm not in ALGORITHMS:
        wrong = (
            describe_unknown_name("algorithm", algorithm, ALGORITHMS)
            if algorithm
            else f"expected one of {', '.join(ALGORITHMS)}"
        )
        reader.refuse(wrong, position=start)
    if not reader.take("#"):
        return Range(algorithm)
    shards = reader.match(r"\d+")
    if not shards or int(shards) == 0:
        reader.refuse("expected a number of shards of at least 1", position=reader.position - len(shards))
    return Range(algorithm, int(shards))


def _size(reader: "_Reader", smallest: int) -> int:
    start = reader.position
    number = reader.match(r"\d+")
    if not number:
        reader.refuse("expected the most elements that a tensor may have for this, as in 2048, 32k or 1M")
    size = int(number) * _FACTORS[reader.match(r"[KkMGT]?")]
    if size < smallest:
        reader.refuse(f"expected at least {smallest}: no tensor would be left for this", position=start)
    return size


class _Reader:
    """A text, and how far it has been read."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.position = 0

    @property
    def at_end(self) -> bool:
        return self.position == len(self._text)

    def match(self, pattern: str) -> str:
        found = re.compile(pattern, re.ASCII).match(self._text, self.position)
        word = found[0] if found else ""
        self.position += len(word)
        return word

    def take(self, sign: str) -> bool:
        return bool(self.match(re.escape(sign)))

    def refuse(self, why: str, position: int | None = None) -> NoReturn:
        indent = 4 + (self.position if position is None else position)
        raise SpecError(f"all_reduce_spec cannot be read:\n    {self._text}\n{' ' * indent}^ {why}")
