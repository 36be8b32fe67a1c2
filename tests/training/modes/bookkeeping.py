"""Runs all-reduce algorithms on lists of numbers, and records the transfers and the additions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise


@dataclass(frozen=True, eq=False)
class Numbers:
    """A tensor."""

    device: str
    values: tuple[Fraction, ...]


class Bookkeeping:
    """`Work` on numbers. As TensorFlow does, it sends a tensor to another device once, however often that uses it."""

    def __init__(self, towers: int) -> None:
        self._towers = towers
        self._fetched: set[tuple[Numbers, str]] = set()
        self.sent: Counter[tuple[str, str]] = Counter()  # numbers, by their way from device to device
        self.added: Counter[str] = Counter()  # numbers, by who adds them to others
        self.divided = 0  # numbers

    def add(self, values: Sequence[Numbers], device: str) -> Numbers:
        numbers = [self.fetch(value, device) for value in values]
        self.added[device] += (len(values) - 1) * len(numbers[0])
        return Numbers(device, tuple(sum(each, Fraction(0)) for each in zip(*numbers, strict=True)))

    def mean(self, total: Numbers, device: str) -> Numbers:
        self.divided += len(total.values)
        return Numbers(device, tuple(number / self._towers for number in self.fetch(total, device)))

    def copy(self, value: Numbers, device: str) -> Numbers:
        return Numbers(device, self.fetch(value, device))

    def cut(self, value: Numbers, parts: int, device: str) -> list[Numbers]:
        numbers = self.fetch(value, device)
        parts = max(1, min(parts, len(numbers)))
        ends = [len(numbers) * i // parts for i in range(parts + 1)]
        return [Numbers(device, numbers[a:b]) for a, b in pairwise(ends)]

    def join(self, parts: Sequence[Numbers], like: Numbers, device: str) -> Numbers:
        if len(parts) == 1:
            return parts[0]
        joined = [number for part in parts for number in self.fetch(part, device)]
        assert len(joined) == len(like.values)
        return Numbers(device, tuple(joined))

    def nccl(self, values: Sequence[Numbers], devices: Sequence[str]) -> list[Numbers]:
        assert [value.device for value in values] == list(devices)
        total = tuple(sum(each, Fraction(0)) for each in zip(*(value.values for value in values), strict=True))
        return [Numbers(device, total) for device in devices]

    def fetch(self, value: Numbers, device: str) -> tuple[Fraction, ...]:
        if value.device != device and (value, device) not in self._fetched:
            self._fetched.add((value, device))
            self.sent[value.device, device] += len(value.values)
        return value.values
