"""Which parameter server, or device, holds which variable. Pure: every worker counts alike, so all come to the same answer.

A row of `VARIABLE_PLACEMENTS` names a function of (the shapes of all, in the order in which the network makes them; how many
servers there are), which returns the pieces of each.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

Shape = Sequence[int]

FLOAT_BYTES = 4  # variables are float32, whatever the arithmetic is in

BALANCE = 0.02  # how far a server may be from the mean, as a fraction of it
# The fewer, the fewer messages; but a server can add and apply a piece while the next is under way. With so many per server,
# AlexNet's and VGG16's steps over four servers at 1 Gbit/s took 0.75 and 0.61 of what they took uncut.
PIECES_PER_SERVER = 4


class Piece(NamedTuple):
    """Some rows of a variable along its first axis, behind those of the pieces before it. What is not cut is one piece."""

    server: int
    rows: int


Placed = list[tuple[Piece, ...]]  # the pieces of each variable
Placement = Callable[[Sequence[Shape], int], Placed]


def size_of(shape: Shape) -> int:
    """Bytes of a variable."""
    return math.prod(shape) * FLOAT_BYTES


def rows_of(shape: Shape) -> int:
    return shape[0] if shape else 1


class GreedyLoadBalancing:
    """Places one by one: each goes to the server that holds the fewest bytes so far; the first of several."""

    def __init__(self, num_ps: int) -> None:
        self.held = [0] * num_ps  # bytes of each server

    @property
    def lightest(self) -> int:
        return self.held.index(min(self.held))

    def place(self, size_bytes: int) -> int:
        lightest = self.lightest
        self.held[lightest] += size_bytes
        return lightest


def greedy(shapes: Sequence[Shape], servers: int) -> Placed:
    """In the network's order, each where the fewest bytes are so far: tf_cnn_benchmarks' rule."""
    balance = GreedyLoadBalancing(servers)
    return _whole(shapes, (balance.place(size_of(shape)) for shape in shapes))


def round_robin(shapes: Sequence[Shape], servers: int) -> Placed:
    """Each goes to the next server, whatever its size: TensorFlow's default."""
    return _whole(shapes, (number % servers for number in range(len(shapes))))


def largest_first(shapes: Sequence[Shape], servers: int) -> Placed:
    """As `greedy`, but the largest choose first; of equal ones, those that the network makes first.

    The fullest server has at most 4/3 - 1/(3 servers) of what the best placement of whole variables would leave there (Graham,
    SIAM J. Appl. Math. 17, 1969).
    """
    balance = GreedyLoadBalancing(servers)
    found = {number: balance.place(size_of(shapes[number])) for number in _descending(map(size_of, shapes))}
    return _whole(shapes, (found[number] for number in range(len(shapes))))


def split(shapes: Sequence[Shape], servers: int) -> Placed:
    """As `largest_first` where that leaves no server farther from the mean than 2 % of it. Else variables of more than 2 % of
    the mean are cut where their servers are full, and every server holds the mean within 2 %, or within the largest row of any.

    What has one row cannot be cut: 1 x 1 convolutions, (1, 1, inputs, filters), for example.

    VGG16 has 553 MB of variables, 411 of them in one: wherever that lies whole, its server moves three quarters of all bytes.
    """
    whole = largest_first(shapes, servers)
    mean = sum(map(size_of, shapes)) / servers
    if _distance(shapes, whole, servers) <= BALANCE * mean:
        return whole
    cut = _cut(shapes, servers, mean)
    return min(whole, cut, key=lambda placed: _distance(shapes, placed, servers))


def _cut(shapes: Sequence[Shape], servers: int, mean: float) -> Placed:
    """Those that can only be placed in large steps come first, so that those of fine rows even out what is left.

    Each step goes to the lightest server, and none but a single row, or what is not cut, goes beyond the mean. So a server that
    is beyond it is so by less than one step, and all others had at least as much as it had before that step.
    """
    steps = [_step_bytes(shape, mean) for shape in shapes]
    balance = GreedyLoadBalancing(servers)
    found: dict[int, list[Piece]] = {}
    for number in _descending(steps):
        left, pieces = rows_of(shapes[number]), found.setdefault(number, [])
        row_bytes = size_of(shapes[number]) // max(1, left)
        while left or not pieces:
            rows = left
            if steps[number] < size_of(shapes[number]):
                room = mean - balance.held[balance.lightest]
                room /= math.ceil(room / (mean / PIECES_PER_SERVER))
                rows = min(left, max(1, int(room // row_bytes)))
            pieces.append(Piece(balance.place(rows * row_bytes), rows))
            left -= rows
    return [tuple(found[number]) for number in range(len(shapes))]


def _step_bytes(shape: Shape, mean: float) -> int:
    """In what steps the bytes of a variable can be placed."""
    size = size_of(shape)
    return size if size <= BALANCE * mean else size // rows_of(shape)


def _descending(sizes: Iterable[int]) -> list[int]:
    """The numbers of the largest first. Equal ones stay in their order."""
    return [number for number, _ in sorted(enumerate(sizes), key=lambda pair: -pair[1])]


def _whole(shapes: Sequence[Shape], servers: Iterable[int]) -> Placed:
    return [(Piece(server, rows_of(shape)),) for shape, server in zip(shapes, servers, strict=True)]


def held_by(shapes: Sequence[Shape], placed: Placed, servers: int) -> list[int]:
    """The bytes on each server."""
    held = [0] * servers
    for shape, pieces in zip(shapes, placed, strict=True):
        for server, rows in pieces:
            held[server] += size_of((rows, *shape[1:]))
    return held


def _distance(shapes: Sequence[Shape], placed: Placed, servers: int) -> float:
    """Bytes between the mean and the server that is farthest from it."""
    held = held_by(shapes, placed, servers)
    return max(abs(each - sum(held) / servers) for each in held)
