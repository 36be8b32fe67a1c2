"""Place variables on parameter servers or devices. Pure: every worker computes the same placement.

A row of `VARIABLE_PLACEMENTS` names a function of (the shapes of all variables, in the order in which the network makes them;
the number of servers), which returns the pieces of each variable.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, product
from typing import NamedTuple

Shape = Sequence[int]

FLOAT_BYTES = 4  # variables are float32, whatever the arithmetic is in

BALANCE = 0.02  # the largest distance of a server from the mean, as a fraction of it
# The fewer, the fewer messages; but a server can add and apply a piece while the next is under way. With so many per server,
# AlexNet's and VGG16's steps over four servers at 1 Gbit/s took 0.75 and 0.61 of what they took uncut.
PIECES_PER_SERVER = 4
LEAST_PIECE_BYTES = 4 << 20  # smaller pieces are not updated in one pass through memory (optimizers.py)


class Piece(NamedTuple):
    """Rows of a variable along its first axis, after those of the pieces before it. An uncut variable is one piece."""

    server: int
    rows: int


Placed = list[tuple[Piece, ...]]  # the pieces of each variable
Placement = Callable[[Sequence[Shape], int], Placed]


def compute_bytes(shape: Shape) -> int:
    return math.prod(shape) * FLOAT_BYTES


def count_rows(shape: Shape) -> int:
    return shape[0] if shape else 1


class GreedyLoadBalancing:
    """A placement of variables one by one: each goes to the first of the servers with the fewest bytes so far."""

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
    """Place each variable, in the network's order, on the server with the fewest bytes so far, as tf_cnn_benchmarks does."""
    balance = GreedyLoadBalancing(servers)
    return _make_whole_pieces(shapes, (balance.place(compute_bytes(shape)) for shape in shapes))


def round_robin(shapes: Sequence[Shape], servers: int) -> Placed:
    """Put each variable on the next server, whatever its size: TensorFlow's default."""
    return _make_whole_pieces(shapes, (number % servers for number in range(len(shapes))))


def largest_first(shapes: Sequence[Shape], servers: int) -> Placed:
    """Place as `greedy` does, but the largest first; of equal variables, those first that the network makes first.

    The fullest server has at most 4/3 - 1/(3 servers) times as much as in the best placement of whole variables (Graham, SIAM
    J. Appl. Math. 17, 1969).
    """
    balance = GreedyLoadBalancing(servers)
    found = {number: balance.place(compute_bytes(shapes[number])) for number in _sort_descending(map(compute_bytes, shapes))}
    return _make_whole_pieces(shapes, (found[number] for number in range(len(shapes))))


def split(shapes: Sequence[Shape], servers: int) -> Placed:
    """Place as `largest_first` does, and cut the largest variables where a server would be more than 2 % off the mean.

    Variables are cut where their servers are full, as few as possible. Then every server holds the mean within 2 %, or within
    the largest row of any variable. A variable of one row cannot be cut, for example a 1 x 1 convolution, (1, 1, inputs,
    filters).

    VGG16 has 553 MB of variables, 411 of them in one: the server that has it whole moves three quarters of all bytes.
    """
    found = largest_first(shapes, servers)
    mean = sum(map(compute_bytes, shapes)) / servers
    closest = _compute_distance(shapes, found, servers)
    for cut, rounding in product(_iterate_cuts(shapes, mean), (math.ceil, math.floor)):
        if closest <= BALANCE * mean:
            break
        placed = _cut(shapes, servers, cut, rounding)
        if (distance := _compute_distance(shapes, placed, servers)) < closest:
            found, closest = placed, distance
    return found


def _iterate_cuts(shapes: Sequence[Shape], mean: float) -> Iterator[list[int]]:
    """Yield the variables to cut: first those that no server may have whole, then repeatedly twice as many of the largest.

    Each variable that is cut costs a copy: a worker that fetches it joins its parts.
    """
    sizes = [compute_bytes(shape) for shape in shapes]
    can_be_cut = [i for i in _sort_descending(sizes) if count_rows(shapes[i]) > 1 and sizes[i] > BALANCE * mean]
    count = max(1, sum(sizes[number] > (1 + BALANCE) * mean for number in can_be_cut))
    while count < len(can_be_cut):
        yield can_be_cut[:count]
        count *= 2
    yield can_be_cut


def _cut(shapes: Sequence[Shape], servers: int, cut: Sequence[int], rounding: Callable[[float], int]) -> Placed:
    """Place the other variables whole, as `largest_first` does; then fill up the servers with the rows of these.

    Variables of large rows come first, so that those of fine rows even out the rest. `rounding` decides whether a server gets
    the row that goes beyond the mean. If so, the last server has less. If not, the remaining rows are parts of their own, each
    on the lightest server: then a server is beyond the mean by less than a row, and all others had at least as much before.
    """
    sizes = [compute_bytes(shape) for shape in shapes]
    mean = sum(sizes) / servers
    balance = GreedyLoadBalancing(servers)
    found: dict[int, list[Piece]] = {number: [] for number in cut}
    for number in _sort_descending(sizes):
        if number not in found:
            found[number] = [Piece(balance.place(sizes[number]), count_rows(shapes[number]))]
    for number in sorted(cut, key=lambda number: -compute_bytes(shapes[number][1:])):
        left, row_bytes = count_rows(shapes[number]), compute_bytes(shapes[number][1:])
        while left:
            room = mean - balance.held[balance.lightest]
            rows = min(left, max(1, rounding(room / row_bytes)))
            server = balance.place(rows * row_bytes)
            found[number] += [Piece(server, each) for each in _split_evenly(rows, row_bytes, mean)]
            left -= rows
    return [tuple(found[number]) for number in range(len(shapes))]


def refine_pieces(shapes: Sequence[Shape], placed: Placed, servers: int, pieces: int) -> Placed:
    """Return the same rows on the same servers, in `pieces` pieces for each server where these have at least 4 MiB."""
    mean = sum(map(compute_bytes, shapes)) / servers
    found = []
    for shape, theirs in zip(shapes, placed, strict=True):
        of_servers = [
            (server, sum(piece.rows for piece in each)) for server, each in groupby(theirs, lambda piece: piece.server)
        ]
        row_bytes = compute_bytes(shape) // count_rows(shape)
        found.append(
            tuple(Piece(server, n) for server, rows in of_servers for n in _split_evenly(rows, row_bytes, mean, pieces))
        )
    return found


def cut_large_variables(shapes: Sequence[Shape], placed: Placed, servers: int, pieces: int) -> Placed:
    """Cut each variable that has more bytes than a server's mean into pieces, all on the server where it is.

    So one piece is computed, added up or applied while the next one is sent. Over 8 servers at 1 Gbit/s VGG16's step with
    `greedy` takes 14.4 s with its largest variable in parts, 15.5 s with it whole; with `distributed_replicated` 9.1 and 15.1
    s.
    """
    mean = sum(map(compute_bytes, shapes)) / servers
    fine = refine_pieces(shapes, placed, servers, pieces)
    return [
        pieces_of if compute_bytes(shape) > mean else whole
        for shape, whole, pieces_of in zip(shapes, placed, fine, strict=True)
    ]


def _split_evenly(rows: int, row_bytes: int, mean: float, pieces: int = PIECES_PER_SERVER) -> Iterator[int]:
    """Return the rows of each part of one server's rows."""
    least_bytes = max(mean / pieces, LEAST_PIECE_BYTES)
    parts = max(1, min(rows, int(rows * row_bytes // least_bytes)))
    return (rows * (part + 1) // parts - rows * part // parts for part in range(parts))


def _sort_descending(sizes: Iterable[int]) -> list[int]:
    """Return the indices of the sizes, the largest first. Equal sizes stay in their order."""
    return [number for number, _ in sorted(enumerate(sizes), key=lambda pair: -pair[1])]


def _make_whole_pieces(shapes: Sequence[Shape], servers: Iterable[int]) -> Placed:
    return [(Piece(server, count_rows(shape)),) for shape, server in zip(shapes, servers, strict=True)]


def sum_by_server(shapes: Sequence[Shape], placed: Placed, servers: int) -> list[int]:
    """Return the bytes on each server."""
    held = [0] * servers
    for shape, pieces in zip(shapes, placed, strict=True):
        for server, rows in pieces:
            held[server] += compute_bytes((rows, *shape[1:]))
    return held


def _compute_distance(shapes: Sequence[Shape], placed: Placed, servers: int) -> float:
    """Return the bytes between the mean and the server that is farthest from it."""
    held = sum_by_server(shapes, placed, servers)
    mean = sum(held) / servers
    return max(abs(each - mean) for each in held)
