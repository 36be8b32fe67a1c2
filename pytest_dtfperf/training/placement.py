"""Which parameter server, or device, holds which variable. Pure: every worker counts alike, so all come to the same answer."""

import math
from collections.abc import Sequence
from typing import Protocol

FLOAT_BYTES = 4  # variables are float32, whatever the arithmetic is in


def size_of(shape: Sequence[int]) -> int:
    """Bytes of a variable."""
    return math.prod(shape) * FLOAT_BYTES


class Placement(Protocol):
    """Places variables one by one, in the order in which the network makes them."""

    def place(self, size_bytes: int) -> int:
        """Index of the parameter server of the next variable."""


class GreedyLoadBalancing:
    """Each variable goes to the server that holds the fewest bytes so far; the first of several."""

    def __init__(self, num_ps: int) -> None:
        self._bytes = [0] * num_ps

    def place(self, size_bytes: int) -> int:
        lightest = self._bytes.index(min(self._bytes))
        self._bytes[lightest] += size_bytes
        return lightest


class RoundRobin:
    """Each variable goes to the next server, whatever its size: TensorFlow's default."""

    def __init__(self, num_ps: int) -> None:
        self._num_ps = num_ps
        self._placed = 0

    def place(self, size_bytes: int) -> int:
        self._placed += 1
        return (self._placed - 1) % self._num_ps
