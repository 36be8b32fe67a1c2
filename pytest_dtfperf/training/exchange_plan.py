"""Plan how variables are exchanged: packs of small ones, parts of large ones, and the waves in which values are sent. Pure.

Small variables share a tensor because a tensor costs some 40 microseconds on the network, however small it is. InceptionV3 has
190 trained variables, 96 of them of less than 16 KiB, which together are 0.08 MB of its 95.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pytest_dtfperf.extensions import load
from pytest_dtfperf.spec import VARIABLE_PLACEMENTS, Spec, TaskOrder, VariableUpdate
from pytest_dtfperf.training.models.layers import BATCH_NORM, has_weight_decay
from pytest_dtfperf.training.models.outline import Shape, Variable, get_outline
from pytest_dtfperf.training.placement import (
    PIECES_PER_SERVER,
    Piece,
    Placed,
    Placement,
    compute_bytes,
    count_rows,
    cut_large_variables,
    refine_pieces,
    round_robin,
    sum_by_server,
)

SMALL_BYTES = 64 << 10  # the default limit: joining larger variables costs more than it saves
PACK_BYTES = 1 << 20  # the limit of a pack


@dataclass(frozen=True)
class Pack:
    """Several variables that are exchanged as one, flat and in this order."""

    name: str
    members: tuple[Variable, ...]

    @cached_property
    def size(self) -> int:
        return sum(member.size for member in self.members)


def plan_packs(
    variables: Iterable[Variable], *, small_bytes: int = SMALL_BYTES, most: int | None = None, servers: int = 1
) -> list[Pack]:
    """Pack all variables of at most `small_bytes`, no more than `most` in one. A pack of a single variable is left out.

    No pack is larger than one parameter server's even share of all packs. The variables of batch norm have packs of their own,
    as weight decay does not apply to them.
    """
    small = [variable for variable in variables if _sum_bytes([variable]) <= small_bytes]
    full_bytes = min(PACK_BYTES, -(-_sum_bytes(small) // servers))
    packs: list[Pack] = []
    for kind, decaying in (("small", True), (BATCH_NORM, False)):
        rows: list[list[Variable]] = []
        filled_bytes = 0  # of the last row
        for variable in (each for each in small if has_weight_decay(each.name) == decaying):
            filled_bytes += _sum_bytes([variable])
            if not rows or len(rows[-1]) == most or filled_bytes > full_bytes:
                rows.append([])
                filled_bytes = _sum_bytes([variable])
            rows[-1].append(variable)
        packs += [Pack(f"{kind}_pack{number}", tuple(row)) for number, row in enumerate(rows) if len(row) > 1]
    return packs


def _sum_bytes(variables: Iterable[Variable]) -> int:
    return 4 * sum(variable.size for variable in variables)


def plan_task_packs(order: TaskOrder) -> list[Pack]:
    """Return the packs of a task's variables: those that the spec asks for, or by default those that save time."""
    return _plan_spec_packs(order.spec, crosses_the_wire=bool(order.cluster))


def _plan_spec_packs(spec: Spec, *, crosses_the_wire: bool) -> list[Pack]:
    small_bytes = spec.agg_small_grads_max_bytes
    if small_bytes is None:
        crosses_the_wire = crosses_the_wire and "agg_small_grads_max_bytes" in spec.mode.knows
        small_bytes = SMALL_BYTES if crosses_the_wire else 0
    variables = get_outline(spec).trained
    return plan_packs(variables, small_bytes=small_bytes, most=spec.agg_small_grads_max_group, servers=max(1, spec.num_ps))


def map_shapes(variables: Sequence[Variable], packs: Sequence[Pack]) -> dict[str, Shape]:
    """Return shapes by name, a pack in the place of its first member, in the order of creation."""
    pack_of = {member.name: pack for pack in packs for member in pack.members}
    found: dict[str, Shape] = {}
    for variable in variables:
        pack = pack_of.get(variable.name)
        found[pack.name if pack else variable.name] = (pack.size,) if pack else variable.shape
    return found


def compute_parts(order: TaskOrder) -> dict[str, dict[str, int]]:
    """Return the parts and their rows of each variable or pack that is cut."""
    placed = _assign_pieces(order, order.spec.num_ps) if order.spec.num_ps else {}
    return {
        name: {part: piece.rows for part, piece in zip(make_part_names(name, len(pieces)), pieces, strict=True)}
        for name, pieces in placed.items()
        if len(pieces) > 1
    }


def assign_servers(order: TaskOrder, servers: int) -> dict[str, int]:
    """Return the number of the server that holds each variable, pack or part."""
    return {
        part: piece.server
        for name, pieces in _assign_pieces(order, servers).items()
        for part, piece in zip(make_part_names(name, len(pieces)), pieces, strict=True)
    }


def compute_sizes(order: TaskOrder) -> dict[str, int]:
    """Return the bytes of each variable, pack or part on parameter servers, in the order in which the network makes them."""
    parts = compute_parts(order)
    return {
        part: compute_bytes((rows, *shape[1:]))
        for name, shape in _list_shapes(order).items()
        for part, rows in parts.get(name, {name: count_rows(shape)}).items()
    }


def make_part_names(name: str, parts: int) -> list[str]:
    """Return the names of a variable's parts, as `dense0/weights/part2of7`; a single part keeps the variable's name."""
    return [name] if parts == 1 else [f"{name}/part{number}of{parts}" for number in range(1, parts + 1)]


def bytes_on_servers(spec: Spec) -> list[int]:
    """Return the bytes of trained variables on each of the spec's parameter servers, when several tasks share them."""
    variables = get_outline(spec).trained
    if spec.mode.engine != VariableUpdate.engine and not VARIABLE_PLACEMENTS[spec.variable_placement].in_strategies:
        whole = [variable.shape for variable in variables]
        return sum_by_server(whole, round_robin(whole, spec.num_ps), spec.num_ps)
    shapes = list(map_shapes(variables, _plan_spec_packs(spec, crosses_the_wire=True)).values())
    return sum_by_server(shapes, _cut_into_pieces(spec, shapes, spec.num_ps), spec.num_ps)


class Exchange(NamedTuple):
    """A variable, pack or part that is sent as one."""

    first: int  # the index of its first variable among the trained ones
    server: int
    size_bytes: int  # in memory


def list_exchanges(spec: Spec) -> list[Exchange]:
    """Return the exchanges of the spec's workers with parameter servers on other hosts, in the order of the network.

    Without parameter servers all belong to server 0.
    """
    variables = get_outline(spec).trained
    packs = _plan_spec_packs(spec, crosses_the_wire=True)
    first_of = {variable.name: number for number, variable in enumerate(variables)}
    first_of.update({pack.name: first_of[pack.members[0].name] for pack in packs})
    named = map_shapes(variables, packs)
    shapes, servers = list(named.values()), max(1, spec.num_ps)
    if spec.mode.engine != VariableUpdate.engine and not VARIABLE_PLACEMENTS[spec.variable_placement].in_strategies:
        placed = round_robin(shapes, servers)
    else:
        placed = _cut_between_hosts(spec, shapes, _cut_into_pieces(spec, shapes, servers), servers)
    return [
        Exchange(first_of[name], piece.server, compute_bytes((piece.rows, *shape[1:])))
        for (name, shape), pieces in zip(named.items(), placed, strict=True)
        for piece in pieces
    ]


def _list_shapes(order: TaskOrder) -> dict[str, Shape]:
    return map_shapes(get_outline(order.spec).trained, plan_task_packs(order))


def _assign_pieces(order: TaskOrder, servers: int) -> Mapping[str, tuple[Piece, ...]]:
    spec = order.spec
    named = _list_shapes(order)
    shapes = list(named.values())
    placed = _cut_into_pieces(spec, shapes, servers)
    if order.is_between_hosts:
        placed = _cut_between_hosts(spec, shapes, placed, servers)
    return dict(zip(named, placed, strict=True))


def _cut_between_hosts(spec: Spec, shapes: Sequence[Shape], placed: Placed, servers: int) -> Placed:
    """Return the pieces of variables that travel in parts, though their placement does not cut them."""
    if not spec.mode.has_variable_placement or VARIABLE_PLACEMENTS[spec.variable_placement].cuts:
        return placed
    return cut_large_variables(shapes, placed, servers, spec.mode.pieces_per_server or PIECES_PER_SERVER)


def _cut_into_pieces(spec: Spec, shapes: Sequence[Shape], servers: int) -> Placed:
    """Return the pieces of each variable.

    A single process counts its own devices as servers. It sends nothing, so that its variables are not cut.
    """
    row = VARIABLE_PLACEMENTS[spec.variable_placement if spec.num_ps else Spec.variable_placement]
    pieces = spec.mode.pieces_per_server
    placement: Placement = load(row.implementation)
    placed = placement(shapes, servers)
    return refine_pieces(shapes, placed, servers, pieces) if row.cuts and pieces else placed


# Of all bytes, in the network's order: when so many have come, more are sent ...
AWAITED = (0.08, 0.2, 0.35, 0.5, 0.7)
# ... of each server as many as any server has of what comes until the next time, and so much of its part of all beyond.
# 4 servers, 2 workers of one core each: a step of InceptionV3 takes 3.37 s, where links allow 3.19, and 3.51 s with the first
# of these alone; ResNet-50 3.52, 3.58, and 3.81 without any of this, where they allow 3.42.
BEYOND = 0.12


class Wave(NamedTuple):
    """The names of values that are sent together, once others have arrived."""

    awaited: frozenset[str]
    held_back: frozenset[str]  # until all awaited values have come


def plan_waves(sizes: Mapping[str, int], servers: Mapping[str, int]) -> list[Wave]:
    """Return the waves of values of these sizes, in the network's order. Values in no wave are sent immediately."""
    awaited = [names for names in dict.fromkeys(_take_first(sizes, part) for part in AWAITED) if names]
    before = [
        _count_sent_bytes(sizes, servers, names) for names in awaited
    ]  # bytes of each server that are sent before the wave
    held_back: list[list[str]] = [[] for _ in awaited]
    sent: Counter[int] = Counter()
    for name, size in sizes.items():
        if waves := bisect_right(before, sent[servers[name]]):
            held_back[waves - 1].append(name)
        sent[servers[name]] += size
    return [Wave(frozenset(names), frozenset(theirs)) for names, theirs in zip(awaited, held_back, strict=True) if theirs]


def _take_first(sizes: Mapping[str, int], part: float) -> tuple[str, ...]:
    """Return the names of the first values whose sizes add up to at most this part of all bytes."""
    total, before = sum(sizes.values()), 0
    found = []
    for name, size in sizes.items():
        before += size
        if before > part * total:
            break
        found.append(name)
    return tuple(found)


def _count_sent_bytes(sizes: Mapping[str, int], servers: Mapping[str, int], awaited: Iterable[str]) -> float:
    """Return the bytes that keep a server's link busy until these values have come from all servers."""
    theirs: Counter[int] = Counter()
    for name in awaited:
        theirs[servers[name]] += sizes[name]
    return max(theirs.values()) + BEYOND * sum(sizes.values()) / len(set(servers.values()))
